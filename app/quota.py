"""Quotas for what holds a place for long: waiting polls, tails, subscriptions.

One limit is for all users together, one for each user. Without the second one, one user could take all places.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from whippet.app.model.identity import Login


class Limit(NamedTuple):
    """A limit and the key of its setting."""

    key: str
    limit: int


class Quota:
    def __init__(self, what: str, in_all: Limit, per_user: Limit, refusal: Callable[[str], Exception]) -> None:
        """`what` is the plural noun in error sentences; `refusal` makes an error from a sentence."""
        self._what = what
        self._refusal = refusal
        self._in_all = in_all
        self._per_user = per_user
        self._taken: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def users_count(self) -> int:
        """Users who hold at least one place."""
        return len(self._taken)

    @contextlib.contextmanager
    def reserved_by(self, login: Login) -> Iterator[None]:
        self.reserve(login)
        try:
            yield
        finally:
            self.release(login)

    def reserve(self, login: Login, count: int = 1) -> None:
        """Takes places, or refuses if fewer are left, for this user or in total."""
        if self._count + count > self._in_all.limit:
            raise self._refused("The server has", self._in_all)
        if self._taken.get(login.mark, 0) + count > self._per_user.limit:
            raise self._refused("The user has", self._per_user)
        self._taken[login.mark] += count
        self._count += count

    def release(self, login: Login, count: int = 1) -> None:
        """`login` is the one that the places were reserved for."""
        self._count -= count
        self._taken[login.mark] -= count
        if not self._taken[login.mark]:
            del self._taken[login.mark]

    def _refused(self, whose: str, setting: Limit) -> Exception:
        return self._refusal(f"{whose} as many {self._what} as are allowed ({setting.key} = {setting.limit})")
