"""Search one file: Parquet decoded and as it stands, text in all its readings, anything else byte by byte.

Files are read in parts, so a file's size does not matter. The pages of a Parquet file are compressed. Every
value in them is decoded and searched. They are also searched as they stand, for ids that do not occur in them
by chance. What follows them, such as statistics and the footer, is not compressed. It is searched like any
data that is not text: byte by byte, and without the escapes of text inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.operations.erasure.columns import search_column
from lakehouse.operations.erasure.judging import SURE_BYTES, looks_textual
from lakehouse.operations.erasure.searching import Found, Hits, Search, Values
from lakehouse.storage.files import Files, Stored

RAW, LINES = "its bytes", "its lines"
_WINDOW = 4 * 1024 * 1024
_BATCH_BYTES = 16 * 1024 * 1024
_MOST_ROWS = 65_536
_MAGIC = b"PAR1"
_HIDDEN = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\x04\x22\x4d\x18": "lz4",
    b"LZ4Block": "lz4",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"\x78\x9c": "zlib",
    b"PARE": "encrypted Parquet",
    b"Obj\x01": "Avro container",
    b"ORC": "ORC",
}
"""Formats whose content is compressed or encrypted, by their first bytes."""


class HiddenError(OSError):
    """A compressed or encrypted file, which cannot be searched."""


def search_file(files: Files, file: Stored, search: Search) -> Iterator[tuple[str, Hits]]:
    """Yield the finds in each part of a file. Raises OSError or an Arrow error if it cannot be read."""
    with files.open(file.path) as source:
        head = bytes(source.read(_WINDOW))
        for magic, name in _HIDDEN.items():
            if head.startswith(magic):
                raise HiddenError(f"it is compressed or encrypted ({name}), and is not searched")
        if head.startswith(_MAGIC):
            yield from _parquet(source, search)
        elif looks_textual(head, is_whole=len(head) < _WINDOW):
            yield LINES, _text(head, source, search)
        else:
            source.seek(0)
            yield RAW, _windows(source, None, search)


def _parquet(source: pa.NativeFile, search: Search) -> Iterator[tuple[str, Hits]]:
    source.seek(0)
    file = pq.ParquetFile(source, pre_buffer=False)
    found = Hits()
    columns = dict[str, Hits]()
    for batch in file.iter_batches(_batch_rows(file.metadata), use_threads=False):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for path, values in search_column(column, name, search):
                if values:
                    columns.setdefault(path, Hits()).add(values)
                    found.add(values)
    yield from columns.items()
    end_of_pages = _end_of_pages(file.metadata)
    source.seek(0)
    raw = _windows(source, end_of_pages, search, SURE_BYTES)
    source.seek(end_of_pages)
    raw.update(_windows(source, None, search))
    for counts in (raw.certain, raw.uncertain):
        for line in found.lines & counts.keys():
            del counts[line]  # the columns say where
    yield RAW, raw


def _batch_rows(metadata: Any) -> int:
    """Return how many rows are read at once, by the greatest mean size in a row group."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    row_bytes = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1)
    return max(1, min(_MOST_ROWS, int(_BATCH_BYTES / max(row_bytes, 1))))


def _end_of_pages(metadata: Any) -> int:
    """Return the offset of the first byte after all pages. Before it are only pages and their headers."""
    ends = [0]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in (group.column(place) for place in range(group.num_columns)):
            pages = [column.data_page_offset, column.dictionary_page_offset]
            ends.append(min(one for one in pages if one is not None) + column.total_compressed_size)
    return max(ends)


def _windows(source: pa.NativeFile, end: int | None, search: Search, least: int = 0) -> Hits:
    """Search bytes from the current place to `end`, or to the file's end, in windows that overlap."""
    hits, overlap = Hits(), _overlap(search)
    kept, is_first = b"", True
    left = source.size() - source.tell() if end is None else end - source.tell()
    while left > 0:
        read = bytes(source.read(min(_WINDOW, left)))
        left = left - len(read) if read else 0
        window = kept + read
        hits.add(search.in_window(window, is_first=is_first, is_last=left == 0, least=least))
        kept, is_first = window[-overlap:], False
    return hits


def _overlap(search: Search) -> int:
    """Return how many bytes two parts share. An escape is up to sixteen times as long as its byte."""
    return 16 * search.subjects.matcher.longest + 64


def _text(head: bytes, source: pa.NativeFile, search: Search) -> Hits:
    """Search a text line by line. A line that is too long for memory is cut where two parts overlap."""
    hits, rest, read = Hits(), b"", head
    overlap = _overlap(search)
    while read:
        data = rest + read
        read = bytes(source.read(_WINDOW))
        cut = data.rfind(b"\n") + 1 if read else len(data)
        if cut == 0 and len(data) < _BATCH_BYTES:
            rest = data
            continue
        hits.add(_lines(data[:cut] or data, search))
        rest = data[cut:] if cut else data[-overlap:]
    return hits


def _lines(data: bytes, search: Search) -> Found:
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")).astype(np.int64) + 1
    offsets = np.unique(np.concatenate(([0], ends, [len(data)]))).astype(np.int64)
    return search.in_values(Values(data, offsets, is_text=True))
