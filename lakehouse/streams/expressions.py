"""SQL in a stream's declaration: expressions on the columns of one row, with the same result at any time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.common.errors import SettingsError, first_line
from lakehouse.common.nearest import shown

# Strings, quoted names and comments. They can contain any words.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*(\s*\()?")
_CLOCK, _RANDOM, _USER = "it depends on the clock", "it is random", "it depends on the session"
_MOMENT = re.compile(
    r"\s*(now|today|tomorrow|yesterday)\s*(z|utc?|gmt|[+-][\d:]+|\w+/\S+)?\s*", re.IGNORECASE
)
"""Text that Spark casts to a time, also with a time zone."""
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("now", "curdate", "unix_timestamp", "current_timezone"), _CLOCK),
    **dict.fromkeys(("current_date", "current_time", "current_timestamp", "localtimestamp"), _CLOCK),
    **dict.fromkeys(("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle"), _RANDOM),
    "aes_encrypt": "its result is random",
    **dict.fromkeys(("current_user", "session_user", "user", "current_role"), _USER),
    **dict.fromkeys(("current_catalog", "current_database", "current_schema", "version"), _USER),
    **dict.fromkeys(("raise_error", "assert_true"), "it ends the run"),
    "over": "it reads other rows",
    "select": "it reads other rows",
}
"""Functions and keywords that Spark accepts in an expression but a stream must not contain, with reasons."""
_WITHOUT_BRACKETS = {
    *("current_date", "current_time", "current_timestamp", "localtimestamp"),
    *("current_user", "session_user", "user", "current_catalog", "current_database", "select"),
}


def expression(sql: str, key: str) -> Column:
    """Return an SQL expression as a Column. `key` names its setting in the SettingsError for a syntax error.

    Requires a Spark session.
    """
    try:
        return F.expr(sql)
    except PySparkException as error:
        raise SettingsError(f"{key} = {shown(sql)} is not SQL: {first_line(error)}") from None


def refused_words(sql: str, columns: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each part of an expression that is not allowed, with the reason. Requires no Spark session.

    `columns` are the row's columns.
    """
    names = {name.lower() for name in columns}
    for found in _WORD.finditer(_QUOTED.sub(" '' ", sql)):
        word = found[0].removesuffix(found[1] or "").lower()
        is_call = found[1] is not None
        if word in _REFUSED and (is_call or (word in _WITHOUT_BRACKETS and word not in names)):
            yield word, _REFUSED[word]
    for quoted in _QUOTED.findall(sql):
        is_text = quoted[0] in "'\""  # not a column in backticks
        if is_text and _MOMENT.fullmatch(quoted[1:-1]):
            yield quoted, _CLOCK
