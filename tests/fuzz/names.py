"""Names that a text field may have. None is empty, and all are different."""

from __future__ import annotations

from random import Random

_SEPARATORS = (
    *":-%/\\.,;|=&?#@+*~^!$'`\"<>()[]{}_ ",
    "a:b", "a-b", "a:b-c:d", "a::b", ":a", "a:", "--", "a b", " a", "a ", "  ",
    "x", "x:expiry", "x:stamps", "x:filled", "x:latest:x", "lakehouse:metrics_1m:row:x",
    "%", "%3A", "%253A", "%25", "%2D", "%7B%7D", "%3a", "50%", "%%", "a%2Db",
    "{x}", "{}", "}{", "{{x}}", "{x", "x}", "{x}:expiry",
    "environment=prod:metric=cpu", "=", "a=b",
)  # fmt: skip
_CONTROLS = (*map(chr, range(32)), "\x7f", "\x80", "\x9f", "a\0b", "\0", "a\nb", "\r\n", "\x1b[31mred\x1b[0m")
_LOOK_LIKE = (
    "null", "NULL", "None", "true", "false", "NaN", "Infinity", "-Infinity", "undefined", "default",
    "0", "-0", "00", "12", "-1.5", "1e5", "1e400", "0x1F", "1_000",
    "[]", "{}", '{"a":1}', '"', '""', '"quoted"', '"value":1}', '\\"value\\":1,', '","value":7,"product":"x',
    "\\", "\\\\", 'a\\', "a\\\"", "\\u0000", "\\N",
    "2026-01-01", "2026-01-01T00:00:00Z", "1900", "253370764799999",
    "..", "../../etc/passwd", "~", "C:\\nul", "CON", "__HIVE_DEFAULT_PARTITION__", "_delta_log",
    "'; DROP TABLE gold.metrics_1m; --", "' OR ''='", "$1", "${x}", "$(x)", "%s", "%n", "%d%d", "\\1",
    "(?=", ".*", "[a",
    "<img src=x onerror=alert(1)>", "<script>alert('x')</script>", "&lt;", "]]>", "{{ 7*7 }}", "{% x %}",
    "service_id", "event_time", "topic", "offset", "_typed", "_change_type", "_commit_version", "reasons",
)  # fmt: skip
_ALIKE = (
    "a", "A", "ä", "a\u0308", "é", "e\u0301", "ß", "ss", "ẞ", "ſ", "s", "K", "\u212a", "i", "İ", "ı", "I",
    "ﬁ", "fi", "\u00a0", "\u2003", "\u200b", "\u200d", "\ufeff", "\ufeffa", "\u202eabc", "\u2028", "\u2029",
    "\u0085", "検索", "größe", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "\U0001d552", "z" * 31, "z" * 32, "z" * 33,
    "z" * 32 + "\U0010ffff", "\U0010ffff" * 32, "\uffff" * 33, "\ufffd", "?", "a?",
)  # fmt: skip

PLANES = tuple(
    character
    for plane in range(17)
    for character in (chr((plane << 16) + 0x0101), chr((plane << 16) + 0xFFFD), chr((plane << 16) + 0xFFFF))
)
"""Three characters of each plane of Unicode, the last of them a noncharacter."""

LONG = tuple(text * (100_000 // len(text.encode())) for text in ("x", ":", "-", "%3A", "{}", "'", "検", "🚚"))
"""Names of 100 KB."""

NAMES = tuple(dict.fromkeys((*_SEPARATORS, *_CONTROLS, *_LOOK_LIKE, *_ALIKE, *PLANES)))
"""All other names."""


def composed(random: Random) -> str:
    """Return a name composed of pieces of others, or of characters from anywhere."""
    if random.random() < 0.5:
        return "".join(random.choice(NAMES) for _ in range(random.randint(2, 5)))
    return "".join(map(chr, _points(random, random.randint(1, 40))))


def _points(random: Random, count: int) -> list[int]:
    points = (random.randrange(0x110000) for _ in range(count))
    return [point if not 0xD800 <= point < 0xE000 else point - 0xD800 for point in points]
