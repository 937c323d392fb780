"""How users are known to the rest of the server: values that sessions, commands and access control share."""

from __future__ import annotations

import enum
from typing import NamedTuple


class UserStatus(enum.IntEnum):
    ACTIVE = 1
    INACTIVE = 2


class Login(NamedTuple):
    """Which user a session or an access token acts as, and since when.

    A user's number is given to somebody else after a deletion; the mark is not. The epoch is raised whenever all
    sessions of the user end, so a login from before that is void wherever it is kept.
    """

    mark: str
    epoch: int
