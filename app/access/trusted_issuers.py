"""Tokens of trusted issuers: verified with the keys that their issuers publish, which are fetched when the gateway
starts, from the configured addresses only, whatever a token contains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from whippet.app.access import jws
from whippet.app.access.jws import Forged, NotAToken
from whippet.app.config.listeners import TrustedIssuer

if TYPE_CHECKING:
    import httpx

    from whippet.app.access.issuer_keys import IssuerKeys


class Claims(msgspec.Struct, frozen=True):
    """Times in seconds, which others may write as fractions."""

    iss: str
    aud: str | list[str]
    exp: float
    nbf: float = 0.0


_CLAIMS = msgspec.json.Decoder(Claims)


class TrustedIssuers:
    def __init__(
        self,
        configured: tuple[TrustedIssuer, ...],
        skew_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        client: Callable[[], httpx.AsyncClient] | None = None,
    ) -> None:
        self._issuers: dict[str, _Issuer] = {}
        entries = [entry for entry in configured if entry.user_id]
        if entries:
            from whippet.app.access.issuer_keys import IssuerKeys  # noqa: PLC0415 -- httpx takes a while to import

            for entry in entries:
                self._issuers[_canonical(entry.issuer)] = _Issuer(entry, skew_s, IssuerKeys(entry, clock, client))

    def fetch_all(self) -> None:
        for issuer in self._issuers.values():
            issuer.keys.fetch_soon()

    async def close(self) -> None:
        for issuer in self._issuers.values():
            await issuer.keys.close()

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
    def __init__(self, entry: TrustedIssuer, skew_s: float, keys: IssuerKeys) -> None:
        self._entry = entry
        self._skew_s = skew_s
        self.keys = keys

    async def user_id(self, token: jws.Token, claims: Claims, now: int) -> int | None:
        key = await self.keys.find(token.header.kid)
        if key is None:
            return None
        try:
            key.verify(token)
        except Forged:
            return None
        audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
        counts = claims.nbf - self._skew_s <= now < claims.exp + self._skew_s
        return self._entry.user_id if counts and self._entry.audience in audiences else None


def _canonical(issuer: str) -> str:
    """Scheme and host in lower case; everything else is case-sensitive."""
    parts = urlsplit(issuer) if "://" in issuer else None
    if parts is None:
        return issuer
    return issuer.replace(f"{issuer.partition('://')[0]}://{parts.netloc}", f"{parts.scheme}://{parts.netloc.lower()}")
