"""Numbers of the API with their ranges, as types: what is outside is refused when it is decoded."""

from __future__ import annotations

from typing import Annotated

import msgspec

U8 = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U64_MAX = 2**64 - 1
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""Its upper end is checked with `check_u64`: msgspec knows bounds of 63 bits."""


def check_u64(*numbers: int | None) -> None:
    """For `__post_init__`, where a ValueError is what an invalid value is."""
    for number in numbers:
        if number is not None and number > U64_MAX:
            raise ValueError(f"{number} is more than {U64_MAX}")
