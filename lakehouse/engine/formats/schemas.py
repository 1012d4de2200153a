"""The schemas that records refer to by id. Each is fetched from the registry once and then stored.

An id always refers to the same schema, so each schema is stored in this process and in the lake, in
`<lake>/_lakehouse_schemas/<id>.json`. Rebuilds, replays and audits read it from there, without the registry.
A damaged file is rewritten.

A missing schema could be registered later, so this process remembers a missing id only for `MISSING_FOR_S`. A
micro-batch requests new ids on one connection, and stops after `MOST_MISSING` ids without a schema. Values
that only seem to begin with an id therefore cause only a few requests, regardless of their number.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakehouse.common.errors import RegistryError
from lakehouse.common.memory import on_forget
from lakehouse.settings.registry_access import RegistryAccess
from lakehouse.storage.kafka.schema_registry import Missing, Registered, RegistryClient, registered
from lakehouse.storage.spark import files as storage

DIRECTORY = "_lakehouse_schemas"
MOST_MISSING = 20
"""The maximum number of ids without a schema that one micro-batch requests."""
MISSING_FOR_S = 60.0
"""The time, in seconds, before an id without a schema is requested again."""
MOST_REMEMBERED = 1_000
"""The maximum number of remembered ids without a schema. If there are more, the oldest are forgotten."""

Schemas = Mapping[int, Registered]
"""Schemas, keyed by id."""
_FILE = re.compile(r"([1-9][0-9]*)\.json")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """The result of a lookup, keyed by id: schemas, and the registry's answers for ids without a schema.

    An id that is in neither mapping was not looked up. `asked` is the number of requests.
    """

    schemas: Mapping[int, Registered]
    missing: Mapping[int, Missing]
    asked: int = 0


@lru_cache(maxsize=16)
def store_of(lake: str | None, url: str) -> SchemaStore:
    """Return this process's schema store for a lake or, if `lake` is None, for the registry at this URL."""
    del url
    return SchemaStore(lake)


on_forget(store_of.cache_clear)


class SchemaStore:
    """The schemas of one registry, cached in this process and in a lake.

    `lake` is the lake's root directory, or None to use only this process. `now` returns a monotonic time in
    seconds. Thread-safe.
    """

    def __init__(self, lake: str | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._directory = None if lake is None else f"{lake}/{DIRECTORY}"
        self._now = now
        self._lock = threading.Lock()
        self._known = dict[int, Registered]()
        self._missing = dict[int, tuple[Missing, float]]()  # the oldest first
        self._kept: frozenset[int] | None = None

    def known(self, spark: SparkSession) -> frozenset[int]:
        """Return the ids whose schemas are available without the registry."""
        if self._kept is None:
            self._kept = self._listed(spark)
        return self._kept | self._known.keys()

    def look_up(self, spark: SparkSession, access: RegistryAccess, ids: Sequence[int]) -> Found:
        """Look up the schemas for these ids, in the given order.

        Raises RegistryError if the registry is needed and does not answer.
        """
        missing = self._remembered(ids)
        new = [one for one in ids if one not in self._known and one not in missing]
        if set(new) - self.known(spark):
            self._kept = self._listed(spark)  # another process may have stored some of these schemas
        asked, count = 0, 0
        with ExitStack() as stack:
            client: RegistryClient | None = None
            for one in new:
                if self._is_kept(spark, one):
                    continue
                if count == MOST_MISSING:
                    continue  # later ids may have stored schemas
                client = client or stack.enter_context(RegistryClient(access))
                answer = self._ask(spark, client, one)
                if isinstance(answer, Missing):
                    missing[one] = answer
                    count += 1
            asked = 0 if client is None else client.asked
        self._remember({one: missing[one] for one in new if one in missing})
        return Found({one: self._known[one] for one in sorted(ids) if one in self._known}, missing, asked)

    def _is_kept(self, spark: SparkSession, one: int) -> bool:
        """Load a schema from the lake; return whether the lake contains it."""
        if one not in (self._kept or ()):
            return False
        found = self._read(spark, one)
        if found is not None:
            self._known[one] = found
        elif self._kept and not storage.exists(spark, self._path(one)):
            self._kept -= {one}
        return found is not None

    def _ask(self, spark: SparkSession, client: RegistryClient, one: int) -> Registered | Missing:
        """Request a schema from the registry, and store it.

        If the stored file is damaged, raises RegistryError unless the registry returns the schema.
        """
        damaged = self._path(one) if one in (self._kept or ()) else None
        way_out = f"; {damaged} is damaged: restore it from a copy of the lake, or remove it"
        try:
            found = client.schema(one)
        except RegistryError as error:
            if damaged is None:
                raise
            raise RegistryError(f"{error}{way_out}") from error
        if isinstance(found, Missing):
            if damaged is not None:
                raise RegistryError(f"{no_schema(one, found)}{way_out}")
            return found
        if self._directory is not None:
            storage.write_text(spark, self._path(one), json.dumps(vars(found)))
        if damaged is not None:
            _log.warning("%s was damaged; it has been restored from the registry", damaged)
        self._known[one] = found
        return found

    def _listed(self, spark: SparkSession) -> frozenset[int]:
        if self._directory is None:
            return frozenset()
        names = map(_FILE.fullmatch, storage.names(spark, self._directory))
        return frozenset(int(one[1]) for one in names if one is not None)

    def _read(self, spark: SparkSession, one: int) -> Registered | None:
        """Return a stored schema, or None if its file is damaged or has been removed."""
        try:
            return registered(json.loads(storage.read_text(spark, self._path(one))))
        except (OSError, Py4JError):
            if storage.exists(spark, self._path(one)):  # otherwise the file has just been removed
                raise
        except (KeyError, RecursionError, TypeError, ValueError):
            pass
        return None

    def _path(self, one: int) -> str:
        return f"{self._directory}/{one}.json"

    def _remembered(self, ids: Iterable[int]) -> dict[int, Missing]:
        after = self._now() - MISSING_FOR_S
        with self._lock:
            self._missing = {one: it for one, it in self._missing.items() if it[1] > after}
            return {one: self._missing[one][0] for one in ids if one in self._missing}

    def _remember(self, missing: Mapping[int, Missing]) -> None:
        now = self._now()
        with self._lock:
            self._missing |= {one: (it, now) for one, it in missing.items()}
            for one in list(self._missing)[:-MOST_REMEMBERED]:
                del self._missing[one]


def no_schema(one: int, missing: Missing) -> str:
    """Return the message for an id without a schema."""
    return (
        f"the registry has no schema {one}{f': it answered {missing.answered}' if missing.answered else ''}"
    )
