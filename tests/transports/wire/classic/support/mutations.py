"""Valid bytes with a few changes."""

from __future__ import annotations

import struct

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, octets: bytes) -> bytes:
    """Changes, removes and inserts some bytes."""
    changed = bytearray(octets)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.sampled_from(["set", "cut", "insert", "number"])):
            case "set":
                changed[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del changed[at : at + draw(st.integers(1, 8))]
            case "insert":
                changed[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "number":
                changed[at : at + 4] = struct.pack("<I", draw(st.sampled_from([0, 1, 2**16, 2**31, 2**32 - 1])))
    return bytes(changed)
