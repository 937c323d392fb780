"""Places for what stays: long polls, tails, subscriptions. There are so many for all users, and so many for each one.

Without the second limit, one user could take all places and nobody else would get any.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

from whippet.app.model.identity import Login
from whippet.transports.http.errors import RETRY_AFTER, Refused


class Setting(NamedTuple):
    """A limit, and the key that it is set with."""

    key: str
    limit: int


class Places:
    def __init__(self, what: str, code: str, in_all: Setting, per_user: Setting) -> None:
        """`what` is their name in sentences, in the plural, and `code` that of the error."""
        self._what = what
        self._code = code
        self._in_all = in_all
        self._per_user = per_user
        self._taken: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def users_count(self) -> int:
        """Users who have at least one place."""
        return len(self._taken)

    @contextlib.contextmanager
    def taken_by(self, login: Login) -> Iterator[None]:
        self.take(login)
        try:
            yield
        finally:
            self.give_back(login)

    def take(self, login: Login) -> None:
        """Refused if there is no place, for this user or for anybody."""
        if self._count >= self._in_all.limit:
            raise self._refusal("The server has", self._in_all)
        if self._taken[login.mark] >= self._per_user.limit:
            raise self._refusal("The user has", self._per_user)
        self._taken[login.mark] += 1
        self._count += 1

    def give_back(self, login: Login) -> None:
        """`login` is the one that the place was taken for."""
        self._count -= 1
        self._taken[login.mark] -= 1
        if not self._taken[login.mark]:
            del self._taken[login.mark]

    def _refusal(self, whose: str, setting: Setting) -> Refused:
        sentence = f"{whose} as many {self._what} as are allowed ({setting.key} = {setting.limit})"
        return Refused(HTTPStatus.TOO_MANY_REQUESTS, sentence, headers=(RETRY_AFTER,), code=self._code)
