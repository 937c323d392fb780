"""Tokens of trusted issuers: keys come from the configured address, and from nowhere else."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from tests.storage.support.world import settled
from whippet.app.access.issuer_keys import FETCH_SECONDS_BETWEEN, KEYS_BYTES_MAX, KEYS_SECONDS
from whippet.app.access.trusted_issuers import TrustedIssuers
from whippet.app.config.listeners import TrustedIssuer

NOW = 1_800_000_000
ISSUER = "https://Issuer.example/realm"
JWKS = "https://issuer.example/keys"
ENTRY = TrustedIssuer(issuer=ISSUER, audience="whippet", jwks_url=JWKS, user_id=7)
RSA_KEY = rsa.generate_private_key(65537, 2048)
WEAK_KEY = rsa.generate_private_key(65537, 1024)
EC_KEYS = {
    "ES256": ("P-256", ec.generate_private_key(ec.SECP256R1()), 32, hashes.SHA256()),
    "ES384": ("P-384", ec.generate_private_key(ec.SECP384R1()), 48, hashes.SHA384()),
    "ES512": ("P-521", ec.generate_private_key(ec.SECP521R1()), 66, hashes.SHA512()),
}
RSA_HASHES = {"RS256": hashes.SHA256(), "RS384": hashes.SHA384(), "RS512": hashes.SHA512()}


def part(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def number(value: int, size: int | None = None) -> str:
    return part(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def rsa_key(key: rsa.RSAPrivateKey = RSA_KEY, **more: str) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": "r", "n": number(numbers.n), "e": number(numbers.e)} | more


def ec_key(algorithm: str, **more: str) -> dict[str, str]:
    curve, key, size, _ = EC_KEYS[algorithm]
    numbers = key.public_key().public_numbers()
    return {
        "kty": "EC",
        "kid": algorithm,
        "crv": curve,
        "x": number(numbers.x, size),
        "y": number(numbers.y, size),
    } | more


def claims(**more: Any) -> dict[str, Any]:
    return {"iss": ISSUER, "aud": "whippet", "exp": NOW + 60, "sub": "somebody"} | more


def token(algorithm: str = "RS256", kid: str | None = "r", payload: dict[str, Any] | None = None, **head: Any) -> str:
    header = {"alg": algorithm, **({} if kid is None else {"kid": kid}), **head}
    begin = f"{part(json.dumps(header).encode())}.{part(json.dumps(payload or claims()).encode())}"
    return f"{begin}.{part(signature(algorithm, begin.encode()))}"


def signature(algorithm: str, octets: bytes, key: rsa.RSAPrivateKey = RSA_KEY) -> bytes:
    if algorithm in RSA_HASHES:
        return key.sign(octets, padding.PKCS1v15(), RSA_HASHES[algorithm])
    if algorithm in EC_KEYS:
        _, private, size, digest = EC_KEYS[algorithm]
        r, s = utils.decode_dss_signature(private.sign(octets, ec.ECDSA(digest)))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")
    return b""


class World:
    def __init__(self, *keys: dict[str, str], entry: TrustedIssuer = ENTRY) -> None:
        self.keys: Any = list(keys)
        self.asked: list[str] = []
        self.answer: Callable[[httpx.Request], httpx.Response] = self._keys
        self.now = 1000.0
        transport = httpx.MockTransport(self._answer)
        self.issuers = TrustedIssuers(
            (entry,), 5.0, clock=lambda: self.now, client=lambda: httpx.AsyncClient(transport=transport)
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        return self.answer(request)

    def _keys(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"keys": self.keys})

    async def user_of(self, text: str) -> int | None:
        return await self.issuers.user_id(text, NOW)


@pytest.mark.parametrize("algorithm", [*RSA_HASHES, *EC_KEYS])
async def test_a_token_of_a_trusted_issuer_acts_as_the_configured_user(algorithm: str) -> None:
    world = World(rsa_key(), *(ec_key(name) for name in EC_KEYS))
    assert await world.user_of(token(algorithm, "r" if algorithm in RSA_HASHES else algorithm)) == 7
    assert world.asked == [JWKS]


def confused() -> str:
    head = json.dumps({"alg": "HS256", "kid": "r"}).encode()
    begin = f"{part(head)}.{part(json.dumps(claims()).encode())}"
    return f"{begin}.{part(hmac.digest(rsa_key()['n'].encode(), begin.encode(), 'sha256'))}"


def by_another(**head: Any) -> str:
    begin = token(**head).rpartition(".")[0]
    return f"{begin}.{part(signature('RS256', begin.encode(), WEAK_KEY))}"


FORGED: dict[str, Callable[[], str]] = {
    "no kid": lambda: token(kid=None),
    "an unknown kid": lambda: token(kid="x"),
    "another issuer": lambda: token(payload=claims(iss="https://issuer.example/other")),
    "another audience": lambda: token(payload=claims(aud="else")),
    "expired": lambda: token(payload=claims(exp=NOW - 6)),
    "not yet": lambda: token(payload=claims(nbf=NOW + 6)),
    "without an end": lambda: token(payload={"iss": ISSUER, "aud": "whippet"}),
    "alg none": lambda: token("none"),
    "crit": lambda: token(crit=["x"]),
    "another algorithm's signature": lambda: f"{token('RS512').rpartition('.')[0]}.{token('RS256').rpartition('.')[2]}",
    "the key of a curve under RSA": lambda: token("RS256", "ES256"),
    "an RSA key under a curve": lambda: token("ES256", "r"),
    "the public key as a secret": confused,
    "signed by another": by_another,
    "a key that it brings": lambda: by_another(jwk=rsa_key(WEAK_KEY)),
    "an address that it brings": lambda: by_another(jku="https://evil.example/keys", x5u="https://evil.example/x"),
}


@pytest.mark.parametrize("name", FORGED)
async def test_no_forgery_is_accepted_and_no_token_chooses_the_address_of_keys(name: str) -> None:
    world = World(rsa_key(), *(ec_key(each) for each in EC_KEYS))
    assert await world.user_of(FORGED[name]()) is None
    assert set(world.asked) <= {JWKS}


@pytest.mark.parametrize(
    "key",
    [
        rsa_key(WEAK_KEY),
        rsa_key(use="enc"),
        rsa_key(alg="RS512"),
        rsa_key() | {"kty": "oct"},
        rsa_key() | {"n": ""},
        rsa_key() | {"e": "%%"},
        {"kty": "RSA", "n": rsa_key()["n"], "e": rsa_key()["e"]},
    ],
)
async def test_weak_incomplete_and_unsuitable_keys_are_not_used(key: dict[str, str]) -> None:
    world = World(key)
    begin = token().rpartition(".")[0]
    for private in (RSA_KEY, WEAK_KEY):
        assert await world.user_of(f"{begin}.{part(signature('RS256', begin.encode(), private))}") is None


async def test_issuers_are_compared_with_scheme_and_host_in_lower_case() -> None:
    world = World(rsa_key())
    assert await world.user_of(token(payload=claims(iss="HTTPS://ISSUER.example/realm"))) == 7
    assert await world.user_of(token(payload=claims(iss="https://issuer.example/REALM"))) is None
    assert await world.user_of(token(payload=claims(aud=["else", "whippet"], exp=NOW + 1.5))) == 7


async def test_no_foreign_token_acts_as_root() -> None:
    world = World(rsa_key(), entry=TrustedIssuer(issuer=ISSUER, audience="whippet", jwks_url=JWKS, user_id=0))
    assert await world.user_of(token()) is None
    assert world.asked == []


async def test_keys_are_fetched_once_and_not_for_every_unknown_token() -> None:
    world = World(rsa_key())
    assert await asyncio.gather(*(world.user_of(token()) for _ in range(20))) == [7] * 20
    for _ in range(5):
        assert await world.user_of(token(kid="x")) is None
    assert len(world.asked) == 1
    world.now += FETCH_SECONDS_BETWEEN + 1
    world.keys = [rsa_key(kid="x")]
    assert await world.user_of(token(kid="x")) == 7
    assert await world.user_of(token()) is None, "a key that the issuer shows no more is of no use"
    assert len(world.asked) == 2


async def test_old_keys_serve_while_new_ones_are_fetched_or_unavailable() -> None:
    world = World(rsa_key())
    assert await world.user_of(token()) == 7
    world.now += KEYS_SECONDS + 1
    world.answer = lambda request: httpx.Response(500)
    assert await world.user_of(token()) == 7
    await asyncio.sleep(0)
    await world.issuers.close()
    assert len(world.asked) == 2
    assert await world.user_of(token()) == 7


def unreachable(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route")


@pytest.mark.parametrize(
    "answer",
    [
        unreachable,
        lambda request: httpx.Response(404),
        lambda request: httpx.Response(302, headers={"location": "https://evil.example/keys"}),
        lambda request: httpx.Response(200, content=b"{"),
        lambda request: httpx.Response(200, json={"keys": "none"}),
        lambda request: httpx.Response(200, json=[rsa_key()]),
        lambda request: httpx.Response(200, json={"keys": [1, None, {"kty": 1}]}),
        lambda request: httpx.Response(200, content=b" " * KEYS_BYTES_MAX + json.dumps({"keys": [rsa_key()]}).encode()),
    ],
)
async def test_a_response_without_keys_is_ignored(answer: Callable[[httpx.Request], httpx.Response]) -> None:
    world = World(rsa_key())
    world.answer = answer
    assert await world.user_of(token()) is None
    assert world.asked == [JWKS]


def answered_with(content: bytes) -> World:
    world = World()
    world.answer = lambda request: httpx.Response(200, content=content)
    return world


async def test_a_response_has_at_most_256_kib() -> None:
    keys = json.dumps({"keys": [rsa_key()]}).encode()
    assert await answered_with(keys.rjust(262_144)).user_of(token()) == 7
    assert await answered_with(keys.rjust(262_145)).user_of(token()) is None


async def test_the_first_64_keys_of_an_issuer_are_used() -> None:
    world = World(*(rsa_key(kid=str(place)) for place in range(65)))
    assert [await world.user_of(token(kid=kid)) for kid in ("0", "63", "64")] == [7, 7, None]


async def test_unusable_keys_do_not_prevent_the_use_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    without_a_name = {name: value for name, value in rsa_key().items() if name != "kid"}
    world = World(without_a_name, rsa_key(kid="enc", use="enc"), {"kty": "oct", "kid": "oct"}, rsa_key())
    world.keys.insert(0, {"kty": 1})
    assert await world.user_of(token()) == 7
    assert "fetched 1 keys" in caplog.text


async def test_keys_are_fetched_again_when_they_are_older_than_an_hour() -> None:
    world = World(rsa_key())
    for later, asked in ((0, 1), (3600, 1), (1, 2), (3600, 2), (1, 3)):
        world.now += later
        assert await world.user_of(token()) == 7
        await settled()
        assert len(world.asked) == asked


async def test_an_unknown_key_causes_a_fetch_every_30_seconds_at_most() -> None:
    world = World(rsa_key())
    for later, asked in ((0, 1), (29, 1), (1, 2), (29.5, 2), (0.5, 3)):
        world.now += later
        assert await world.user_of(token(kid="x")) is None
        assert len(world.asked) == asked


async def test_keys_can_be_fetched_before_anybody_needs_them() -> None:
    world = World(rsa_key())
    world.issuers.fetch_all()
    await settled()
    assert world.asked == [JWKS]
    assert await world.user_of(token()) == 7
    assert world.asked == [JWKS]


async def test_a_fetch_in_progress_ends_with_the_server() -> None:
    world = World(rsa_key())
    ended = asyncio.Event()

    async def never(request: httpx.Request) -> httpx.Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    issuers = TrustedIssuers(
        (ENTRY,), 5.0, clock=lambda: world.now, client=lambda: httpx.AsyncClient(transport=httpx.MockTransport(never))
    )
    issuers.fetch_all()
    await settled()
    assert not ended.is_set()
    await issuers.close()
    assert ended.is_set()


@pytest.mark.parametrize(("issuer", "named"), [(ISSUER, True), ("https://issuer.example/other", False), ("", False)])
async def test_a_token_names_its_issuer(issuer: str, named: bool) -> None:
    world = World(rsa_key())
    assert world.issuers.is_named_by(token(payload=claims(iss=issuer))) is named
    assert not world.issuers.is_named_by("no token")
    assert not TrustedIssuers((), 5.0).is_named_by(token())
    assert await TrustedIssuers((), 5.0).user_id(token(), NOW) is None
    assert world.asked == []


async def test_an_issuer_that_is_no_url_is_compared_as_it_is() -> None:
    world = World(rsa_key(), entry=msgspec.structs.replace(ENTRY, issuer="Issuer"))
    assert await world.user_of(token(payload=claims(iss="Issuer"))) == 7
    assert await world.user_of(token(payload=claims(iss="issuer"))) is None


@pytest.mark.parametrize(
    ("more", "accepted"),
    [
        ({"exp": NOW - 4.5}, True),
        ({"exp": NOW - 5}, False),
        ({"nbf": NOW + 5}, True),
        ({"nbf": NOW + 5.5}, False),
        ({"aud": []}, False),
    ],
)
async def test_clocks_of_issuers_may_differ_by_the_configured_skew_and_no_more(
    more: dict[str, Any], accepted: bool
) -> None:
    assert (await World(rsa_key()).user_of(token(payload=claims(**more))) == 7) is accepted
