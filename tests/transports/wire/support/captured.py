"""Frames as the protocol pages write them: of a header only the bytes that are not 0, each run after its position;
`(0*n)` in a body is n times 0.
"""

from __future__ import annotations

import re

HEADER_BYTES = 256


def octets_of(header: str, body: str) -> bytes:
    """The whole frame."""
    found = bytearray(HEADER_BYTES)
    for run in header.split():
        at, digits = run.split(":")
        run_octets = bytes.fromhex(digits)
        found[int(at) : int(at) + len(run_octets)] = run_octets
    return bytes(found) + written_out(body)


def written_out(digits: str) -> bytes:
    return bytes.fromhex(re.sub(r"\(0\*(\d+)\)", lambda zeros: "00" * int(zeros[1]), digits))
