"""Passwords: hashed and verified with Argon2id, on separate threads and only a few at a time.

A hash takes about 20 ms and 19 MiB on purpose, so the event loop never computes one. If too many wait, the next one is
refused, which also limits what a flood of logins can cost. No password outlives its call.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from whippet.app.errors import Code, CommandError

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Cost(NamedTuple):
    """The cost of one hash. The default is the minimum that OWASP recommends, and equals Iggy's: a whole fleet of
    clients that reconnects after a restart must be able to log in before its timeouts."""

    memory_kib: int = 19_456
    passes: int = 2
    lanes: int = 1


USUAL = Cost()


class Passwords:
    """Used from one event loop; ended by `close`."""

    def __init__(self, cost: Cost = USUAL, *, concurrency: int = 2, waiting_max: int = 1024) -> None:
        self._hasher = PasswordHasher(time_cost=cost.passes, memory_cost=cost.memory_kib, parallelism=cost.lanes)
        self._hash_of_nobody = _unmatchable_hash(cost)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="password")
        self._turns = asyncio.Semaphore(concurrency)
        self._waiting_max = waiting_max
        self.waiting = 0
        self.computed = 0
        """The number of hashes computed so far: a login computes one, whether or not the user exists."""

    def close(self) -> None:
        self._pool.shutdown()

    async def hash(self, password: str) -> str:
        return await self._compute(lambda: self._hasher.hash(password))

    async def verify(self, stored: str | None, password: str) -> bool:
        """Returns True if the password matches the hash. None, for a user who does not exist, takes as long and returns
        False."""
        return await self._compute(lambda: self._matches(self._hash_of_nobody if stored is None else stored, password))

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError) as error:
            _log.error("a stored password hash is damaged and matches no password: %s", error)
            return False

    async def _compute(self, work: Callable[[], Answer]) -> Answer:
        if self.waiting >= self._waiting_max:
            raise CommandError(
                Code.TRANSIENT_NOT_ACCEPTED,
                f"{self._waiting_max} passwords are waiting to be checked, which is the limit; try again later",
            )
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        self.computed += 1
        running = asyncio.get_running_loop().run_in_executor(self._pool, work)
        running.add_done_callback(lambda _: self._turns.release())
        # A thread cannot be stopped: a cancelled caller's slot stays taken until the thread is done.
        return await asyncio.shield(running)


def intact(stored: str) -> bool:
    """Returns True if the text looks like a hash that can be verified."""
    return stored.startswith("$argon2id$") and stored.count("$") == 5


def _unmatchable_hash(cost: Cost) -> str:
    """A hash with a random digest: no known password matches it."""
    salt, digest = (base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (16, 32))
    return f"$argon2id$v=19$m={cost.memory_kib},t={cost.passes},p={cost.lanes}${salt}${digest}"
