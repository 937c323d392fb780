"""The keys that a trusted issuer publishes (RFC 7517), fetched with care.

They are fetched from the configured address only: no redirects, a few seconds, a bounded response, one request at a
time, with a pause between requests. They are fetched again when they are old, while the old ones stay in use. Only a
token with an unknown key waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx
import msgspec

from whippet.app.access import jws
from whippet.app.access.jws import Key
from whippet.app.config.listeners import TrustedIssuer

_log = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 5.0
FETCH_SECONDS_BETWEEN = 30.0
KEYS_SECONDS = 3600.0
"""After that they are fetched again, in the background."""
KEYS_BYTES_MAX = 1 << 18
KEYS_MAX = 64


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


_KEYS = msgspec.json.Decoder(_KeySet)
_KEY = msgspec.json.Decoder(jws.PublicKey)


class IssuerKeys:
    def __init__(
        self, entry: TrustedIssuer, clock: Callable[[], float], client: Callable[[], httpx.AsyncClient] | None = None
    ) -> None:
        self._entry = entry
        self._clock = clock
        self._client = client or _client
        self._keys: dict[str, Key] = {}
        self._fetched_at = 0.0
        """When the keys were fetched, if there are any."""
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> Key | None:
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
