"""Payloads as typed columns: what `valueFormat` asks for, and `_corrupt` for what does not parse.

All payloads of a page are parsed together. Where that fails, halves of them are, so that one that is broken costs its
neighbours nothing but time, and is judged by the same parser. Each payload is put into an object of its own,
`{"v":...}`, and must end in the state in which it began: it can neither swallow its neighbour nor pass for two. One
that goes on behind its end as members of that object do, `{...},"x":1`, is told by what it would be in a list.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from pyspark_whippet.batches import Array

CORRUPT = "_corrupt"
"""The payload as it is, where it does not parse; else null."""
_BEFORE, _AFTER, _NOTHING = b'{"v":', b"}\n", b'{"v":null}\n'
_MAY_GO_ON = re.compile(rb'}\s*,\s*"')


def parse_strings(values: Any) -> tuple[Any, Array]:
    """Strings, null where it is no UTF-8; and where that is."""
    try:
        return values.cast(pa.string()), np.zeros(len(values), dtype=bool)
    except pa.ArrowInvalid:
        found = [_text(value) for value in values.to_pylist()]
        return pa.array(found, pa.string()), np.array([each is None for each in found])


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def parse_json(values: Any, kind: Any) -> tuple[Any, Array]:
    """JSON objects as structs of this kind, null where there is no such object; and where that is.

    A missing member is null, an unknown one is ignored, and one of another type makes the whole payload corrupt.
    """
    _, is_no_text = parse_strings(values)
    lines = [b"".join((_BEFORE, value, _AFTER)) for value in values.to_pylist()]
    for place in np.flatnonzero(is_no_text).tolist():
        # The parser does not look into strings.
        lines[place] = _NOTHING
    parts = _parsed(lines, kind)
    whole = pa.concat_arrays(parts) if parts else pa.nulls(0, kind)
    return whole, np.asarray(whole.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _parsed(lines: list[bytes], kind: Any) -> list[Any]:
    if not lines:
        return []
    data = b"".join(lines)
    found = _read(data, kind, len(lines))
    if found is not None and _MAY_GO_ON.search(data):
        listed = [b"".join((_BEFORE, b"[", line[len(_BEFORE) : -len(_AFTER)], b"]", _AFTER)) for line in lines]
        found = found if _read(b"".join(listed), pa.list_(pa.struct([])), len(lines)) is not None else None
    if found is not None:
        return found
    if len(lines) == 1:
        return [pa.nulls(1, kind)]
    half = len(lines) // 2
    return _parsed(lines[:half], kind) + _parsed(lines[half:], kind)


def _read(data: bytes, kind: Any, rows: int) -> list[Any] | None:
    """None if it cannot be read as so many rows."""
    try:
        table = pa.json.read_json(
            pa.BufferReader(data),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema([("v", kind)]), newlines_in_values=True, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    return list(table.column("v").chunks) if table.num_rows == rows else None


def corrupt_payloads(values: Any, where: Array) -> Any:
    """The payloads of those places, null elsewhere."""
    if not where.any():
        return pa.nulls(len(values), pa.binary())
    return pa.array(values.to_pylist(), pa.binary(), mask=~where)
