"""Validation rules that are declared as Spark SQL conditions over a row's columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.common.errors import SettingsError, first_line
from lakehouse.common.nearest import no_such, shown
from lakehouse.streams.declared.values import Name, Table, matching
from lakehouse.streams.definition import Rule

_COLUMN = re.compile(r"\{(\w+)\}")
# Strings, quoted names and comments. They can contain any words.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*(\s*\()?")
_CLOCK, _RANDOM, _USER = "it depends on the clock", "it is random", "it depends on the session"
_MOMENTS = {"now", "today", "tomorrow", "yesterday"}
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("now", "curdate", "unix_timestamp", "current_timezone"), _CLOCK),
    **dict.fromkeys(("current_date", "current_time", "current_timestamp", "localtimestamp"), _CLOCK),
    **dict.fromkeys(("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle"), _RANDOM),
    **dict.fromkeys(("current_user", "session_user", "user", "current_role"), _USER),
    **dict.fromkeys(("current_catalog", "current_database", "current_schema", "version"), _USER),
    **dict.fromkeys(("raise_error", "assert_true"), "it ends the run"),
    "over": "it reads other rows",
    "select": "it reads other rows",
}
"""Functions and keywords that Spark accepts in a condition but rules must not contain, with reasons."""
_WITHOUT_BRACKETS = {
    *("current_date", "current_time", "current_timestamp", "localtimestamp"),
    *("current_user", "session_user", "user", "current_catalog", "current_database", "select"),
}


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
        try:
            violated = F.expr(rule.fails_when)
        except PySparkException as error:
            said = f"{key} = {shown(rule.fails_when)} is not SQL"
            raise SettingsError(f"{said}: {first_line(error)}") from None
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
        for word, reason in _refused_words(rule.fails_when, columns):
            yield f"{at}.fails_when: {word} is not allowed in a rule, because {reason}"


def _refused_words(condition: str, columns: Collection[str]) -> Iterator[tuple[str, str]]:
    names = {name.lower() for name in columns}
    for found in _WORD.finditer(_QUOTED.sub(" '' ", condition)):
        word = found[0].removesuffix(found[1] or "").lower()
        is_call = found[1] is not None
        if word in _REFUSED and (is_call or (word in _WITHOUT_BRACKETS and word not in names)):
            yield word, _REFUSED[word]
    for quoted in _QUOTED.findall(condition):
        is_text = quoted[0] in "'\""  # not a column in backticks
        if is_text and quoted[1:-1].strip().lower() in _MOMENTS:  # Spark would cast it to a time
            yield quoted, _CLOCK


def _message(template: str) -> Column:
    """Return a rule's message as a Column. Decimals are written without trailing zeros, and nulls as null."""
    parts = [
        F.coalesce(F.col(part).cast("variant").cast("string"), F.lit("null")) if place % 2 else F.lit(part)
        for place, part in enumerate(_COLUMN.split(template))
    ]
    return F.concat(*parts)
