"""Read a table `[streams.NAME]`. A single error names all unknown and missing keys and all wrong values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from lakehouse.common.errors import SettingsError
from lakehouse.common.nearest import nearest, no_such, shown
from lakehouse.streams.declared.keys import KINDS, Changes, InPython, OfKind

_SHOULD = re.compile(r"^[\w ]+ should (?:be|have)(?:( an?) valid)?")
_Keys = TypeVar("_Keys", bound=BaseModel)


def read_table(name: str, given: Mapping[str, Any], known: Collection[str] = ()) -> Changes | OfKind:
    """Return the keys in `[streams.NAME]`: for a kind, a stream in Python, or changes to a known stream.

    If keys are wrong, raises a SettingsError that names each of them, such as streams.payments.lenght, and
    suggests the nearest known keys.
    """
    where = f"streams.{name}"
    if "kind" in given and "python" in given:
        raise SettingsError(f"{where}: kind and python are mutually exclusive; remove one of them")
    if "kind" in given:
        kind = given["kind"]
        if not isinstance(kind, str) or kind not in KINDS:
            raise SettingsError(f"{where}.kind: {no_such('kind', str(kind), KINDS)}")
        return _checked(KINDS[kind], where, given)
    if "python" in given:
        return _checked(InPython, where, given)
    if name in known:
        return _checked(Changes, where, given)
    near = f"{no_such('stream', name, known)} " if nearest(name, known) else ""
    raise SettingsError(f"{where}: {near}your own stream needs kind ({', '.join(KINDS)}) or python")


def _checked(model: type[_Keys], where: str, given: Mapping[str, Any]) -> _Keys:
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        wrong = (_said(model, where, item) for item in error.errors(include_url=False))
        raise SettingsError("; ".join(wrong)) from None


def _said(model: type[BaseModel], where: str, item: Mapping[str, Any]) -> str:
    """Return the message for one wrong key: its full name, its value, and what is expected."""
    place = item["loc"]
    key = where + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in place)
    if item["type"] == "missing":
        return f"{key} is missing"
    if item["type"] == "extra_forbidden":
        *within, name = place
        return f"{key}: {no_such('key', str(name), _keys_at(model, within))}"
    if item["type"] == "model_type":
        return f"{key}: expected a table"
    value = item["input"]
    is_shown = isinstance(value, str | int | float) and place
    said = f"{key} = {shown(str(value)) if isinstance(value, str) else value}" if is_shown else key
    if item["type"] == "value_error":
        return f"{said}: {item['ctx']['error']}"
    return f"{said}: {_SHOULD.sub(_expected, item['msg']).replace('dictionary', 'table')}"


def _expected(found: re.Match[str]) -> str:
    return f"expected{found[1] or ''}"


def _keys_at(model: type[BaseModel], place: Sequence[str | int]) -> Iterator[str]:
    """Yield the keys that are allowed in the table at this location in a model."""
    at: type[BaseModel] | None = model
    for name in place:
        if at is not None and isinstance(name, str) and name in at.model_fields:
            at = _table_in(at.model_fields[name].annotation)
    yield from () if at is None else at.model_fields


def _table_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model for the tables in a type such as `list[Annotated[FieldKeys, …]]`."""
    if get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_table_in(one) for one in get_args(annotation) if not isinstance(one, BaseModel))
    return next((one for one in found if one is not None), None)
