"""Access tokens: whom they authenticate, how long they are valid, and all kinds of forgeries, which are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tests.app.access.support.access_tokens import CONFIG, SECRET, token_world
from tests.app.access.support.world import SECOND, refusal
from tests.storage.support.world import settled
from whippet.app.access import access_tokens, issuer_keys
from whippet.app.access.access_tokens import FOLDER, _uuid7
from whippet.app.access.ended_tokens import NAME as ENDED
from whippet.app.access.signing_key import NAME as KEY
from whippet.app.commands import requests
from whippet.app.config import ConfigError
from whippet.app.config.formats import Secret
from whippet.app.config.listeners import HttpJwt, TrustedIssuer
from whippet.app.errors import Code
from whippet.app.model.identity import UserStatus

# ------------------------------------------------------------------------------------------------------------- parsing


def part(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def opened(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    header, claims, _ = text.split(".")
    return json.loads(base64.urlsafe_b64decode(header + "==")), json.loads(base64.urlsafe_b64decode(claims + "=="))


def signed(header: Any, claims: Any, secret: str = SECRET, digest: str = "sha256") -> str:
    begin = f"{part(_json(header))}.{part(_json(claims))}"
    return f"{begin}.{part(hmac.digest(secret.encode(), begin.encode(), digest))}"


def _json(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


# ------------------------------------------------------------------------------------------------ issuing


async def test_a_token_contains_what_clients_read(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        issued = made.tokens.issue(made.find("root"))
        header, claims = opened(issued.text)
        now = made.clock() // SECOND
        assert header == {"typ": "JWT", "alg": "HS256"}
        assert claims["sub"] == "0"
        assert (claims["iss"], claims["aud"]) == ("iggy.apache.org", "iggy.apache.org")
        assert (claims["iat"], claims["nbf"], claims["exp"]) == (now, now, now + 3600)
        assert issued.expires_at == claims["exp"]
        assert claims["jti"][14] == "7"
        assert len(claims["jti"]) == 36
        assert await made.user_of(issued.text) == "root"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_each_configured_algorithm_verifies_only_its_own_signatures(tmp_path: Path, algorithm: str) -> None:
    config = msgspec.structs.replace(CONFIG, algorithm=algorithm)
    async with token_world(tmp_path, config) as made:
        token = made.give()
        assert opened(token)[0]["alg"] == algorithm
        assert await made.user_of(token) == "root"
        for other in {"HS256", "HS384", "HS512"} - {algorithm}:
            tokens = await made.reopened(msgspec.structs.replace(CONFIG, algorithm=other))
            assert await tokens.authenticate(token) is None
            assert await refusal(tokens.refresh(token)) == Code.INVALID_JWT_ALGORITHM


# ------------------------------------------------------------------------------------------------- forgeries


def forgeries(token: str) -> dict[str, str]:
    header, claims = opened(token)
    begin, _, signature = token.rpartition(".")
    plain_head = part(_json(header))
    return {
        "nothing": "",
        "dots": "..",
        "two parts": begin,
        "four parts": f"{token}.{signature}",
        "no signature": f"{begin}.",
        "alg none": f"{part(_json({'alg': 'none', 'typ': 'JWT'}))}.{part(_json(claims))}.",
        "alg None": f"{part(_json({'alg': 'None'}))}.{part(_json(claims))}.{signature}",
        "alg nOnE signed": signed({"alg": "nOnE"}, claims),
        "alg empty": signed({"alg": ""}, claims),
        "no alg": signed({"typ": "JWT"}, claims),
        "alg a number": signed({"alg": 256}, claims),
        "alg a list": signed({"alg": ["HS256"]}, claims),
        "alg in small letters": signed({"alg": "hs256"}, claims),
        "another hmac": signed(header | {"alg": "HS512"}, claims, digest="sha512"),
        "another hmac under our name": signed(header, claims, digest="sha512"),
        "RS256 signed with the secret": signed(header | {"alg": "RS256"}, claims),
        "ES256 signed with the secret": signed(header | {"alg": "ES256"}, claims),
        "another secret": signed(header, claims, secret="guessed"),
        "the empty secret": signed(header, claims, secret=""),
        "crit": signed(header | {"crit": ["b64"], "b64": True}, claims),
        "empty crit": signed(header | {"crit": []}, claims),
        "null crit": signed(header | {"crit": None}, claims),
        "unknown crit": signed(header | {"crit": ["x"], "x": 1}, claims),
        "another typ": signed(header | {"typ": "JWE"}, claims),
        "a key of its own": signed(header | {"jwk": {"kty": "oct", "k": part(b"mine")}}, claims, secret="mine"),
        "a header that is no object": f"{part(b'[]')}.{part(_json(claims))}.{signature}",
        "a header that is no JSON": f"{part(b'{')}.{part(_json(claims))}.{signature}",
        "claims that are no object": signed(header, b"[]"),
        "claims that are no JSON": signed(header, b"{"),
        "claims that are no UTF-8": signed(header, b"\xff\xfe"),
        "claims nested too deeply": signed(header, b'{"x":' * 5000 + b"1" + b"}" * 5000),
        "changed claims": f"{plain_head}.{part(_json(claims | {'sub': '1'}))}.{signature}",
        "a changed signature": f"{begin}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}",
        "a signature cut short": f"{begin}.{signature[:-2]}",
        "a padded signature": f"{token}=",
        "the standard alphabet": f"{begin}.{signature[:-1]}+",
        "a line end": f"{token}\n",
        "a space": f"{token} ",
        "letters of other alphabets": f"{begin}.{signature[:-1]}ä",
        "far too long": f"{part(b' ' * 9000 + _json(header))}.{part(_json(claims))}.{signature}",
        "another issuer": signed(header, claims | {"iss": "https://evil.example"}),
        "another audience": signed(header, claims | {"aud": "somebody.else"}),
        "no audience": signed(header, claims | {"aud": []}),
        "audience a number": signed(header, claims | {"aud": 1}),
        "another user's number": signed(header, claims | {"sub": "1"}),
        "a user's name": signed(header, claims | {"sub": "root"}),
        "a number as subject": signed(header, claims | {"sub": 0}),
        "a subject below zero": signed(header, claims | {"sub": "-0"}),
        "a subject in other digits": signed(header, claims | {"sub": "٠"}),
        "a subject too long": signed(header, claims | {"sub": "0" * 5000}),
        "another mark": signed(header, claims | {"whippet_mark": "0" * 32}),
        "no mark": signed(header, {name: value for name, value in claims.items() if name != "whippet_mark"}),
        "expired": signed(header, claims | {"exp": claims["iat"] - 6}),
        "not yet": signed(header, claims | {"nbf": claims["iat"] + 6}),
        "an end that is no number": signed(header, claims | {"exp": "9999999999"}),
        "an end that is not finite": signed(header, _json(claims).replace(str(claims["exp"]).encode(), b"1e999")),
        **{
            f"without {name}": signed(header, {key: value for key, value in claims.items() if key != name})
            for name in ("jti", "iss", "aud", "sub", "iat", "exp", "nbf")
        },
    }


async def test_no_forged_token_is_accepted(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        await made.user("alice")
        token = made.give()
        for name, forged in forgeries(token).items():
            for _ in range(2):
                assert await made.user_of(forged) is None, name
            code = await refusal(made.tokens.refresh(forged))
            assert code in (Code.UNAUTHENTICATED, Code.INVALID_ACCESS_TOKEN, Code.INVALID_JWT_ALGORITHM), name
        assert await made.user_of(token) == "root", "and the true one still does"


async def test_a_token_for_several_audiences_is_accepted(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        header, claims = opened(made.give())
        assert await made.user_of(signed(header, claims | {"aud": ["else", "iggy.apache.org"]})) == "root"
        assert await made.user_of(signed(header | {"unknown": 1}, claims | {"more": [1]})) == "root"


async def test_a_token_without_an_epoch_belongs_to_the_first_epoch(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        header, claims = opened(made.give())
        del claims["whippet_epoch"]
        assert await made.user_of(signed(header, claims)) == "root"
        await made.gateway.users.end_sessions("root", end_tokens=False)
        assert await made.user_of(signed(header, claims)) is None


async def test_clocks_may_differ_by_the_configured_skew_and_no_more(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        header, claims = opened(made.give())
        now = claims["iat"]
        for changed, believed in (
            ({"exp": now - 4}, True),
            ({"exp": now - 5}, False),
            ({"nbf": now + 5}, True),
            ({"nbf": now + 6}, False),
        ):
            assert (await made.user_of(signed(header, claims | changed)) == "root") is believed, changed


async def test_a_token_that_was_accepted_before_still_expires(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        token = made.give()
        assert await made.user_of(token) == "root"
        made.clock.now += 3604 * SECOND
        assert await made.user_of(token) == "root"
        made.clock.now += 2 * SECOND
        assert await made.user_of(token) is None
        assert await refusal(made.tokens.refresh(token)) == Code.UNAUTHENTICATED


async def test_a_token_is_void_for_the_next_user_with_the_same_number(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        number = await made.user("alice")
        token = made.give("alice")
        assert await made.user_of(token) == "alice"
        root = await made.root()
        await root.execute(requests.DeleteUser("alice"))
        assert await made.user_of(token) is None
        assert await made.user("mallory") == number
        assert await made.user_of(token) is None
        assert await refusal(made.tokens.refresh(token)) == Code.UNAUTHENTICATED


async def test_tokens_stay_void_after_their_user_was_inactive(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        await made.user("alice")
        token = made.give("alice")
        root = await made.root()
        await root.execute(requests.UpdateUser("alice", None, UserStatus.INACTIVE))
        assert await made.user_of(token) is None
        await root.execute(requests.UpdateUser("alice", "renamed", UserStatus.ACTIVE))
        assert await made.user_of(token) is None
        assert await refusal(made.tokens.refresh(token)) == Code.UNAUTHENTICATED
        assert await made.user_of(made.give("renamed")) == "renamed"


# ------------------------------------------------------------------------------------------------- ending


async def test_a_token_can_be_refreshed_once_and_stays_valid(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        first = made.tokens.issue(made.find("root"), "0.6").text
        second = (await made.tokens.refresh(first)).text
        assert await refusal(made.tokens.refresh(first)) == Code.INVALID_ACCESS_TOKEN
        assert [await made.user_of(first), await made.user_of(second)] == ["root", "root"]
        caller = await made.tokens.authenticate(second)
        assert caller is not None
        assert caller.generation == "0.6", "what is known of the client is kept, too"


async def test_only_a_token_that_was_valid_until_all_sessions_were_ended_counts_as_ended(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        await made.user("alice")
        await made.user("bob")
        await made.user("carol")
        root = await made.root()
        token, revoked = made.give("alice"), made.give("alice")
        of_inactive, of_deleted = made.give("bob"), made.give("carol")
        caller = await made.tokens.authenticate(revoked)
        assert caller is not None
        assert caller.claims is not None
        await made.tokens.revoke(caller.claims)
        assert not made.tokens.has_ended(token)
        for name in ("alice", "bob", "carol"):
            await root.execute(requests.EndSessions(name))
        assert made.tokens.has_ended(token)
        assert made.tokens.has_ended(of_inactive)
        assert not made.tokens.has_ended(revoked)
        await root.execute(requests.UpdateUser("bob", None, UserStatus.INACTIVE))
        await root.execute(requests.DeleteUser("carol"))
        assert not made.tokens.has_ended(of_inactive)
        assert not made.tokens.has_ended(of_deleted)
        header, claims = opened(token)
        for forged in ("", "no token", signed(header, claims, "another secret")):
            assert not made.tokens.has_ended(forged)
        made.clock.now += 2 * 3600 * SECOND
        assert not made.tokens.has_ended(token)


async def test_ended_tokens_stay_ended_after_a_restart(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        revoked, refreshed, other = made.give(), made.give(), made.give()
        caller = await made.tokens.authenticate(revoked)
        assert caller is not None
        assert caller.claims is not None
        await made.tokens.revoke(caller.claims)
        await made.tokens.refresh(refreshed)
        for _ in range(2):
            assert await made.user_of(revoked) is None
            assert await refusal(made.tokens.refresh(revoked)) == Code.INVALID_ACCESS_TOKEN
            assert await refusal(made.tokens.refresh(refreshed)) == Code.INVALID_ACCESS_TOKEN
            assert await made.user_of(refreshed) == "root"
            assert await made.user_of(other) == "root"
            made.tokens = await made.reopened()


async def test_expired_entries_are_dropped_at_the_next_start(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        await made.tokens.refresh(made.give())
        assert (tmp_path / FOLDER / ENDED).stat().st_size
        made.clock.now += 2 * 3600 * SECOND
        await made.reopened()
        assert not (tmp_path / FOLDER / ENDED).exists()


async def test_only_unexpired_entries_count_towards_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with token_world(tmp_path) as made:
        monkeypatch.setattr(made.tokens._ended, "_per_user_max", 2)
        for _ in range(2):
            await made.tokens.refresh(made.give())
        token = made.give()
        assert await refusal(made.tokens.refresh(token)) == Code.TOO_MANY_ENDED_TOKENS
        made.clock.now += 3590 * SECOND
        assert await refusal(made.tokens.refresh(token)) == Code.TOO_MANY_ENDED_TOKENS
        made.clock.now += 20 * SECOND
        await made.tokens.refresh(made.give())


async def test_a_truncated_line_affects_no_other_entry(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        first, second, third = made.give(), made.give(), made.give()
        for token in (first, second):
            await made.tokens.refresh(token)
        file = tmp_path / FOLDER / ENDED
        file.write_bytes(file.read_bytes()[:-7])
        made.tokens = await made.reopened()
        assert await refusal(made.tokens.refresh(first)) == Code.INVALID_ACCESS_TOKEN
        await made.tokens.refresh(third)
        made.tokens = await made.reopened()
        for token in (first, third):
            assert await refusal(made.tokens.refresh(token)) == Code.INVALID_ACCESS_TOKEN


async def test_ending_a_token_fails_if_it_cannot_be_stored(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        token = made.give()
        (tmp_path / FOLDER / ENDED).mkdir(parents=True)
        assert await refusal(made.tokens.refresh(token)) == Code.CANNOT_WRITE_TO_FILE


# ------------------------------------------------------------------------------------------------- keys


async def test_a_key_is_created_once_for_its_owner_only_and_tokens_survive_a_restart(tmp_path: Path) -> None:
    async with token_world(tmp_path, HttpJwt()) as made:
        file = tmp_path / FOLDER / KEY
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(file.read_bytes()) == 64
        token = made.give()
        made.tokens = await made.reopened(HttpJwt())
        assert await made.user_of(token) == "root"
        file.unlink()
        made.tokens = await made.reopened(HttpJwt())
        assert await made.user_of(token) is None


async def test_a_readable_key_is_closed_to_others_and_half_a_key_is_refused(tmp_path: Path) -> None:
    async with token_world(tmp_path, HttpJwt()) as made:
        file = tmp_path / FOLDER / KEY
        os.chmod(file, 0o644)
        await made.reopened(HttpJwt())
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_bytes(b"short")
        with pytest.raises(ConfigError, match=r"signing\.key"):
            await made.reopened(HttpJwt())


async def test_a_configured_secret_creates_no_file_and_may_be_base64(tmp_path: Path) -> None:
    octets = hashlib.sha256(b"x").digest()
    config = HttpJwt(decoding_secret=Secret(base64.b64encode(octets).decode()), use_base64_secret=True)
    async with token_world(tmp_path, config) as made:
        assert not (tmp_path / FOLDER / KEY).exists()
        header, claims, signature = made.give().split(".")
        assert signature == part(hmac.digest(octets, f"{header}.{claims}".encode(), "sha256"))


async def test_of_two_secrets_the_first_signs_and_both_verify(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        old = made.give()
        both = HttpJwt(encoding_secret=Secret("new"), decoding_secret=Secret(SECRET))
        made.tokens = await made.reopened(both)
        new = made.give()
        assert [await made.user_of(old), await made.user_of(new)] == ["root", "root"]
        header, claims = opened(new)
        assert await made.user_of(signed(header, claims, "a third secret")) is None
        made.tokens = await made.reopened()
        assert await made.user_of(new) is None


# ------------------------------------------------------------------------------------------------- details


@pytest.mark.parametrize("now_us", [0, 999, 1000, 1_700_000_000_000_000, (2**48 - 1) * 1000, (2**48 + 5) * 1000])
def test_the_id_of_a_token_begins_with_its_time_and_ends_with_random_bits(now_us: int) -> None:
    ids = {_uuid7(now_us) for _ in range(100)}
    assert len(ids) == 100
    for each in ids:
        assert [len(group) for group in each.split("-")] == [8, 4, 4, 4, 12]
        assert uuid.UUID(each).version == 7
        assert uuid.UUID(each).variant == uuid.RFC_4122
        assert int(each.replace("-", "")[:12], 16) == now_us // 1000 % 2**48


async def test_a_subject_has_at_most_ten_digits(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        header, claims = opened(made.give())
        for digits, believed in ((1, True), (10, True), (11, False)):
            who = await made.user_of(signed(header, claims | {"sub": "0" * digits}))
            assert who == ("root" if believed else None)


async def test_the_number_of_remembered_tokens_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_tokens, "REMEMBERED_MAX", 3)
    async with token_world(tmp_path) as made:
        given = [made.give() for _ in range(4)]
        for remembered, token in zip((1, 2, 3, 1), given, strict=True):
            assert await made.user_of(token) == "root"
            assert len(made.tokens._remembered) == remembered
        assert [await made.user_of(token) for token in given] == ["root"] * 4


async def test_a_token_is_valid_from_the_configured_time_on(tmp_path: Path) -> None:
    async with token_world(tmp_path, msgspec.structs.replace(CONFIG, not_before=60.0)) as made:
        token = made.give()
        _, claims = opened(token)
        assert claims["nbf"] == claims["iat"] + 60
        assert await made.user_of(token) is None
        made.clock.now += 55 * SECOND
        assert await made.user_of(token) == "root"


async def test_a_token_has_the_configured_lifetime(tmp_path: Path) -> None:
    async with token_world(tmp_path, msgspec.structs.replace(CONFIG, access_token_expiry=90 * SECOND)) as made:
        _, claims = opened(made.give())
        assert claims["exp"] - claims["iat"] == 90
    async with token_world(tmp_path, msgspec.structs.replace(CONFIG, access_token_expiry=None)) as made:
        _, claims = opened(made.give())
        assert claims["exp"] - claims["iat"] == 1_000_000_000


async def test_a_token_names_the_generation_of_its_client_if_it_has_one(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        assert "whippet_client" not in opened(made.give())[1]
        assert opened(made.tokens.issue(made.find("root"), "0.6").text)[1]["whippet_client"] == "0.6"


async def test_each_reason_not_to_refresh_a_token_has_its_error_number(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        header, claims = opened(made.give())
        for text, code in (
            ("", Code.UNAUTHENTICATED),
            ("no token", Code.INVALID_ACCESS_TOKEN),
            (signed(header, claims, secret="guessed"), Code.UNAUTHENTICATED),
            (signed(header | {"alg": "RS256"}, claims), Code.INVALID_JWT_ALGORITHM),
        ):
            assert await refusal(made.tokens.refresh(text)) == code


async def test_an_ended_token_is_kept_until_it_has_expired_on_any_clock(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        token = made.give()
        await made.tokens.refresh(token)
        (line,) = (tmp_path / FOLDER / ENDED).read_bytes().splitlines()
        assert json.loads(line)[4] == opened(token)[1]["exp"] + 5 + 1


async def test_an_unusable_folder_prevents_the_start(tmp_path: Path) -> None:
    async with token_world(tmp_path) as made:
        (tmp_path / FOLDER / ENDED).mkdir(parents=True)
        with pytest.raises(ConfigError, match=r"access.* cannot be used: Is a directory"):
            await made.reopened()


# ------------------------------------------------------------------------------------------------ trusted issuers

ELSEWHERE = "https://issuer.example"


async def test_a_token_of_a_trusted_issuer_is_valid_while_its_user_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    point = private.public_key().public_numbers()
    key = {"kty": "EC", "kid": "k", "crv": "P-256", "x": _number(point.x), "y": _number(point.y)}
    asked: list[str] = []

    def keys(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, json={"keys": [key]})

    transport = httpx.MockTransport(keys)
    monkeypatch.setattr(issuer_keys, "_client", lambda: httpx.AsyncClient(transport=transport))

    def by_issuer(now: int, **more: object) -> str:
        claims = {"iss": ELSEWHERE, "aud": "whippet", "exp": now + 60, "sub": "anybody"} | more
        begin = f"{part(_json({'alg': 'ES256', 'kid': 'k'}))}.{part(_json(claims))}"
        r, s = utils.decode_dss_signature(private.sign(begin.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{begin}.{part(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    issuer = TrustedIssuer(issuer=ELSEWHERE, audience="whippet", jwks_url=f"{ELSEWHERE}/keys", user_id=1)
    async with token_world(tmp_path) as made:
        await made.user("alice")
        made.tokens = await made.reopened(msgspec.structs.replace(CONFIG, trusted_issuers=(issuer,)))
        await settled()
        assert asked == [f"{ELSEWHERE}/keys"], "keys are fetched at the start"
        token = by_issuer(made.clock() // SECOND)
        caller = await made.tokens.authenticate(token)
        assert caller is not None
        assert (caller.user.username, caller.claims, caller.generation) == ("alice", None, None)
        assert await refusal(made.tokens.refresh(token)) == Code.INVALID_ACCESS_TOKEN
        in_our_way = signed({"alg": "HS256", "kid": "k"}, opened(token)[1], secret="guessed")
        assert await refusal(made.tokens.refresh(in_our_way)) == Code.INVALID_ACCESS_TOKEN
        assert await made.user_of(by_issuer(made.clock() // SECOND, exp=made.clock() // SECOND - 5)) is None
        assert await made.user_of(made.give()) == "root"
        root = await made.root()
        await root.execute(requests.UpdateUser("alice", None, UserStatus.INACTIVE))
        assert await made.user_of(token) is None
        await root.execute(requests.DeleteUser("alice"))
        assert await made.user_of(token) is None
        assert await made.user("bob") == 1
        assert await made.user_of(token) is None, "bob has the number that alice had, and is somebody else"
        await made.tokens.close()
        made.tokens = await made.reopened(msgspec.structs.replace(CONFIG, trusted_issuers=(issuer,)))
        await settled()
        await root.execute(requests.DeleteUser("bob"))
        assert await made.user("carol") == 1
        assert await made.user_of(token) is None, "nor does it matter that no token was used before"
        await made.tokens.close()


def _number(value: int) -> str:
    return part(value.to_bytes(32, "big"))
