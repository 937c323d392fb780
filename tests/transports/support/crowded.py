"""A budget that is used up: a client that needs more than a little has to wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from whippet.transports.admission.budget import FREE_BYTES, Budget, Claim


@contextlib.contextmanager
def crowded(room: Budget) -> Iterator[None]:
    """One claim holds all of it, and another one exceeds the limit already."""
    blocking, beyond = Claim(room.account("blocking")), Claim(room.account("beyond"))
    blocking.count(room.limit)
    assert beyond.reserve(FREE_BYTES + 1) == FREE_BYTES + 1
    yield
    blocking.close()
    beyond.close()


def waiting(room: Budget) -> int:
    """How many claims wait."""
    return sum(len(account.waiting) for account in room.waiting)
