"""Attacks: names that are paths, headers or log lines, invalid or excessive JSON, and password guessing.

They use raw connections, because a client library would normalize requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.app.access.support.world import LIMITS, ROOT
from tests.support.clocks import Seconds
from tests.support.running import run
from tests.transports.http.support.serving import Link, Response, Serving, serving
from whippet.app.access.throttle import AT_A_TIME, Throttle
from whippet.app.config.listeners import Http, HttpCors

PASSWORD = ROOT["IGGY_ROOT_PASSWORD"]
MESSAGES = "/streams/s/topics/t/messages"
AT_ONCE_S = 1.0
"""CPU seconds: no body may block other requests for longer."""


async def ask(world: Serving, method: str, path: str | bytes, json: Any = None, *more: str) -> Response:
    """Sends a request as root on a new connection."""
    link = await world.link()
    request = world.request(method, "THE_PATH", json, *more)
    return await link.ask(request.replace(b"THE_PATH", path.encode() if isinstance(path, str) else path, 1))


def number(response: Response) -> tuple[int, int]:
    reply = response.json()
    assert list(reply) == ["id", "code", "reason", "field"]
    assert response.headers["content-type"] == "application/json"
    assert "Traceback" not in reply["reason"]
    return response.status, reply["id"]


async def with_topic(world: Serving) -> None:
    assert (await ask(world, "POST", "/streams", {"name": "s"})).status == 200
    assert (await ask(world, "POST", "/streams/s/topics", {"name": "t", "partitions_count": 1})).status == 200


# ------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "path",
    [
        *(b"/streams/s/", b"//streams/s", b"/streams//s", b"/./streams/s", b"/streams/./s", b"/streams/x/../s"),
        *(b"/STREAMS/s", b"/stream%73/s", b"/%73treams/s", b"/streams;x=1/s", b"/streams%2Fs", b"/streams%00/s"),
        *(b"/streams\\s", b"/streams/s%2Fpurge", b"/streams/s%252Fpurge", b"/streams/s%2F", b"/streams/%2Fs"),
        *(b"/streams/%2e%2e/s", b"/streams/..%2fs", b"/streams/x%2f..%2fs", b"/streams/s%00", b"/streams/s%00.json"),
        *(
            b"/streams/s%20",
            b"/streams/%20s",
            b"/streams/s%0A",
            b"/streams/s%0d%0aX:%20y",
            b"/streams/S",
            b"/streams/%",
        ),
        *(b"/streams/%7", b"/streams/%zz", b"/streams/%u0073", b"/streams/%EF%BC%93", b"/streams/00s", b"/streams/-0"),
        *(b"/streams/s.json", b"/streams/s;v=1", b"/streams/s,s", b"/streams/*", b"/streams/s\\", b"*"),
    ],
)
async def test_a_stream_is_reached_by_one_spelling_of_its_path_only(tmp_path: Path, path: bytes) -> None:
    async with serving(tmp_path) as world:
        await with_topic(world)
        for method in ("GET", "PUT", "DELETE"):
            response = await ask(world, method, path, {"name": "stolen"} if method == "PUT" else None)
            assert response.status in (404, 405), response.body
            number(response)
        assert (await ask(world, "GET", "/streams/%73")).status == 200
        assert [each["name"] for each in (await ask(world, "GET", "/streams")).json()] == ["s"]


@pytest.mark.parametrize(
    "path",
    [
        # Not UTF-8: stray, overlong `/` and `.`, a surrogate, beyond the last character, truncated.
        *(b"%FF", b"%80", b"%C0%AF", b"%E0%80%AF", b"%F0%80%80%AF", b"%C0%AE%C0%AE", b"%ED%A0%80", b"%F4%90%80%80"),
        *(b"%C3", b"s%E2%82", b"\xff", b"\xc3\xa4", b"\xc0\xaf"),
        # Invalid in every path.
        *(b"\x01", b"s\x00", b"s\tx", b"s\x7f", b" s", b"s x", b"s#", b"s#purge", b"s?x#y"),
        # Longer than a name may be.
        *(b"s" * 256, b"%C3%A4" * 128, b"%73" * 256),
    ],
)
async def test_an_invalid_name_is_refused_before_any_lookup(tmp_path: Path, path: bytes) -> None:
    async with serving(tmp_path) as world:
        await with_topic(world)
        for method, rest in (("DELETE", b""), ("DELETE", b"/topics/t"), ("GET", b"/topics")):
            assert number(await ask(world, method, b"/streams/" + path + rest))[0] == 400
        assert (await ask(world, "GET", "/streams/s/topics/t")).status == 200


async def test_ids_are_decimal_only(tmp_path: Path) -> None:
    """Leading zeros are ignored, as in the reference; anything else that looks like a number is a name."""

    async with serving(tmp_path) as world:
        await with_topic(world)
        for text in ("0", "00", "0000000000000000000"):
            assert (await ask(world, "GET", f"/streams/{text}")).status == 200, text
        for text in (
            "+0",
            "-0",
            "0x0",
            "0.0",
            "0e0",
            "0_0",
            "%C2%B2",
            "%D9%A0",
            "%EF%BC%90",
            "4294967296",
            "0" * 300,
        ):
            assert (await ask(world, "GET", f"/streams/{text}")).status in (404, 400), text


# ------------------------------------------------------------------------------------------------- headers and logs

HOSTILE = (
    "s\r\nSet-Cookie: a=b",
    "\n2026-01-01T00:00:00.000Z INFO    app: all is well",
    "\x1b[2J\x1b[31mred",
    "a\u2028b\u0085c",
    'quote"\\',
    "%0d%0aX: y",
    "${jndi:ldap://x}",
    "<script>alert(1)</script>",
)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_name_cannot_inject_a_header_or_a_log_line(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(tmp_path) as world:
            path = f"/streams/{quote(name, safe='')}"
            assert (await ask(world, "DELETE", path)).json()["id"] == 1009
            assert (await ask(world, "POST", "/streams", {"name": name})).json()["name"] == name
            assert number(await ask(world, "POST", "/streams", {"name": name})) == (400, 1012)
            missing = {"partitioning": {"kind": "balanced", "value": ""}, "messages": [{"payload": "eA=="}]}
            unheard = f"{path}/topics/{quote(name, safe='')}/messages?ack=none"
            assert (await ask(world, "POST", unheard, missing)).status == 404
            await ask(world, "POST", f"{path}/topics", {"name": name, "partitions_count": 1})
            topic = f"{path}/topics/{quote(name, safe='')}"
            assert (await ask(world, "POST", f"{topic}/consumer-groups", {"name": name})).status == 201
            lease = await ask(world, "POST", f"{topic}/consumer-groups/{quote(name, safe='')}/leases")
            assert lease.status == 201
            assert lease.headers["location"].startswith(topic)
            assert (await ask(world, "GET", lease.headers["location"])).status == 200
            user = {"username": name[:40], "password": "secret", "status": "active"}
            await ask(world, "POST", "/users", user)
            for password in ("wrong password", "secret"):
                body = {"username": name[:40], "password": password}
                assert (await ask(world, "POST", "/users/login", body)).status in (200, 400)
            await ask(world, "POST", "/personal-access-tokens", {"name": name[:30], "expiry": 1})
            for response in (lease, await ask(world, "GET", "/streams"), await ask(world, "GET", "/metrics")):
                assert not response.headers.keys() & {"set-cookie", "x"}
            assert all(each["name"] == name for each in (await ask(world, "GET", "/streams")).json())
    for record in caplog.records:
        text = record.getMessage()
        assert text.isprintable(), text


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"X: a\rb",
            b"X: a\nY: b",
            b"X: a\x00b",
            b"X : a",
            b" X: a",
            b"X\x00: a",
            b"X\r: a",
            b"\xff: a",
            b": a",
            b"X",
        ),
        *(b"X: a\r\n folded", b"Content-Length: 0\r\n\tfolded"),
    ],
)
async def test_an_ambiguous_header_is_refused(tmp_path: Path, line: bytes) -> None:
    async with serving(tmp_path) as world:
        link = await world.link()
        response = await link.ask(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n")
        assert response.status == 400, response.body


async def test_only_a_listed_origin_is_returned(tmp_path: Path) -> None:
    for number, (allowed, repeated) in enumerate(((("*",), "*"), ((), None), (("https://good",), None))):
        async with serving(tmp_path / f"{number}", Http(cors=HttpCors(allowed_origins=allowed))) as world:
            for origin in ("https://evil", "null", "https://a\tb", "x" * 4000):
                response = await ask(world, "GET", "/streams", None, f"Origin: {origin}")
                assert response.headers.get("access-control-allow-origin") == repeated
                assert "access-control-allow-credentials" not in response.headers


# ------------------------------------------------------------------------------------------------- JSON


def nested(depth: int, begin: bytes, end: bytes) -> bytes:
    return b'{"name":"x","more":' + begin * depth + b"1" + end * depth + b"}"


NO_JSON = {
    "deep arrays": nested(100_000, b"[", b"]"),
    "deep objects": nested(100_000, b'{"a":', b"}"),
    "NaN": b'{"name":"x","more":NaN}',
    "infinity": b'{"name":"x","more":-Infinity}',
    "a hexadecimal number": b'{"name":"x","more":0x10}',
    "a leading zero": b'{"name":"x","more":01}',
    "a plus": b'{"name":"x","more":+1}',
    "a million digits": b'{"name":"x","more":%b}' % (b"9" * 1_000_000),
    "half a surrogate": b'{"name":"\\ud800"}',
    "the other half": b'{"name":"\\udc00"}',
    "two in the wrong order": b'{"name":"\\udc00\\ud800"}',
    "half a surrogate in a key": b'{"name":"x","\\ud800":1}',
    "half a surrogate where nobody looks": b'{"name":"x","more":"\\ud800"}',
    "a surrogate as bytes": b'{"name":"\xed\xa0\x80"}',
    "an overlong slash": b'{"name":"\xc0\xaf"}',
    "latin-1": '{"name":"ä"}'.encode("latin-1"),
    "a control character": b'{"name":"a\nb"}',
    "a NUL": b'{"name":"a\x00b"}',
    "a byte order mark": b'\xef\xbb\xbf{"name":"x"}',
    "UTF-16": '{"name":"x"}'.encode("utf-16"),
    "UTF-32": '{"name":"x"}'.encode("utf-32-le"),
    "a comment": b'{"name":"x"/* more */}',
    "a comma at the end": b'{"name":"x",}',
    "other quotes": b"{'name':'x'}",
    "two documents": b'{"name":"x"}{"name":"y"}',
    "trailing bytes": b'{"name":"x"}\x00',
    "an unknown escape": b'{"name":"\\x41"}',
    "nothing": b"",
    "spaces": b"   ",
}
UNFIT = {
    "the same twice": b'{"name":"x","name":"y"}',
    "the same twice, spelt otherwise": b'{"name":"x","n\\u0061me":"y"}',
    "the same twice, where nobody looks": b'{"name":"x","more":[{"a":1,"a":1}]}',
    "arrays that do not end": b"[" * 1_000_000,
    "objects that do not end": b'{"name":' * 200_000,
    "null": b"null",
    "a list": b'["x"]',
    "a list as a name": b'{"name":["x"]}',
    "a number as a name": b'{"name":1e400}',
    "true as a name": b'{"name":true}',
}


@pytest.mark.parametrize("what", [*NO_JSON, *UNFIT])
async def test_invalid_json_and_duplicate_members_store_nothing_and_cost_nothing(tmp_path: Path, what: str) -> None:
    body = (NO_JSON | UNFIT)[what]
    status = 400 if what in NO_JSON else 422

    async with serving(tmp_path) as world:
        began = time.process_time()
        assert number(await ask(world, "POST", "/streams", body)) == (status, status)
        assert time.process_time() - began < AT_ONCE_S
        assert (await ask(world, "GET", "/streams")).json() == []


@pytest.mark.parametrize(
    "more",
    [
        b"1e400",
        b"-0",
        b"0.%b" % (b"9" * 1_000_000),
        b"1e999999999",
        nested(100, b"[", b"]"),
        b'"\\ud83d\\ude00"',
        b'"%b"' % (b"x" * 1_000_000),
        b"{%b}" % b",".join(b'"%d":0' % i for i in range(100_000)),
    ],
)
async def test_unknown_members_are_ignored_whatever_they_contain(tmp_path: Path, more: bytes) -> None:
    async with serving(tmp_path) as world:
        began = time.process_time()
        response = await ask(world, "POST", "/streams", b'{"name":"x","more":%b}' % more)
        assert response.status == 200
        assert time.process_time() - began < AT_ONCE_S


@pytest.mark.parametrize(
    "message",
    [
        *('"id":%s' % ("9" * 1_000_000), '"id":%s' % ("9" * 39), f'"id":{2**128}', '"id":-1', '"id":1e3', '"id":1.0'),
        *('"id":"%s"' % ("9" * 1_000_000), '"id":true', '"id":[]', '"id":"0x10"', '"id":"٥"', '"id":" 1"'),
        *('"user_headers":[1]', '"user_headers":"%"', '"user_headers":{"k":null}'),
        '"user_headers":[{"key":{"kind":"none","value":"eA=="},"value":{"kind":"raw","value":"eA=="}}]',
    ],
)
async def test_an_invalid_message_is_refused_with_its_whole_request(tmp_path: Path, message: str) -> None:
    messages = f'{{"payload":"eA=="}},{{"payload":"eA==",{message}}}'
    body = f'{{"partitioning":{{"kind":"balanced","value":""}},"messages":[{messages}]}}'

    async with serving(tmp_path) as world:
        await with_topic(world)
        began = time.process_time()
        assert number(await ask(world, "POST", MESSAGES, body.encode())) == (422, 422)
        assert time.process_time() - began < AT_ONCE_S
        assert (await ask(world, "GET", MESSAGES)).json()["count"] == 0


@pytest.mark.parametrize(
    "payload", ["eA", "eA=", "eA====", "eA==eA==", "eA ==", "eA=\\n=", "_-8=", "%", "\\u0000", "eA==\\ud800", "="]
)
async def test_a_payload_must_be_strict_base64(tmp_path: Path, payload: str) -> None:
    body = f'{{"partitioning":{{"kind":"balanced","value":""}},"messages":[{{"payload":"{payload}"}}]}}'

    async with serving(tmp_path) as world:
        await with_topic(world)
        assert number(await ask(world, "POST", MESSAGES, body.encode()))[0] in (400, 422)
        assert (await ask(world, "GET", MESSAGES)).json()["count"] == 0


async def test_a_query_with_many_and_long_fields_costs_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, headers_bytes=1 << 22) as world:
        await with_topic(world)
        for query in ("&" * 50_000, "count=1&" * 5_000, f"value={'9' * 50_000}", "x=" + "%41" * 20_000, "=&=&="):
            began = time.process_time()
            response = await ask(world, "GET", f"{MESSAGES}?{query}")
            assert response.status in (200, 400), query[:20]
            assert time.process_time() - began < AT_ONCE_S


# ------------------------------------------------------------------------------------------------- tokens


def encoded(claims: Any) -> str:
    text = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def forged(token: str) -> dict[str, str]:
    """Forges tokens from a valid one."""
    head, body, signature = token.split(".")
    two = encoded(b'{"alg":"none","alg":"HS256"}')
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    other = encoded(claims | {"sub": "1"})
    none = encoded({"typ": "JWT", "alg": "none"})
    return {
        "unsigned": f"{none}.{body}.",
        "unsigned, spelt otherwise": f"{encoded({'typ': 'JWT', 'alg': 'nOnE'})}.{body}.",
        "unsigned, with the signature": f"{none}.{body}.{signature}",
        "without a signature": f"{head}.{body}.",
        "for another user": f"{head}.{other}.{signature}",
        "with another algorithm": f"{encoded({'typ': 'JWT', 'alg': 'HS512'})}.{body}.{signature}",
        "with two algorithms": f"{two}.{body}.{signature}",
        "with a key of its own": f"{encoded({'alg': 'HS256', 'jwk': {'kty': 'oct', 'k': 'AA'}})}.{body}.{signature}",
        "with the path of a key": f"{encoded({'alg': 'HS256', 'kid': '../../../dev/null'})}.{body}.{signature}",
        "with the address of keys": f"{encoded({'alg': 'RS256', 'jku': 'http://127.0.0.1:1/', 'kid': 'x'})}.{body}.x",
        "with what has to be understood": f"{encoded({'alg': 'HS256', 'crit': ['exp']})}.{body}.{signature}",
        "padded": f"{head}.{body}.{signature}=",
        "in the other alphabet": f"{head}.{body}.{signature[:-1]}+",
        "with a part more": f"{token}.x",
        "with a space": f"{head}. {body}.{signature}",
        "with an empty head": f".{body}.{signature}",
        "very long": f"{head}.{'A' * 20_000}.{signature}",
        "deep": f"{encoded(b'[' * 10_000)}.{body}.{signature}",
        "twice": f"{token}, {token}",
    }


async def test_forged_tokens_are_refused_everywhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        true = world.token
        assert (await ask(world, "GET", "/streams")).status == 200
        for what, token in forged(true).items():
            world.token = token
            assert number(await ask(world, "GET", "/streams")) == (401, 40), what
            status, code = number(await ask(world, "POST", "/users/refresh-token", {"token": token}))
            assert (status, code) in ((401, 78), (401, 40), (400, 73)), what
        world.token = true
        assert (await ask(world, "GET", "/streams")).status == 200


# ------------------------------------------------------------------------------------------------- guessing

REFUSED, TOO_MANY = (400, 42), (429, 20010)
SEEN = 7
"""Attempts until the next one would have to wait longer than a client does."""


class Guarded:
    """A server that counts password checks."""

    def __init__(self, world: Serving, clock: Seconds, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.clock = clock
        self.checked = 0
        passwords = world.world.passwords
        verify = passwords.verify

        async def counting(*given: Any) -> bool:
            self.checked += 1
            return await verify(*given)

        monkeypatch.setattr(passwords, "verify", counting)

    async def log_in(self, username: str, password: str, *more: str) -> Response:
        link = await self.world.link()
        body = msgspec.json.encode({"username": username, "password": password})
        lines = [
            "POST /users/login HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        return await link.ask("\r\n".join([*lines, *more, "", ""]).encode() + body)


def guarded(tmp_path: Path, test: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Seconds()
        throttle = Throttle(LIMITS, clock=clock, sleep=clock.sleep)
        async with serving(tmp_path, Http(), store={"throttle": throttle}) as world:
            await test(Guarded(world, clock, monkeypatch))

    run(main())


def test_password_guessing_is_slowed_and_then_refused_without_a_check_for_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is that of the connection. Tokens still work there."""

    async def test(server: Guarded) -> None:
        for attempt in range(50):
            address = f"10.{attempt}.0.1"
            response = await server.log_in(
                f"somebody {attempt % 20}",
                f"guess {attempt}",
                f"X-Forwarded-For: {address}",
                f"X-Forwarded-For: {address}, 127.0.0.1",
                f"Forwarded: for={address}",
                f"X-Real-IP: {address}",
                f"True-Client-IP: {address}",
                f"CF-Connecting-IP: {address}",
                f"X-Client-IP: {address}",
            )
            assert number(response) == (REFUSED if attempt < SEEN else TOO_MANY)
            assert response.json()["reason"].count("guess") == 0
        assert server.checked == SEEN
        assert [round(seconds) for seconds in server.clock.slept] == [1, 2, 4, 8]
        returned = await server.log_in("root", PASSWORD)
        assert number(returned) == TOO_MANY
        assert "try again in 16 s" in returned.json()["reason"]
        assert returned.headers["retry-after"] == "16"
        assert server.checked == SEEN
        assert (await ask(server.world, "GET", "/streams")).status == 200
        server.clock.now += 16
        assert (await server.log_in("root", PASSWORD)).status == 200

    guarded(tmp_path, test, monkeypatch)


def test_guessing_on_many_connections_gains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Guarded) -> None:
        attempts = [server.log_in(f"somebody {i}", "a guess") for i in range(100)]
        for response in await asyncio.gather(*attempts):
            assert number(response) in (REFUSED, TOO_MANY)
        assert server.checked <= SEEN + AT_A_TIME

    guarded(tmp_path, test, monkeypatch)


def test_a_stolen_token_does_not_help_to_guess_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Guarded) -> None:
        for attempt in range(50):
            body = {"current_password": f"guess {attempt}", "new_password": "mine now"}
            returned = await ask(server.world, "PUT", "/users/root/password", body)
            assert number(returned) == (REFUSED if attempt < SEEN else TOO_MANY)
        assert server.checked == SEEN
        body = {"current_password": PASSWORD, "new_password": "mine now"}
        assert number(await ask(server.world, "PUT", "/users/root/password", body)) == TOO_MANY

    guarded(tmp_path, test, monkeypatch)


def test_a_user_who_logged_in_before_is_not_locked_out_by_others_at_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(server: Guarded) -> None:
        assert (await server.log_in("root", PASSWORD)).status == 200
        for attempt in range(20):
            await server.log_in(f"somebody {attempt}", "a guess")
        assert (await server.log_in("root", PASSWORD)).status == 200

    guarded(tmp_path, test, monkeypatch)


def test_pipelined_guesses_are_answered_in_order_and_no_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(server: Guarded) -> None:
        link: Link = await server.world.link()
        body = b'{"username":"root","password":"a guess"}'
        head = b"POST /users/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await link.send((head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)) * 30)
        returned = [number(await link.response()) for _ in range(30)]
        assert returned == [*[REFUSED] * SEEN, *[TOO_MANY] * (30 - SEEN)]
        assert server.checked == SEEN

    guarded(tmp_path, test, monkeypatch)
