"""Numbers of the API with their ranges, as types: what is outside is refused when it is decoded."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

U8 = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64_MAX = 2**64 - 1
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""Its upper end is checked with `check_u64`: msgspec knows bounds of 63 bits."""


def _pattern_up_to(limit: int) -> str:
    """The numbers up to the limit as a regular expression, so that the OpenAPI document refuses what the server does.

    One alternative for each digit of the limit: the digits before it, a smaller digit in its place, and any after it.
    """
    digits = str(limit)
    smaller = [
        f"{digits[:place]}[0-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if digit != "0"
    ]
    return f"^([0-9]{{1,{len(digits) - 1}}}|{'|'.join(smaller)}|{digits})$"


NumberText = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _pattern_up_to(U64_MAX)})]
"""A number as text, for clients that cannot write every number of 64 bits as a number. `number_of` checks it: this
pattern would make a long error message."""


def number_of(given: int | str | None) -> int | None:
    """Raises a ValueError for a text that is not a number."""
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        raise ValueError(f"{given[:40]!r} is not a number")
    return None if given is None else int(given[:40]) if isinstance(given, str) else given


def check_u64(*numbers: int | None) -> None:
    """For `__post_init__`, where a ValueError is what an invalid value is."""
    for number in numbers:
        if number is not None and number > U64_MAX:
            raise ValueError(f"{number} is more than {U64_MAX}")


def f32(number: float) -> float:
    """Returns the number with the fewest digits that is the same f32. It is what Rust writes for an f32; Iggy's Web UI
    takes a number of more than 15 characters for an integer."""
    return float(str(np.float32(number)))
