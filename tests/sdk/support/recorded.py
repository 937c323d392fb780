"""Exchanges that were recorded between an official client and this server, and their replay.

A file has a line for each run of bytes, in hexadecimal, in the order in which they passed; `connection` begins another
connection.

    > bytes of the client
    < bytes of the server
    ~ bytes of the server, of which only the header has to come back: the rest depends on the machine

`(n)` stands for n zeros, and `??` for a byte that differs between replays: times, random numbers, ports.
"""

from __future__ import annotations

import re
import socket
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

RECORDED = Path(__file__).parents[1] / "recorded"
ANY = 0x100
"""A byte that may have any value."""
HEADER_BYTES, LENGTH_AT = 256, 48
"""The header of a response since 0.9, and where it has the length of everything."""
SECONDS_MAX = 30
ZEROS_MIN = 4
"""Fewer zeros in a row are written out."""


class Run(NamedTuple):
    kind: str
    octets: list[int]


def connections(text: str) -> list[list[Run]]:
    found: list[list[Run]] = []
    for line in text.splitlines():
        if line == "connection":
            found.append([])
        elif line[:2] in {"> ", "< ", "~ "}:
            found[-1].append(Run(line[0], decode(line[2:])))
    return found


def decode(text: str) -> list[int]:
    octets: list[int] = []
    for zeros, unknown, value in re.findall(r"\((\d+)\)|(\?\?)|([0-9a-f]{2})", text):
        octets += [0] * int(zeros) if zeros else [ANY] if unknown else [int(value, 16)]
    return octets


def encode(octets: list[int]) -> str:
    parts: list[str] = []
    for value, run in groupby(octets):
        count = len(list(run))
        if value == 0 and count >= ZEROS_MIN:
            parts.append(f"({count})")
        else:
            parts.append(("??" if value == ANY else f"{value:02x}") * count)
    return "".join(parts)


def replayed(connection: list[Run], port: int) -> list[list[int]]:
    """Returns what the server sends instead of each recorded run of its bytes."""
    found = []
    with socket.create_connection(("127.0.0.1", port), SECONDS_MAX) as link:
        for kind, octets in connection:
            if kind == ">":
                link.sendall(bytes(octets))
            elif kind == "<":
                found.append(list(_exactly(link, len(octets))))
            else:
                head = _exactly(link, HEADER_BYTES)
                found.append(list(head))
                _exactly(link, int.from_bytes(head[LENGTH_AT : LENGTH_AT + 4], "little") - HEADER_BYTES)
    return found


def _exactly(link: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = link.recv(size - len(found))
        if not piece:
            break
        found += piece
    return bytes(found)
