"""A room that is full: whoever needs more than a little has to wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from whippet.transports.admission.room import FREE_BYTES, Claim, Room


@contextlib.contextmanager
def crowded(room: Room) -> Iterator[None]:
    """Somebody holds all of it, and somebody else is beyond the limit already."""
    blocking, beyond = Claim(room.account("blocking")), Claim(room.account("beyond"))
    blocking.count(room.limit)
    assert beyond.take(FREE_BYTES + 1) == FREE_BYTES + 1
    yield
    blocking.close()
    beyond.close()


def waiting(room: Room) -> int:
    """How many wait."""
    return sum(len(account.waiting) for account in room.waiting)
