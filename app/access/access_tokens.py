"""Access tokens: JWTs that a login over HTTP issues.

1. A token contains its user's number, which clients read, and the user's mark and epoch (access/users.py): it outlives
   neither the user nor the password, and is void for good once the user is deactivated.
2. The signature is verified with the server's own keys first, then with those of the trusted issuers. Verified tokens
   are remembered for a while, so that a request costs no hashing; whether a token was revoked is checked every time.
3. Refreshing issues a new token. The old one stays valid, but cannot be refreshed again. Logging out revokes a token.
   Both survive a restart.

For the event loop. Only logging out, refreshing, and an unknown key of a trusted issuer wait for a disk or a network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from whippet.app.access import jws, signing_key
from whippet.app.access.ended_tokens import End, EndedTokens, Entry
from whippet.app.access.jws import Forged, NotAToken, Secret, WrongAlgorithm
from whippet.app.access.trusted_issuers import TrustedIssuers
from whippet.app.access.users import User, Users
from whippet.app.config.error import ConfigError
from whippet.app.config.listeners import HttpJwt
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import Login

_log = logging.getLogger(__name__)

FOLDER = "access"
NEVER_SECONDS = 1_000_000_000
"""The lifetime of a token that does not expire: clients need a number."""
REMEMBERED_MAX = 4096

SECOND = 1_000_000


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds since 1970."""

    jti: str
    iss: str
    aud: str | list[str]
    sub: str
    iat: int
    exp: int
    nbf: int
    mark: str = msgspec.field(default="", name="whippet_mark")
    epoch: int = msgspec.field(default=0, name="whippet_epoch")
    generation: str | None = msgspec.field(default=None, name="whippet_client")
    """The protocol generation of the client that logged in, where responses depend on it."""


class Issued(NamedTuple):
    user_id: int
    text: str
    expires_at: int
    """Seconds since 1970."""


class Caller(NamedTuple):
    """The bearer of a token. `claims` is None if the token was not issued here."""

    user: User
    claims: Claims | None
    generation: str | None


_CLAIMS = msgspec.json.Decoder(Claims)


class AccessTokens:
    def __init__(
        self,
        config: HttpJwt,
        keys: list[bytes],
        ended: EndedTokens,
        users: Users,
        clock: Callable[[], int],
        issuers: TrustedIssuers,
    ) -> None:
        self._config = config
        self._keys = [Secret(config.algorithm, key) for key in keys]
        self._ended = ended
        self._users = users
        self._clock = clock
        self._issuers = issuers
        self._issuers_valid = frozenset(config.valid_issuers)
        self._audiences_valid = frozenset(config.valid_audiences)
        numbers = {issuer.user_id for issuer in config.trusted_issuers}
        self._marks_of_issuers = {user.id: user.mark for user in users if user.id in numbers}
        """The users that trusted issuers act as: a later user with the same number is another one."""
        self._remembered: dict[str, Claims] = {}

    @classmethod
    async def open(cls, config: HttpJwt, data_folder: str, users: Users, clock: Callable[[], int]) -> AccessTokens:
        folder = os.path.join(data_folder, FOLDER)
        keys = await asyncio.to_thread(signing_key.read_or_create, config, folder)
        try:
            ended = await asyncio.to_thread(EndedTokens.read, folder, clock() // SECOND)
        except OSError as error:
            raise ConfigError(f"{error.filename or folder} cannot be used: {error.strerror or error}") from error
        issuers = TrustedIssuers(config.trusted_issuers, config.clock_skew)
        issuers.fetch_all()
        return cls(config, keys, ended, users, clock, issuers)

    async def close(self) -> None:
        await self._issuers.close()

    # ------------------------------------------------------------------------------------------------------ issuing

    def issue(self, user: User, generation: str | None = None) -> Issued:
        now = self._clock() // SECOND
        config = self._config
        lasts = NEVER_SECONDS if config.access_token_expiry is None else config.access_token_expiry // SECOND
        claims = Claims(
            jti=_uuid7(self._clock()),
            iss=config.issuer,
            aud=config.audience,
            sub=str(user.id),
            iat=now,
            exp=now + lasts,
            nbf=now + int(config.not_before),
            mark=user.mark,
            epoch=user.login.epoch,
            generation=generation,
        )
        return Issued(user.id, self._keys[0].sign(_encode(claims)), claims.exp)

    async def refresh(self, text: str) -> Issued:
        """Issues a new token for a valid one, which can be refreshed only once."""
        if not text:
            raise CommandError(Code.UNAUTHENTICATED)
        try:
            claims = self._verified(text)
        except NotAToken:
            raise CommandError(Code.INVALID_ACCESS_TOKEN) from None
        except Forged as error:
            if self._issuers.is_named_by(text):
                raise CommandError(
                    Code.INVALID_ACCESS_TOKEN, "the access token was not issued by this server"
                ) from None
            if isinstance(error, WrongAlgorithm):
                raise CommandError(Code.INVALID_JWT_ALGORITHM) from None
            raise CommandError(Code.UNAUTHENTICATED, "the access token was not issued by this server") from None
        if self._has(End.REVOKED, claims) or self._has(End.REFRESHED, claims):
            raise CommandError(Code.INVALID_ACCESS_TOKEN, "the access token was already revoked or refreshed")
        user = self._user_of(claims)
        if user is None or not self._is_valid_now(claims):
            raise CommandError(Code.UNAUTHENTICATED)
        await self._end(End.REFRESHED, claims)
        return self.issue(user, claims.generation)

    async def revoke(self, claims: Claims) -> None:
        await self._end(End.REVOKED, claims)

    # ------------------------------------------------------------------------------------------------- authenticating

    async def authenticate(self, text: str) -> Caller | None:
        """Returns the caller that a token authenticates, or None."""
        if text not in self._remembered:
            try:
                claims = self._verified(text)
            except NotAToken:
                return None
            except Forged:
                return await self._trusted_caller(text)
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[text] = claims
        return self.recognize(text)

    def recognize(self, text: str) -> Caller | None:
        """Does the same for a token whose signature was checked before; None for others."""
        claims = self._remembered.get(text)
        if claims is None or not self._is_valid_now(claims) or self._has(End.REVOKED, claims):
            return None
        user = self._user_of(claims)
        return None if user is None else Caller(user, claims, claims.generation)

    def has_ended(self, text: str) -> bool:
        """Returns True if a token is valid, except that its user has ended all sessions, for example with a new
        password."""
        try:
            claims = self._verified(text)
        except (NotAToken, Forged):
            return False
        user = self._users.by_mark(claims.mark)
        if user is None or not user.is_active or user.login.epoch == claims.epoch:
            return False
        return self._is_valid_now(claims) and not self._has(End.REVOKED, claims)

    async def _trusted_caller(self, text: str) -> Caller | None:
        user_id = await self._issuers.user_id(text, self._clock() // SECOND)
        user = self._users.active(user_id)
        if user is None:
            return None
        if self._marks_of_issuers.setdefault(user.id, user.mark) != user.mark:
            _log.warning(
                "refused a token of a trusted issuer: user %d was deleted, and %r has that number now; "
                "check http.jwt.trusted_issuers and restart",
                user.id,
                user.username,
            )
            return None
        return Caller(user, None, None)

    def _verified(self, text: str) -> Claims:
        """Returns the claims of a token that was signed here, for this audience. Does not check its times."""
        token = jws.parse(text)
        self._verify(token)
        try:
            claims = _CLAIMS.decode(token.payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Forged from error
        audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
        if claims.iss not in self._issuers_valid or not self._audiences_valid.intersection(audiences):
            raise Forged
        return claims

    def _verify(self, token: jws.Token) -> None:
        *others, last = self._keys
        for key in others:
            try:
                key.verify(token)
            except WrongAlgorithm:
                raise
            except Forged:
                continue
            return
        last.verify(token)

    def _is_valid_now(self, claims: Claims) -> bool:
        now, skew = self._clock() / SECOND, self._config.clock_skew
        return claims.nbf - skew <= now < claims.exp + skew

    def _user_of(self, claims: Claims) -> User | None:
        if not claims.sub.isascii() or not claims.sub.isdigit() or len(claims.sub) > 10:
            return None
        user = self._users.by_login(Login(claims.mark, claims.epoch))
        return user if user is not None and user.id == int(claims.sub) else None

    def _has(self, end: End, claims: Claims) -> bool:
        return self._ended.has(end, claims.mark, claims.jti, claims.iat)

    async def _end(self, end: End, claims: Claims) -> None:
        now = self._clock() // SECOND
        ends_at = claims.exp + int(self._config.clock_skew) + 1
        try:
            await self._ended.add(Entry(end, claims.mark, claims.jti, claims.iat, ends_at, claims.epoch), now)
        except OSError as error:
            raise CommandError(Code.CANNOT_WRITE_TO_FILE, "the end of the token could not be stored") from error


def _encode(claims: Claims) -> bytes:
    named = msgspec.to_builtins(claims)
    if claims.generation is None:
        del named["whippet_client"]
    return msgspec.json.encode(named)


def _uuid7(now_us: int) -> str:
    """A timestamp in ms, followed by random bits (RFC 9562)."""
    number = (now_us // 1000 & (1 << 48) - 1) << 80 | 7 << 76 | secrets.randbits(76)
    number = number & ~(3 << 62) | 2 << 62
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
