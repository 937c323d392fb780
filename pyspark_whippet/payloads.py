"""Parses payloads to typed columns as `valueFormat` says, with `_corrupt` for those that do not parse.

All payloads of a page are parsed together. If that fails, the halves are parsed, and so on: a broken payload costs its
neighbours only time, and all are judged by the same parser. Each payload is wrapped in an object of its own,
`{"v":...}`, and the parser must end in the state in which it began, so a payload can neither swallow the next one nor
pass for two. A payload that continues after its end with members of that object, `{...},"x":1`, is found by parsing it
as an element of a list as well.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from pyspark_whippet.batches import Array

CORRUPT = "_corrupt"
"""The payload itself if it does not parse, else null."""
_BEFORE, _AFTER, _NOTHING = b'{"v":', b"}\n", b'{"v":null}\n'
_MAY_GO_ON = re.compile(rb'}\s*,\s*"')


def parse_strings(values: Any) -> tuple[Any, Array]:
    """Returns strings, null where a payload is not UTF-8, and a mask of those."""
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
    """Returns JSON objects as structs of this type, null where a payload is not such an object, and a mask of those.

    A missing member is null, an unknown one is ignored, and one of another type makes the whole payload corrupt.
    """
    _, is_no_text = parse_strings(values)
    lines = [b"".join((_BEFORE, value, _AFTER)) for value in values.to_pylist()]
    for place in np.flatnonzero(is_no_text).tolist():
        # The JSON parser does not check the encoding of strings.
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
    """Returns None if the data does not parse to exactly this many rows."""
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
    """Returns the payloads where the mask is set, and null elsewhere."""
    if not where.any():
        return pa.nulls(len(values), pa.binary())
    return pa.array(values.to_pylist(), pa.binary(), mask=~where)
