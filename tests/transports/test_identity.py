"""A session acts only for the user who logged in: over real sockets, as an attacker would see it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from tests.app.access.support.world import HOME
from tests.storage.support.world import settled
from tests.transports.http.support.calling import make_api
from tests.transports.http.support.serving import Link, Serving, serving
from tests.transports.support.raw import Raw, served
from whippet.app import housekeeping
from whippet.app.access.permissions import ALL
from whippet.app.commands import requests
from whippet.app.commands.requests import UserStatus
from whippet.app.config.formats import Address
from whippet.transports.tcp import TcpListener

ACTIVE = UserStatus.ACTIVE
STALE_CLIENT, UNAUTHENTICATED = 30, 40
MESSAGES = "/streams/s/topics/t/messages"


async def connected_from(port: int, listener: TcpListener) -> Raw:
    link = socket.socket()
    link.setblocking(False)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    link.bind(("127.0.0.1", port))
    await asyncio.get_running_loop().sock_connect(link, (listener.address.host, listener.address.port))
    return Raw(link)


async def test_an_evicted_connection_that_closes_late_hides_no_other_one(tmp_path: Path) -> None:
    """A client of another listener can have the same address and port, and then has the number of the evicted one."""
    async with served(tmp_path) as made:
        gateway = made.listener.gateway
        second = TcpListener(gateway)
        await second.listen(Address("127.0.0.1", 0), "tcp.address", None)
        root = await made.root()
        assert (await root.ask(requests.CreateUser("alice", "alicealice", ACTIVE, ALL)))[0] == 0
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            evicted = await connected_from(port, made.listener)
            assert (await evicted.ask(requests.LoginUser("root", "root's password")))[0] == 0
            for session in gateway.sessions:
                session.last_heartbeat = 0 if session.address.endswith(f":{port}") else 2**62
            await housekeeping.evict_silent_clients(gateway)
            alice = await connected_from(port, second)
            assert (await alice.ask(requests.LoginUser("alice", "alicealice")))[0] == 0
        evicted.link.close()
        while made.connections > 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(gateway.sessions) == 2
        assert (await root.ask(requests.DeleteUser("alice")))[0] == 0
        assert (await root.ask(requests.CreateUser("mallory", "mallory", ACTIVE, ALL)))[0] == 0
        assert await alice.is_closed()
        alice.link.close()
        await second.stop(1)


async def test_a_long_poll_is_not_answered_for_a_later_user_with_the_same_number(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        root, poll = await made.link(), await made.link()
        await prepared(made, root)
        token = made.api.access_tokens.issue(made.world.gateway.users.get("alice")).text
        await poll.send(_get(f"{MESSAGES}?wait=60s&partition_id=0", token))
        while not len(made.api.waiting):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await root.ask(made.request("DELETE", "/users/alice"))).status == 204
        made_again = await root.ask(made.request("POST", "/users", BOB))
        assert made_again.json()["id"] == 1
        users = made.world.gateway.users
        await users.change_permissions("bob", ALL)
        assert (await root.ask(made.request("POST", MESSAGES, ONE))).status == 201
        answer = await poll.response()
        assert (answer.status, answer.json()["id"]) == (401, UNAUTHENTICATED)


async def test_a_new_password_invalidates_stolen_tokens_and_their_refresh(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        link = await made.link()
        await prepared(made, link)
        user = made.world.gateway.users.get("alice")
        stolen, own = made.api.access_tokens.issue(user).text, made.api.access_tokens.issue(user).text
        asked = {"current_password": "alicealice", "new_password": "another"}
        made.token = own
        assert (await link.ask(made.request("PUT", "/users/alice/password", asked))).status == 204
        for token in (stolen, own):
            assert (await link.ask(_get("/users/me", token))).status == 401
            refreshed = await link.ask(made.request("POST", "/users/refresh-token", {"token": token}))
            assert refreshed.status == 401
        assert (await made.world.gateway.users.log_in("alice", "another", HOME)).id == 1
        # Also after a restart: the earlier tokens stay invalid.
        again = await make_api(made.world, made.world.store)
        assert await again.access_tokens.authenticate(stolen) is None
        await again.close()


async def test_a_request_over_http_ends_all_sessions_of_a_user(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        link = await made.link()
        await prepared(made, link)
        alice = made.world.gateway.users.get("alice")
        connected = await made.world.logged_in("alice")
        raw = await made.api.gateway.personal_tokens.create(alice, "build", 0)
        for path, keeps_raw in (
            ("/users/me/sessions", True),
            ("/users/me/sessions?personal_access_tokens=true", False),
        ):
            made.token = made.api.access_tokens.issue(alice).text
            assert (await link.ask(made.request("DELETE", path))).status == 204
            assert (await link.ask(_get("/users/me", made.token))).status == 401
            assert (await link.ask(_get("/users/me", raw))).status == (200 if keeps_raw else 401)
        assert connected.ended


async def test_a_thousand_and_five_logouts_of_a_user_end_no_other_token_of_theirs(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        link = await made.link()
        await prepared(made, link)
        alice = made.world.gateway.users.get("alice")
        kept = made.api.access_tokens.issue(alice).text
        for _ in range(1005):
            made.token = made.api.access_tokens.issue(alice).text
            assert (await link.ask(made.request("DELETE", "/users/logout"))).status == 204
        assert (await link.ask(_get("/users/me", made.token))).status == 401
        assert (await link.ask(_get("/users/me", kept))).status == 200


async def test_a_user_deleted_during_an_upload_does_not_act_as_the_next_user(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        link = await made.link()
        await prepared(made, link)
        users = made.world.gateway.users
        await users.change_permissions("alice", ALL)
        made.token = made.api.access_tokens.issue(users.get("alice")).text
        request = made.request("POST", "/streams", {"name": "hers"})
        await link.send(request[:-4])
        await settled()
        await users.delete("alice")
        assert (await users.create("bob", "bobbob", ACTIVE, ALL)).id == 1
        answer = await link.ask(request[-4:])
        assert answer.status == 401
        assert made.world.gateway.streams.find("hers") is None


BOB = {"username": "bob", "password": "bobbob", "status": "active"}
ONE = {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": [{"payload": "eA=="}]}


def _get(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


async def prepared(made: Serving, root: Link) -> None:
    """Stream s with topic t, and alice, who may do anything."""
    assert (await root.ask(made.request("POST", "/streams", {"name": "s"}))).status == 200
    topic = made.request("POST", "/streams/s/topics", {"name": "t", "partitions_count": 1})
    assert (await root.ask(topic)).status == 200
    alice = {"username": "alice", "password": "alicealice", "status": "active"}
    assert (await root.ask(made.request("POST", "/users", alice))).json()["id"] == 1
    await made.world.gateway.users.change_permissions("alice", ALL)
