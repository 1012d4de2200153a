"""Translate the Python code of a new stream to the table `[streams.NAME]` of the configuration file."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_INDENT = "    "
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_FIELD = ("name", "column", "type")
_PROPOSED = re.compile(r'# (unique_by|sequence_by|deletion_key|deleted_if)=(".*"),')
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_FOUR_DIGITS = 0xFFFF


def table_text(name: str, kind: str, module: str) -> str:
    """Return the TOML for the stream that a module creates by calling its kind."""
    comments = _Comments(module)
    calls = (node for node in ast.walk(ast.parse(module)) if isinstance(node, ast.Call))
    call = next(node for node in calls if isinstance(node.func, ast.Name) and node.func.id == kind)
    lines, tables = [f"[streams.{name}]", f"kind = {_string(kind)}"], list[str]()
    _, *positional = call.args
    for argument in positional:
        if isinstance(argument, ast.Call):
            lines += _records(argument, comments)
        else:
            tables += _tables(f"streams.{name}.sides", argument, comments)
    for keyword in call.keywords:
        if keyword.arg in ("windows", "tables"):
            tables += _tables(f"streams.{name}.{keyword.arg}", keyword.value, comments)
        else:
            lines += _pair(str(keyword.arg), keyword.value, comments)
    return "".join(f"{line}\n" for line in [*lines, *tables])


class _Comments:
    """The comments in a module, both on separate lines and after code."""

    def __init__(self, module: str) -> None:
        self._alone, self._after = dict[int, str](), dict[int, str]()
        for token in tokenize.generate_tokens(io.StringIO(module).readline):
            if token.type == tokenize.COMMENT:
                kept = self._after if token.line[: token.start[1]].strip() else self._alone
                kept[token.start[0]] = _comment(token.string)

    def above(self, node: ast.expr) -> list[str]:
        """Return the comments on the lines directly above an expression."""
        first = node.lineno
        while first - 1 in self._alone:
            first -= 1
        return [self._alone[line] for line in range(first, node.lineno)]

    def below(self, node: ast.expr) -> list[str]:
        """Return the comments on the lines directly below an expression."""
        last = node.end_lineno or node.lineno
        found = []
        while last + 1 in self._alone:
            last += 1
            found.append(self._alone[last])
        return found

    def after(self, node: ast.expr) -> str:
        """Return the comment on an expression's last line, including the space before it."""
        found = self._after.get(node.end_lineno or node.lineno)
        return "" if found is None else f"  {found}"


def _comment(comment: str) -> str:
    """Return a comment. If it proposes an argument, it then proposes a key in TOML."""
    found = _PROPOSED.fullmatch(comment)
    return comment if found is None else f"# {found[1]} = {_string(ast.literal_eval(found[2]))}"


def _records(call: ast.Call, comments: _Comments) -> Iterator[str]:
    (topic,) = call.args
    yield f"topic = {_value(topic)}{comments.after(topic)}"
    if not call.keywords:  # otherwise, the comments are above the first keyword
        yield from comments.below(topic)
    for keyword in call.keywords:
        yield from _pair("fields" if keyword.arg == "also" else str(keyword.arg), keyword.value, comments)


def _pair(key: str, value: ast.expr, comments: _Comments) -> Iterator[str]:
    yield from comments.above(value)
    if key == "fields" and isinstance(value, ast.Tuple):
        yield f"{key} = ["
        for one in value.elts:
            yield f"{_INDENT}{_value(one)},{comments.after(one)}"
        yield "]"
    else:
        yield f"{key} = {_value(value)}{comments.after(value)}"


def _tables(path: str, value: ast.expr, comments: _Comments) -> Iterator[str]:
    """Yield an array of tables, for `Windows`, for `Aggregates`, or for the sides of a call."""
    for one in value.elts if isinstance(value, ast.Tuple) else [value]:
        yield from ("", f"[[{path}]]")
        for keyword in one.keywords if isinstance(one, ast.Call) else []:
            if keyword.arg == "records" and isinstance(keyword.value, ast.Call):
                yield from _records(keyword.value, comments)
            else:
                yield from _pair(str(keyword.arg), keyword.value, comments)


def _value(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=value):
            return _string(value) if isinstance(value, str) else str(value).lower()
        case ast.Tuple(elts=several):
            return f"[{', '.join(map(_value, several))}]"
        case ast.Dict(keys=keys, values=values):
            pairs = (f"{_key(key)} = {_value(value)}" for key, value in zip(keys, values, strict=True) if key)
            return f"{{ {', '.join(pairs)} }}"
        case ast.Attribute(attr=name):  # FieldType.STRING
            return _string(name.lower())
        case ast.Call(func=ast.Name(id="Field"), args=arguments, keywords=keywords):
            named = zip(_FIELD, arguments, strict=True)
            every = [*named, *((str(one.arg), one.value) for one in keywords)]
            return f"{{ {', '.join(f'{key} = {_value(value)}' for key, value in every)} }}"
        case ast.Call(args=[only]):  # Decimal(1000)
            return _value(only)
    raise ValueError(f"{ast.unparse(node)} cannot be written in TOML")


def _key(node: ast.expr) -> str:
    """Return a key of an inline table, without quotes if possible."""
    written = _value(node)
    return written[1:-1] if _BARE.fullmatch(written[1:-1]) else written


def _string(value: str) -> str:
    return f'"{"".join(map(_escape, value))}"'


def _escape(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None or character.isprintable():
        return known or character
    code = ord(character)
    return f"\\u{code:04x}" if code <= _FOUR_DIGITS else f"\\U{code:08x}"
