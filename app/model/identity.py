"""Values that identify users in sessions, commands and access control."""

from __future__ import annotations

import enum
from typing import NamedTuple


class UserStatus(enum.IntEnum):
    ACTIVE = 1
    INACTIVE = 2


class Login(NamedTuple):
    """The user that a session or an access token acts as, and the epoch of its beginning.

    A user's number is reused after a deletion; the mark is not. The epoch is raised when all sessions of the user end,
    which voids all logins from before, wherever they are kept.
    """

    mark: str
    epoch: int
