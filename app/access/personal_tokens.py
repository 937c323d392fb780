"""Personal access tokens, with which programs log in instead of a password. Only their hashes are stored.

A token has 400 random bits, so a fast hash is enough, and the time of looking up a hash reveals nothing about other
tokens. A token belongs to its user's mark, not to the number: a later user with that number cannot use it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable, Mapping

import msgspec
from blake3 import blake3

from whippet.app.access.users import User, Users
from whippet.app.audit.notes import note
from whippet.app.errors import Code, CommandError
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.engine import Engine
from whippet.storage.errors import StorageError

_log = logging.getLogger(__name__)

RANDOM_BYTES = 50
NAME_BYTES = range(3, 31)
NEVER = 0
"""The value of `expires_at` that means never. As a duration, both 0 and the highest u64 mean never."""
TIME_MAX = 2**64 - 1


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens/<id>.json`. Times in us since 1970."""

    id: int
    user_id: int
    user_mark: str
    name: str
    hash: str
    """BLAKE3 of the token's text, in hexadecimal digits."""
    created_at: int
    expires_at: int
    epoch: int = 0
    """The epoch of the user's tokens when this one was created; it is void as soon as the user has another epoch."""


class PersonalTokens:
    def __init__(self, store: Engine, per_user_max: int, clock: Callable[[], int]) -> None:
        self._store = store
        self._per_user_max = per_user_max
        self._clock = clock
        self._by_hash: dict[str, Token] = {}
        self._of_user: dict[str, dict[str, Token]] = {}
        """Keyed by the user's mark, then by name."""
        self._next_id = max(store.tokens, default=-1) + 1
        self._changing = asyncio.Lock()
        for token in _read(store.tokens):
            self._put(token)

    # --------------------------------------------------------------------------------------------------------- login

    def owner(self, text: str, users: Users) -> User:
        """Returns the token's user. Errors never contain the token."""
        token = self._by_hash.get(hash_of(text))
        user = None if token is None else users.find(token.user_id)
        if token is None or user is None or _is_void(token, user):
            raise CommandError(Code.RESOURCE_NOT_FOUND, "there is no such personal access token")
        if self._has_expired(token):
            raise CommandError(Code.PERSONAL_ACCESS_TOKEN_EXPIRED, about=(token.name, user.id))
        if not user.is_active:
            raise CommandError(Code.USER_INACTIVE, repr(user.username))
        return user

    # ------------------------------------------------------------------------------------------------- a user's own

    def of(self, user: User) -> list[Token]:
        """Sorted by name; includes expired tokens that are not removed yet."""
        tokens = self._of_user.get(user.mark, {})
        return [tokens[name] for name in sorted(tokens) if not _is_void(tokens[name], user)]

    async def create(self, user: User, name: str, expiry_us: int) -> str:
        """Returns the token's text, which cannot be retrieved again."""
        if len(name.encode()) not in NAME_BYTES:
            raise CommandError(Code.INVALID_PERSONAL_ACCESS_TOKEN_NAME)
        async with self._changing:
            tokens = self._of_user.get(user.mark, {})
            if len(tokens) >= self._per_user_max:
                raise CommandError(
                    Code.PERSONAL_ACCESS_TOKENS_LIMIT_REACHED,
                    f"personal_access_token.max_tokens_per_user = {self._per_user_max}",
                    about=(user.id, self._per_user_max),
                )
            if name in tokens:
                raise CommandError(Code.PERSONAL_ACCESS_TOKEN_ALREADY_EXISTS, about=(name, user.id))
            text = base64.b64encode(secrets.token_bytes(RANDOM_BYTES)).decode()
            now = self._clock()
            token = Token(
                id=self._next_id,
                user_id=user.id,
                user_mark=user.mark,
                name=name,
                hash=hash_of(text),
                created_at=now,
                expires_at=NEVER if expiry_us in (0, TIME_MAX) else min(now + expiry_us, TIME_MAX),
                epoch=user.document.token_epoch,
            )
            self._next_id += 1
            await self._store.write_token(token.id, msgspec.json.format(msgspec.json.encode(token), indent=2) + b"\n")
            self._put(token)
            note("personal_access_token", name, None, _noted(token))
            return text

    async def delete(self, user: User, name: str) -> None:
        async with self._changing:
            token = self._of_user.get(user.mark, {}).get(name)
            if token is None:
                raise CommandError(Code.RESOURCE_NOT_FOUND, "the user has no such personal access token", about=(name,))
            await self._remove(token)

    async def revoke(self, text: str) -> None:
        """Removes the token with this text, if it still exists."""
        async with self._changing:
            token = self._by_hash.get(hash_of(text))
            if token is not None:
                await self._remove(token)

    async def forget_user(self, user: User) -> None:
        """Call this after the user was deleted."""
        await self._forget(lambda token: token.user_mark == user.mark)

    async def forget_void(self, users: Users) -> None:
        """Removes tokens whose user has ended them: after that, and at a start, because of a crash in between. Tokens
        of unknown users stay: their documents may be damaged, and be repaired later."""

        def has_ended(token: Token) -> bool:
            user = users.by_mark(token.user_mark)
            return user is not None and _is_void(token, user)

        await self._forget(has_ended)

    async def _forget(self, chosen: Callable[[Token], bool]) -> None:
        """A token that is void cannot be used, so it does no harm if its file stays."""
        async with self._changing:
            for token in [token for token in self._by_hash.values() if chosen(token)]:
                try:
                    await self._remove(token)
                except StorageError as error:
                    _log.warning("the void token tokens/%d.json was not removed: %s", token.id, error)

    async def remove_expired(self) -> None:
        async with self._changing:
            expired = [token for token in self._by_hash.values() if self._has_expired(token)]
            for token in expired:
                await self._remove(token)
        if expired:
            _log.info("removed %d expired personal access tokens", len(expired))

    # ------------------------------------------------------------------------------------------------------- internals

    def _has_expired(self, token: Token) -> bool:
        return token.expires_at != NEVER and token.expires_at <= self._clock()

    def _put(self, token: Token) -> None:
        self._by_hash[token.hash] = token
        self._of_user.setdefault(token.user_mark, {})[token.name] = token

    async def _remove(self, token: Token) -> None:
        """The token is unusable from now on, even if its file cannot be removed."""
        tokens = self._of_user[token.user_mark]
        del self._by_hash[token.hash], tokens[token.name]
        if not tokens:
            del self._of_user[token.user_mark]
        note("personal_access_token", token.name, _noted(token), None)
        await self._store.remove_token(token.id)


def _noted(token: Token) -> dict[str, int]:
    return {"user_id": token.user_id, "created_at": token.created_at, "expires_at": token.expires_at}


def _is_void(token: Token, user: User) -> bool:
    return token.user_mark != user.mark or token.epoch != user.document.token_epoch


def hash_of(text: str) -> str:
    return blake3(text.encode()).hexdigest()


def _read(documents: Mapping[int, bytes]) -> list[Token]:
    tokens = []
    for token_id, content in sorted(documents.items()):
        try:
            tokens.append(msgspec.structs.replace(msgspec.json.decode(content, type=Token), id=token_id))
        except NOT_UNDERSTOOD as error:
            _log.error(
                "tokens/%d.json cannot be understood and is left as it is; the token is refused: %s",
                token_id,
                error,
            )
    return tokens
