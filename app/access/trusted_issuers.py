"""Tokens of trusted issuers: verified with the keys that their issuers publish (RFC 7517).

Keys are fetched from the configured addresses only, whatever a token contains: no redirects, a few seconds, a bounded
response, one request at a time per issuer, with a pause between requests. They are fetched when the gateway starts,
and again when they are old, while the old ones stay in use. Only a token with an unknown key waits for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import msgspec

from whippet.app.access import jws
from whippet.app.access.jws import Forged, Key, NotAToken
from whippet.app.config.listeners import TrustedIssuer

_log = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 5.0
FETCH_SECONDS_BETWEEN = 30.0
KEYS_SECONDS = 3600.0
"""After that they are fetched again, in the background."""
KEYS_BYTES_MAX = 1 << 18
KEYS_MAX = 64


class Claims(msgspec.Struct, frozen=True):
    """Times in seconds, which others may write as fractions."""

    iss: str
    aud: str | list[str]
    exp: float
    nbf: float = 0.0


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


_CLAIMS = msgspec.json.Decoder(Claims)
_KEYS = msgspec.json.Decoder(_KeySet)
_KEY = msgspec.json.Decoder(jws.PublicKey)


class TrustedIssuers:
    def __init__(
        self,
        configured: tuple[TrustedIssuer, ...],
        skew_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        client: Callable[[], httpx.AsyncClient] | None = None,
    ) -> None:
        make = client or _client
        self._issuers = {
            _canonical(entry.issuer): _Issuer(entry, skew_s, clock, make) for entry in configured if entry.user_id
        }

    def fetch_all(self) -> None:
        for issuer in self._issuers.values():
            issuer.fetch_soon()

    async def close(self) -> None:
        for issuer in self._issuers.values():
            await issuer.close()

    def is_named_by(self, text: str) -> bool:
        """Returns True if a token claims to come from one of the issuers."""
        return self._issuer_of(text) is not None

    async def user_id(self, text: str, now: int) -> int | None:
        """The user that a token acts as; None if the token is not trusted."""
        found = self._issuer_of(text)
        if found is None:
            return None
        issuer, token, claims = found
        return await issuer.user_id(token, claims, now)

    def _issuer_of(self, text: str) -> tuple[_Issuer, jws.Token, Claims] | None:
        try:
            token = jws.parse(text)
            claims = _CLAIMS.decode(token.payload)
        except (NotAToken, Forged, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        issuer = self._issuers.get(_canonical(claims.iss))
        return None if issuer is None else (issuer, token, claims)


class _Issuer:
    def __init__(
        self,
        entry: TrustedIssuer,
        skew_s: float,
        clock: Callable[[], float],
        client: Callable[[], httpx.AsyncClient],
    ) -> None:
        self._entry = entry
        self._skew_s = skew_s
        self._clock = clock
        self._client = client
        self._keys: dict[str, Key] = {}
        self._fetched_at = 0.0
        """When the keys were fetched, if there are any."""
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def user_id(self, token: jws.Token, claims: Claims, now: int) -> int | None:
        key = await self._key(token.header.kid)
        if key is None:
            return None
        try:
            key.verify(token)
        except Forged:
            return None
        audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
        counts = claims.nbf - self._skew_s <= now < claims.exp + self._skew_s
        return self._entry.user_id if counts and self._entry.audience in audiences else None

    async def _key(self, kid: str | None) -> Key | None:
        if kid is None:
            return None
        key = self._keys.get(kid)
        if key is not None:
            if self._clock() - self._fetched_at > KEYS_SECONDS:
                self.fetch_soon()
            return key
        self.fetch_soon()
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        return self._keys.get(kid)

    def fetch_soon(self) -> None:
        """Unless a fetch is running, or was tried a moment ago."""
        now = self._clock()
        if self._fetching is not None or (self._tried_at is not None and now - self._tried_at < FETCH_SECONDS_BETWEEN):
            return
        self._tried_at = now
        self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name="keys of a trusted issuer")
        self._fetching.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                content = await self._get()
            keys = _keys(content)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, _Refused, msgspec.MsgspecError) as error:
            _log.warning("the keys of issuer %s were not fetched: %s", self._entry.issuer, error or type(error))
            return
        self._keys, self._fetched_at = keys, self._clock()
        _log.info("fetched %d keys of issuer %s", len(keys), self._entry.issuer)

    async def _get(self) -> bytes:
        content = bytearray()
        async with (
            self._client() as client,
            client.stream("GET", self._entry.jwks_url, headers={"accept": "application/json"}) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise _Refused(f"status {response.status_code}")
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > KEYS_BYTES_MAX:
                    raise _Refused(f"more than {KEYS_BYTES_MAX} bytes")
        return bytes(content)

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)


class _Refused(Exception):
    """A response without keys."""


def _keys(content: bytes) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for raw in _KEYS.decode(content).keys[:KEYS_MAX]:
        try:
            described = _KEY.decode(raw)
        except msgspec.MsgspecError:
            continue
        key = jws.public_key(described)
        if described.kid is not None and key is not None:
            keys[described.kid] = key
    return keys


def _client() -> httpx.AsyncClient:
    return httpx.AsyncClient(follow_redirects=False, timeout=FETCH_SECONDS_MAX)


def _canonical(issuer: str) -> str:
    """Scheme and host in lower case; everything else is case-sensitive."""
    parts = urlsplit(issuer) if "://" in issuer else None
    if parts is None:
        return issuer
    return issuer.replace(f"{issuer.partition('://')[0]}://{parts.netloc}", f"{parts.scheme}://{parts.netloc.lower()}")
