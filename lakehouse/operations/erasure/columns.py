"""Search the columns of Arrow batches, and everything inside them: structs, lists, maps and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.operations.erasure.judging import COUNTED
from lakehouse.operations.erasure.searching import Found, Search, Values
from lakehouse.operations.erasure.subjects import Lines

_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_WITHOUT_IDS = pa.types.is_null, pa.types.is_boolean, pa.types.is_temporal


def search_column(array: pa.Array, path: str, search: Search) -> Iterator[tuple[str, Found]]:
    """Yield the path and the finds of a column, or of each column inside it.

    Text and bytes are searched. Numbers are compared with the ids that are whole numbers. Truth values and
    times are no ids. Raises TypeError for any other type.
    """
    kind = array.type
    if _is_bytes(kind):
        yield path, search.in_values(_values_of(array))
        return
    children = _children(array, path)
    if children is not None:
        for child, name in children:
            yield from search_column(child, name, search)
    elif _is_number(kind):
        if search.subjects.numbers and path.rpartition(".")[2] not in COUNTED:
            yield path, _equal(array, search)
    elif not any(is_kind(kind) for is_kind in _WITHOUT_IDS):
        raise TypeError(f"column {path} has the type {kind}, which is not searched")


def _children(array: pa.Array, path: str) -> list[tuple[pa.Array, str]] | None:
    """Return the arrays inside an array, with their paths, or None if there are none."""
    kind = array.type
    if pa.types.is_struct(kind):
        names = (f"{path}.{kind.field(number).name}" for number in range(kind.num_fields))
        return list(zip(array.flatten(), names, strict=True))
    if pa.types.is_map(kind):
        return [(_within(array, array.keys), f"{path}.key"), (_within(array, array.items), f"{path}.value")]
    if any(is_kind(kind) for is_kind in _LISTS):
        return [(array.flatten(), path)]
    inner = array.dictionary_decode() if pa.types.is_dictionary(kind) else getattr(array, "storage", None)
    return None if inner is None else [(inner, path)]


def _within(array: pa.Array, elements: pa.Array) -> pa.Array:
    """Return the elements of a map, which can be a part of a longer array."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return elements.slice(first, last - first)


def _is_bytes(kind: pa.DataType) -> bool:
    kinds = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return _is_string(kind) or any(is_kind(kind) for is_kind in kinds)


def _is_number(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_decimal, pa.types.is_floating))


def _is_string(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _values_of(array: pa.Array) -> Values:
    """Return an array's bytes, and the offset of each value. Nulls have no bytes."""
    is_text = True if _is_string(array.type) else None
    large = array.cast(pa.large_binary())
    if not len(large):
        return Values(b"", np.zeros(1, dtype=np.int64), is_text)
    _, places, data = large.buffers()
    offsets = np.frombuffer(places, np.int64, len(large) + 1, 8 * large.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    found = b"" if data is None else data.slice(first, last - first).to_pybytes()
    return Values(found, offsets - first, is_text)


def _equal(array: pa.Array, search: Search) -> Found:
    """Compare a column of numbers with the ids that are whole numbers."""
    found, numbers = Found(), search.subjects.numbers
    if array.type not in search.numbers_of:
        search.numbers_of[array.type] = _as_type(numbers, array.type)
    wanted = search.numbers_of[array.type]
    if wanted is not None and len(array):
        is_one = pc.fill_null(pc.is_in(array, value_set=wanted), fill_value=False)
        for at in pc.indices_nonzero(is_one).to_pylist():
            found.note(at, numbers[int(array[at].as_py())], is_certain=True)
    return found


def _as_type(numbers: Mapping[int, Lines], kind: pa.DataType) -> pa.Array | None:
    """Return the numbers that a column of this type can contain, or None if there are none."""
    fitting = [made for number in numbers if (made := _made(number, kind)) is not None]
    return pa.array(fitting, kind) if fitting else None


def _made(number: int, kind: pa.DataType) -> Any:
    """Return the number as a value of the type, or None if the type cannot contain exactly this number."""
    try:
        if pa.types.is_decimal(kind):
            made = pa.scalar(Decimal(number), kind).as_py()
        else:
            made = pa.scalar(float(number) if pa.types.is_floating(kind) else number, kind).as_py()
        return made if int(made) == number else None
    except (OverflowError, pa.ArrowInvalid):
        return None
