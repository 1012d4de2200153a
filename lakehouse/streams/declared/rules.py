"""Validation rules that are declared as Spark SQL conditions over a row's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.common.nearest import no_such
from lakehouse.streams.declared.values import Name, Table, matching
from lakehouse.streams.definition import Rule
from lakehouse.streams.expressions import expression, refused_words

_COLUMN = re.compile(r"\{(\w+)\}")


class RuleKeys(Table):
    """A rule.

    As in a CHECK constraint, a row passes if the condition is null. In the message, the column's value
    replaces `{column}`.
    """

    name: Annotated[
        str,
        matching(
            "[a-z][a-z0-9_]*", "a name: lower-case letters, digits and underscores, beginning with a letter"
        ),
    ]
    column: Name
    fails_when: Name
    message: Name


@dataclass(frozen=True)
class SqlRules:
    """A source's validation rules: those of the stream's kind, then those declared in the table `key`."""

    key: str
    of_kind: Callable[[], tuple[Rule, ...]]
    rules: tuple[RuleKeys, ...]

    def __call__(self) -> tuple[Rule, ...]:
        """Return the rules. For invalid SQL, raises a SettingsError that names the key."""
        return (*self.of_kind(), *(self._rule(place, rule) for place, rule in enumerate(self.rules)))

    def _rule(self, place: int, rule: RuleKeys) -> Rule:
        key = f"{self.key}.rules[{place}].fails_when"
        violated = expression(rule.fails_when, key)
        return Rule(rule.name, rule.column, violated, _message(rule.message), key)


def wrong_rules(key: str, rules: Sequence[RuleKeys], columns: Collection[str]) -> Iterator[str]:
    """Yield a message for each error that can be found without Spark. `columns` are the row's columns."""
    for place, rule in enumerate(rules):
        at = f"{key}.rules[{place}]"
        if rule.column not in columns:
            yield f"{at}.column: {no_such('column', rule.column, columns)}"
        for name in _COLUMN.findall(rule.message):
            if name not in columns:
                yield f"{at}.message: {no_such('column', name, columns)}"
        for word, reason in refused_words(rule.fails_when, columns):
            yield f"{at}.fails_when: {word} is not allowed in a rule, because {reason}"


def _message(template: str) -> Column:
    """Return a rule's message as a Column. Decimals are written without trailing zeros, and nulls as null."""
    parts = [
        F.coalesce(F.col(part).cast("variant").cast("string"), F.lit("null")) if place % 2 else F.lit(part)
        for place, part in enumerate(_COLUMN.split(template))
    ]
    return F.concat(*parts)
