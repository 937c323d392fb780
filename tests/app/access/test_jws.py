"""Parsing of signed tokens: invalid tokens, the selection of keys, and the limits of both."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils

from whippet.app.access import jws
from whippet.app.access.jws import Forged, NotAToken, PublicKey, Secret, WrongAlgorithm, public_key

HEADER = jws.encoded(b'{"alg":"HS256"}').decode()


def with_header(**header: object) -> str:
    return f"{jws.encoded(json.dumps(header).encode()).decode()}.e30.AA"


def number(value: int) -> str:
    return jws.encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")).decode()


# -------------------------------------------------------------------------------------------------------------- parsing


@pytest.mark.parametrize("octets", [bytes(range(200, 200 + size)) for size in range(10)])
def test_any_bytes_are_the_same_after_encoding_and_parsing(octets: bytes) -> None:
    part = jws.encoded(octets).decode()
    token = jws.parse(f"{HEADER}.{part}.{part}")
    assert (token.payload, token.signature, token.signed) == (octets, octets, f"{HEADER}.{part}".encode())
    assert (token.header.alg, token.header.typ, token.header.kid) == ("HS256", None, None)


def test_a_token_has_at_most_8192_characters() -> None:
    longest = f"{HEADER}.{'A' * (8192 - len(HEADER) - 4)}.AA"
    assert len(longest) == 8192
    assert len(jws.parse(longest).payload) > 6000
    with pytest.raises(NotAToken):
        jws.parse(f"{longest}A")


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("strange", ["A+AA", "A/AA", "AA==", "AA=", "A A ", "AA\n", "AAAAA", "A%AA", "Aä"])
def test_every_part_is_base64url_without_padding(place: int, strange: str) -> None:
    parts = [HEADER, "e30", "AA"]
    parts[place] = strange
    with pytest.raises(NotAToken):
        jws.parse(".".join(parts))


@pytest.mark.parametrize("text", ["", ".", "..", "a.b", HEADER, f"{HEADER}.e30", f"{HEADER}.e30.AA.AA"])
def test_a_token_has_three_parts(text: str) -> None:
    with pytest.raises(NotAToken):
        jws.parse(text)


@pytest.mark.parametrize("typ", ["JWT", "jwt", "at+jwt", "AT+JWT", None])
def test_the_type_of_a_token_is_case_insensitive(typ: str | None) -> None:
    assert jws.parse(with_header(alg="x", typ=typ)).header.typ == typ


@pytest.mark.parametrize(
    "header", [{"typ": "JWE"}, {"typ": ""}, {"crit": []}, {"crit": None}, {"typ": "JWT", "crit": 1}]
)
def test_other_types_and_critical_extensions_are_refused(header: dict[str, object]) -> None:
    with pytest.raises(Forged):
        jws.parse(with_header(alg="x", **header))


@pytest.mark.parametrize("header", [{}, {"alg": 1}, {"alg": "x", "typ": 1}, {"alg": "x", "kid": []}])
def test_a_header_without_an_algorithm_or_with_wrong_types_is_no_token(header: dict[str, object]) -> None:
    with pytest.raises(NotAToken):
        jws.parse(with_header(**header))


@pytest.mark.parametrize(("algorithm", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_verifies_only_what_it_has_signed(algorithm: str, size: int) -> None:
    secret = Secret(algorithm, b"secret")
    token = jws.parse(secret.sign(b'{"a":1}'))
    assert (token.header.alg, token.header.typ, token.payload) == (algorithm, "JWT", b'{"a":1}')
    assert len(token.signature) == size
    secret.verify(token)
    for forged in (
        token._replace(signature=token.signature[:-1]),
        token._replace(signature=b""),
        token._replace(signed=token.signed + b"x"),
    ):
        with pytest.raises(Forged):
            secret.verify(forged)
    with pytest.raises(Forged):
        Secret(algorithm, b"another").verify(token)
    for other in {"HS256", "HS384", "HS512"} - {algorithm}:
        with pytest.raises(WrongAlgorithm):
            Secret(other, b"secret").verify(token)


# ---------------------------------------------------------------------------------------------------------- public keys


@pytest.mark.parametrize(("bits", "used"), [(2047, False), (2048, True), (8192, True), (8193, False)])
def test_rsa_keys_have_2048_to_8192_bits(bits: int, used: bool) -> None:
    key = public_key(PublicKey(kty="RSA", n=number(1 << bits - 1 | 1), e=number(65537)))
    assert (key is not None) is used


PRIVATE = ec.generate_private_key(ec.SECP256R1())
POINT = PRIVATE.public_key().public_numbers()
X, Y = number(POINT.x), number(POINT.y)


@pytest.mark.parametrize(
    ("described", "used"),
    [
        (PublicKey(kty="EC", crv="P-256", x=X, y=Y), True),
        (PublicKey(kty="EC", crv="P-256", x=X, y=Y, use="sig", alg="ES256"), True),
        (PublicKey(kty="EC", crv="P-256", x=X, y=Y, use="enc"), False),
        (PublicKey(kty="EC", crv="P-256", x=X, y=Y, alg="ES384"), False),
        (PublicKey(kty="EC", crv="P-384", x=X, y=Y), False),  # not a point of that curve
        (PublicKey(kty="EC", crv="P-192", x=X, y=Y), False),
        (PublicKey(kty="EC", crv="P-256", x=X, y=""), False),
        (PublicKey(kty="EC", crv="P-256", x=X, y="ä"), False),
        (PublicKey(kty="OKP", crv="P-256", x=X, y=Y), False),
        (PublicKey(kty="RSA", crv="P-256", x=X, y=Y), False),
    ],
)
def test_only_whole_keys_of_known_curves_are_used(described: PublicKey, used: bool) -> None:
    assert (public_key(described) is not None) is used


def test_a_key_for_another_algorithm_verifies_nothing() -> None:
    """Not even a token that names that algorithm: it is none of RSA's."""
    key = public_key(PublicKey(kty="RSA", n=number(1 << 2047 | 1), e=number(65537), alg="HS256"))
    assert key is not None
    for algorithm in ("HS256", "RS256"):
        with pytest.raises(WrongAlgorithm):
            key.verify(jws.parse(with_header(alg=algorithm)))


def test_an_elliptic_curve_signature_has_exactly_the_size_of_two_numbers() -> None:
    key = public_key(PublicKey(kty="EC", crv="P-256", x=X, y=Y))
    assert key is not None
    token = jws.parse(with_header(alg="ES256"))
    r, s = utils.decode_dss_signature(PRIVATE.sign(token.signed, ec.ECDSA(jws._HASHES["ES256"]())))
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    key.verify(token._replace(signature=signature))
    for wrong in (
        signature[:-1],
        signature + b"\0",
        b"\0" + signature,
        b"",
        signature[32:] + signature[:32],
        bytes(64),
    ):
        with pytest.raises(Forged):
            key.verify(token._replace(signature=wrong))
    with pytest.raises(WrongAlgorithm):
        key.verify(jws.parse(with_header(alg="ES384"))._replace(signature=signature))
