"""JSON Web Signatures in compact form (RFC 7515), as far as access tokens need them.

The key determines the algorithm, never the token: a key verifies its own algorithm and refuses every other, so `none`
does not exist, and a public key cannot be used as a secret. Critical extensions (`crit`) are not supported, and are
refused. Pure functions over bytes; the keys are managed elsewhere.
"""

from __future__ import annotations

import binascii
import hmac
from typing import NamedTuple, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

TOKEN_BYTES_MAX = 8192
"""No issuer needs more, and anybody may send a token."""


class NotAToken(Exception):
    """The text is no token: not three parts, not base64url, not JSON."""


class Forged(Exception):
    """A token that is not trusted: another algorithm, another signature, or an unsupported feature."""


class WrongAlgorithm(Forged):
    """The token names another algorithm than the key's."""


class Header(msgspec.Struct, frozen=True):
    alg: str
    typ: str | None = None
    kid: str | None = None
    crit: msgspec.Raw = msgspec.Raw()


class Token(NamedTuple):
    """A parsed token that is not verified yet."""

    header: Header
    payload: bytes
    signed: bytes
    signature: bytes


class Key(Protocol):
    def verify(self, token: Token) -> None:
        """Raises Forged unless this key has signed the token, with its own algorithm."""


_HEADER = msgspec.json.Decoder(Header)
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")


def parse(text: str) -> Token:
    if len(text) > TOKEN_BYTES_MAX or not text.isascii():
        raise NotAToken
    octets = text.encode()
    signed, _, signature = octets.rpartition(b".")
    head, dot, payload = signed.partition(b".")
    if not dot:
        raise NotAToken
    try:
        header = _HEADER.decode(_decoded(head))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NotAToken from error
    if header.crit or (header.typ is not None and header.typ.upper() not in ("JWT", "AT+JWT")):
        raise Forged
    return Token(header, _decoded(payload), signed, _decoded(signature))


def _decoded(part: bytes) -> bytes:
    if b"+" in part or b"/" in part or b"=" in part:
        raise NotAToken
    try:
        return binascii.a2b_base64(part.translate(_TO_STANDARD) + b"=" * (-len(part) % 4), strict_mode=True)
    except binascii.Error as error:
        raise NotAToken from error


def encoded(octets: bytes) -> bytes:
    return binascii.b2a_base64(octets, newline=False).translate(_TO_URL).rstrip(b"=")


_TO_URL = bytes.maketrans(b"+/", b"-_")


# ------------------------------------------------------------------------------------------------ shared secrets


class Secret:
    """A key that signs and verifies with one of the three HMACs."""

    def __init__(self, algorithm: str, secret: bytes) -> None:
        assert algorithm in ("HS256", "HS384", "HS512")
        self._algorithm = algorithm
        self._digest = f"sha{algorithm[2:]}"
        self._secret = secret
        self._header = encoded(msgspec.json.encode({"typ": "JWT", "alg": algorithm}))

    def sign(self, payload: bytes) -> str:
        signed = self._header + b"." + encoded(payload)
        return (signed + b"." + encoded(hmac.digest(self._secret, signed, self._digest))).decode()

    def verify(self, token: Token) -> None:
        if token.header.alg != self._algorithm:
            raise WrongAlgorithm
        if not hmac.compare_digest(hmac.digest(self._secret, token.signed, self._digest), token.signature):
            raise Forged


# -------------------------------------------------------------------------------------------------- public keys

RSA_BITS_MIN = 2048
RSA_BITS_MAX = 8192
_HASHES: dict[str, type[hashes.HashAlgorithm]] = {
    "RS256": hashes.SHA256,
    "RS384": hashes.SHA384,
    "RS512": hashes.SHA512,
    "ES256": hashes.SHA256,
    "ES384": hashes.SHA384,
    "ES512": hashes.SHA512,
}
_CURVES: dict[str, tuple[str, type[ec.EllipticCurve], int]] = {
    "P-256": ("ES256", ec.SECP256R1, 32),
    "P-384": ("ES384", ec.SECP384R1, 48),
    "P-521": ("ES512", ec.SECP521R1, 66),
}


class PublicKey(msgspec.Struct, frozen=True):
    """A key of a JWK set (RFC 7517). Unknown members are ignored, keys of unknown types are not used."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""


def public_key(described: PublicKey) -> Key | None:
    """Returns None for a key that cannot be used: of another type, for another purpose, or incomplete."""
    if described.use not in (None, "sig"):
        return None
    try:
        if described.kty == "RSA":
            return _RsaKey(described)
        if described.kty == "EC" and described.crv in _CURVES:
            return _EcKey(described)
    except (ValueError, NotAToken):
        return None
    return None


class _RsaKey:
    def __init__(self, described: PublicKey) -> None:
        modulus = _number(described.n)
        if not RSA_BITS_MIN <= modulus.bit_length() <= RSA_BITS_MAX:
            raise ValueError("the key is too short or too long")
        self._key = rsa.RSAPublicNumbers(_number(described.e), modulus).public_key()
        self._algorithms = (described.alg,) if described.alg else ("RS256", "RS384", "RS512")

    def verify(self, token: Token) -> None:
        algorithm = token.header.alg
        if algorithm not in self._algorithms or algorithm not in ("RS256", "RS384", "RS512"):
            raise WrongAlgorithm
        try:
            self._key.verify(token.signature, token.signed, padding.PKCS1v15(), _HASHES[algorithm]())
        except InvalidSignature as error:
            raise Forged from error


class _EcKey:
    def __init__(self, described: PublicKey) -> None:
        self._algorithm, curve, self._size = _CURVES[described.crv]
        if described.alg not in (None, self._algorithm):
            raise ValueError("the key is for another algorithm than its curve's")
        self._key = ec.EllipticCurvePublicNumbers(_number(described.x), _number(described.y), curve()).public_key()

    def verify(self, token: Token) -> None:
        if token.header.alg != self._algorithm:
            raise WrongAlgorithm
        if len(token.signature) != 2 * self._size:
            raise Forged
        r, s = (int.from_bytes(half, "big") for half in (token.signature[: self._size], token.signature[self._size :]))
        try:
            signature = utils.encode_dss_signature(r, s)
            self._key.verify(signature, token.signed, ec.ECDSA(_HASHES[self._algorithm]()))
        except InvalidSignature as error:
            raise Forged from error


def _number(text: str) -> int:
    if not text:
        raise ValueError("a number of the key is missing")
    return int.from_bytes(_decoded(text.encode()), "big")
