"""Bounds the result of a tool, in entries and in bytes, and says what was left out and how to get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from whippet.app.mcp.work import Limits

_encode = msgspec.json.encode
FRAME_BYTES = 512
"""For what surrounds a list, apart from the thing that has it."""


class Listing(NamedTuple):
    """A list of things, which may be long. It is shown as a member of `of`, if a thing has the list."""

    name: str
    """The member in the result."""
    entries: Sequence[Any]
    skip: int
    """How many of the entries the caller has already."""
    more: Callable[[int], str]
    """Returns how to get the entries after so many."""
    of: msgspec.Struct | None = None
    is_whole: bool = True
    """False for a part of something longer, as messages are: their number says nothing about the rest."""
    is_capped: bool = False
    """Whether there may be more than these, because fewer were asked for than the caller wanted."""


def skipping(count: int) -> str:
    return f"call the tool again with skip={count}"


def render(result: Any, limits: Limits) -> bytes:
    """Returns the JSON of a result."""
    return _listed(result, limits) if isinstance(result, Listing) else _encode(result)


def _listed(listing: Listing, limits: Limits) -> bytes:
    around = {} if listing.of is None else msgspec.structs.asdict(listing.of)
    around.pop(listing.name, None)
    total, skip = len(listing.entries), min(listing.skip, len(listing.entries))
    room = limits.response_bytes - len(_encode(around)) - FRAME_BYTES
    shown: list[msgspec.Raw] = []
    for entry in listing.entries[skip : skip + limits.items]:
        encoded = _encode(entry)
        if shown and len(encoded) >= room:
            break
        if len(encoded) >= room:
            # Not even one: it is named, so that the rest can be read after it.
            encoded = _encode({"left_out": f"an entry of {len(encoded)} bytes, which exceeds the limit of a response"})
        room -= len(encoded) + 1
        shown.append(msgspec.Raw(encoded))
    result: dict[str, Any] = {**around, listing.name: shown}
    if listing.is_whole:
        result["total"] = total
    if (left := total - skip - len(shown)) or (listing.is_capped and shown):
        counted = {"count": left} if listing.is_whole else {}
        result["left_out"] = {**counted, "more": listing.more(skip + len(shown))}
    return _encode(result)
