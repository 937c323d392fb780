"""The supported versions of the binary protocol, and the tables of each. The classic protocol has no versions.

A client names its version when it logs in, and is served with the same tables from then on. To support another
version, add a row: see "Adding a generation of the binary protocol" in ARCHITECTURE.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from whippet.app.commands.requests import Request
from whippet.app.version import MODERN_IGGY_VERSION
from whippet.storage.batch import Readable
from whippet.transports.wire.modern import requests as modern_requests
from whippet.transports.wire.modern import responses as modern_responses
from whippet.transports.wire.modern.registration import packed
from whippet.transports.wire.next import requests as next_requests
from whippet.transports.wire.next import responses as next_responses


class Generation(NamedTuple):
    oldest: int
    """The first version of the generation, which ends where the next one begins."""
    iggy_version: str
    """The server version that is reported to clients."""
    decode: Callable[[int, memoryview], Request]
    """Decodes a request from its code and its body."""
    encode: Callable[[int, Any], list[Readable]]
    """Encodes the body of the response to a code."""
    has_resumable_sessions: bool
    """A session outlives its connection, and may have many requests in flight."""


OF_0_11 = Generation(
    0, MODERN_IGGY_VERSION, modern_requests.decode, modern_responses.encode, has_resumable_sessions=False
)
OF_0_12_0 = Generation(
    packed(0, 12, 0),
    MODERN_IGGY_VERSION,
    next_requests.decode,
    next_responses.OF_0_12_0.encode,
    has_resumable_sessions=True,
)
OF_0_12_2 = OF_0_12_0._replace(oldest=packed(0, 12, 2), encode=next_responses.OF_0_12_2.encode)
GENERATIONS = (OF_0_11, OF_0_12_0, OF_0_12_2)
"""The oldest first. A version newer than the newest that is known uses the last row, if it is admitted."""


def of(version: int) -> Generation:
    found: Generation = next(one for one in reversed(GENERATIONS) if one.oldest <= version)
    return found


def text(version: int) -> str:
    """Returns a version as people write it."""
    return f"{version >> 20}.{version >> 10 & 1023}.{version & 1023}"
