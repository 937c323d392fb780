"""Who may do what over HTTP: every route against every single permission, as the page of the API has it (10.3).

Which route asks for which right was written down from that page; the rights are those of the table of commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.commands.support.rights import RIGHTS, grants
from tests.transports.http.support.calling import Caller, Calling, calling
from whippet.app.access.permissions import ALL, Permissions
from whippet.app.commands import registry
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus
from whippet.transports.http import routes

ANY_USER = "any user"
STREAM, TOPIC = "/streams/0", "/streams/0/topics/0"
GROUP = f"{TOPIC}/consumer-groups/g"
MESSAGE = {"partitioning": {"kind": "partition_id", "value": "AAAAAA=="}, "messages": [{"payload": "eA=="}]}
CAROL = {"username": "carol", "password": "secret", "status": "active"}
PASSWORDS = {"current_password": "bobbob", "new_password": "another"}
SNAPSHOT = {"compression": "Stored", "snapshot_types": ["Test"]}

ROUTES: dict[str, tuple[str, int, str, Any]] = {
    "get_limits": (ANY_USER, 200, "/limits", None),
    "get_stats": ("server read", 200, "/stats", None),
    "get_clients": ("server read", 200, "/clients", None),
    "get_client": ("server read", 404, "/clients/1", None),
    "get_cluster_metadata": (ANY_USER, 200, "/cluster/metadata", None),
    "make_snapshot": ("server read", 200, "/snapshot", SNAPSHOT),
    "describe_options": (ANY_USER, 200, "/options/topic", None),
    "get_streams": ("all streams read", 200, "/streams", None),
    "create_stream": ("streams manage", 200, "/streams", {"name": "new"}),
    "get_stream": ("stream read", 200, STREAM, None),
    "update_stream": ("stream manage", 204, STREAM, {"name": "renamed"}),
    "purge_stream": ("stream manage", 204, f"{STREAM}/purge", None),
    "get_topics": ("topics read", 200, f"{STREAM}/topics", None),
    "create_topic": ("topics manage", 200, f"{STREAM}/topics", {"name": "new", "partitions_count": 1}),
    "get_topic": ("topic read", 200, TOPIC, None),
    "update_topic": ("topic manage", 204, TOPIC, {"name": "renamed"}),
    "purge_topic": ("topic manage", 204, f"{TOPIC}/purge", None),
    "create_partitions": ("topic manage", 201, f"{TOPIC}/partitions", {"partitions_count": 1}),
    "delete_partitions": ("topic manage", 204, f"{TOPIC}/partitions?partitions_count=1", None),
    "delete_segments": ("topic manage", 204, f"{TOPIC}/partitions/0?segments_count=1", None),
    "send_messages": ("send", 201, f"{TOPIC}/messages", MESSAGE),
    "poll_messages": ("poll", 200, f"{TOPIC}/messages", None),
    "tail_messages": ("poll", 200, f"{TOPIC}/messages/tail", None),
    "flush": ("send", 200, f"{TOPIC}/messages/flush/0/true", None),
    "store_consumer_offset": ("poll", 204, f"{TOPIC}/consumer-offsets", {"offset": 0}),
    "get_consumer_offset": ("poll", 200, f"{TOPIC}/consumer-offsets", None),
    "delete_consumer_offset": ("poll", 204, f"{TOPIC}/consumer-offsets/1", None),
    "get_consumer_groups": ("topic read", 200, f"{TOPIC}/consumer-groups", None),
    "create_consumer_group": ("topic read", 201, f"{TOPIC}/consumer-groups", {"name": "new"}),
    "get_consumer_group": ("topic read", 200, GROUP, None),
    "take_lease": ("topic read", 201, f"{GROUP}/leases", None),
    "get_lease": ("topic read", 200, f"{GROUP}/leases/LEASE", None),
    "renew_lease": ("topic read", 200, f"{GROUP}/leases/LEASE", None),
    "poll_with_lease": ("topic read", 200, f"{GROUP}/leases/LEASE/messages", None),
    "commit_with_lease": (
        *("topic read", 200, f"{GROUP}/leases/LEASE/offsets"),
        {"generation": "GENERATION", "partition_id": 0, "offset": 0},
    ),
    "give_lease_back": ("topic read", 204, f"{GROUP}/leases/LEASE", None),
    "make_ticket": (ANY_USER, 201, "/tickets", None),
    "get_users": ("users read", 200, "/users", None),
    "create_user": ("users manage", 200, "/users", CAROL),
    "get_me": (ANY_USER, 200, "/users/me", None),
    "get_user": ("users read", 200, "/users/bob", None),
    "update_user": ("users manage", 204, "/users/bob", {"username": "robert"}),
    "update_permissions": ("users manage", 204, "/users/2/permissions", {"permissions": None}),
    "change_password": ("users manage", 204, "/users/2/password", PASSWORDS),
    "end_sessions": ("users manage", 204, "/users/2/sessions", None),
    "delete_user": ("users manage", 204, "/users/2", None),
    "get_personal_access_tokens": (ANY_USER, 200, "/personal-access-tokens", None),
    "create_personal_access_token": (ANY_USER, 200, "/personal-access-tokens", {"name": "new", "expiry": 0}),
    "delete_personal_access_token": (ANY_USER, 204, "/personal-access-tokens/old", None),
    "delete_consumer_group": ("topic read", 204, GROUP, None),
    "delete_topic": ("topic manage", 204, TOPIC, None),
    "delete_stream": ("stream manage", 204, STREAM, None),
    "log_out": (ANY_USER, 204, "/users/logout", None),
    "end_own_sessions": (ANY_USER, 204, "/users/me/sessions", None),
}
"""By operation: the right, how it is answered to who has it, and how it is asked for; in an order in which each of them
can be done once."""

METHODS = {operation.name: operation.method for operation in routes.OPERATIONS}
REFUSED = (403, 41)
LET_THROUGH = (400, int(Code.FEATURE_UNAVAILABLE))
ENDINGS = ("log_out", "end_own_sessions")
"""After these the token of who asks is over."""
LEASED = [name for name, (_, _, path, _) in ROUTES.items() if "LEASE" in path]


@contextlib.asynccontextmanager
async def started(tmp_path: Path) -> AsyncIterator[tuple[Calling, Caller]]:
    """Streams 0 and 1 with a topic 0 each, of which the first has group g; alice with a token `old`, and bob."""

    async with calling(tmp_path) as world:
        root = world.root
        for name in ("s", "other"):
            await root.post("/streams", {"name": name})
            await root.post(f"/streams/{name}/topics", {"name": "t", "partitions_count": 2})
        await root.post(f"{TOPIC}/consumer-groups", {"name": "g"})
        await root.post(f"{TOPIC}/messages", MESSAGE)
        alice = await world.user("alice")
        await alice.post("/personal-access-tokens", {"name": "old", "expiry": 0})
        await root.post("/users", CAROL | {"username": "bob", "password": "bobbob"})
        yield world, alice


async def do(who: Caller, name: str) -> httpx.Response:
    """A tail has no end, so only its head is asked for."""
    return await (who.ask("HEAD", ROUTES[name][2]) if name == "tail_messages" else ask(who, name))


async def ask(who: Caller, name: str, lease: dict[str, Any] | None = None) -> httpx.Response:
    _, _, path, body = ROUTES[name]
    if lease is not None:
        path = path.replace("LEASE", lease["lease_id"])
        body = body and {key: lease["generation"] if each == "GENERATION" else each for key, each in body.items()}
    return await who.ask(METHODS[name], path, body)


def number(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["id"]


def is_allowed(name: str, grant: str) -> bool:
    right = ROUTES[name][0]
    return right == ANY_USER or grant == "everything" or grant in RIGHTS[right].split()


async def lease_of(world: Calling, who: Caller) -> dict[str, Any]:
    await world.gateway.users.change_permissions("alice", ALL)
    found: dict[str, Any] = await who.post(f"{GROUP}/leases", b"")
    return found


def test_the_table_is_about_all_operations_that_need_a_token() -> None:
    assert ROUTES.keys() == {operation.name for operation in routes.OPERATIONS if not operation.public}


@pytest.mark.parametrize("token", [None, "nonsense", "x.y.z"])
async def test_without_a_token_that_counts_nothing_is_to_be_had(tmp_path: Path, token: str | None) -> None:
    async with started(tmp_path) as (world, _):
        stranger = Caller(world.client, token)
        for name in ROUTES:
            response = await ask(stranger, name)
            assert number(response) == (401, 77 if token is None else 40), name
            assert response.headers["www-authenticate"] == "Bearer"


async def test_every_route_is_for_whom_the_page_says_and_for_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is let through ends there, so that nothing changes."""

    async def reached(*_: object) -> None:
        raise CommandError(Code.FEATURE_UNAVAILABLE)

    async with started(tmp_path) as (world, alice):
        for request, command in registry.BY_REQUEST.items():
            monkeypatch.setitem(registry.BY_REQUEST, request, command._replace(handler=reached))
        own = {"get_limits", "make_ticket", "log_out", *LEASED}
        for grant, permissions in grants():
            await world.gateway.users.change_permissions("alice", permissions)
            for name in ROUTES.keys() - own:
                expected = LET_THROUGH if is_allowed(name, grant) else REFUSED
                assert number(await ask(alice, name)) == expected, (name, permissions)
            for name in ("get_limits", "make_ticket"):
                assert (await ask(alice, name)).status_code == ROUTES[name][1]


async def test_a_lease_is_of_use_only_while_its_user_may_read_the_topic(tmp_path: Path) -> None:
    async with started(tmp_path) as (world, alice):
        lease = await lease_of(world, alice)
        for grant, permissions in grants():
            for name in LEASED:
                await world.gateway.users.change_permissions("alice", permissions)
                response = await ask(alice, name, lease)
                if not is_allowed(name, grant):
                    assert number(response) == REFUSED, (name, permissions)
                    continue
                assert response.status_code == ROUTES[name][1], (name, permissions, response.text)
                if name == "give_lease_back":
                    lease = await lease_of(world, alice)


@pytest.mark.parametrize("right", sorted({right for right, *_ in ROUTES.values()}))
async def test_each_route_does_what_it_says_for_who_has_no_more_than_its_right(tmp_path: Path, right: str) -> None:
    async with started(tmp_path) as (world, alice):
        await world.gateway.users.change_permissions("alice", least(right))
        for name, (needed, status, _, _) in ROUTES.items():
            if needed == right and name not in LEASED:
                asker = await world.log_in("alice", "alicealice") if name in ENDINGS else alice
                response = await do(asker, name)
                assert response.status_code == status, (name, response.text)
            elif name not in LEASED and name not in ENDINGS:
                # The order in which they can be done is that of all of them.
                assert (await do(world.root, name)).status_code in (status, 404), name


def least(right: str) -> Permissions | None:
    """The last one that is named, which is the narrowest."""
    if right == ANY_USER:
        return None
    found = {name: permissions for name, permissions in grants() if name}
    return found[RIGHTS[right].split()[-1]]


async def test_what_is_not_there_is_404_for_everybody_but_users_and_clients_are_403(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, alice):
        for name, (right, _, path, body) in ROUTES.items():
            if right == ANY_USER or name in LEASED:
                continue
            for missing, code in (
                (path.replace("/streams/0", "/streams/nowhere"), 1009),
                (path.replace("/topics/0", "/topics/nowhere"), 2010),
                (path.replace("/users/2", "/users/nobody").replace("/users/bob", "/users/nobody"), 41),
                (path.replace("/clients/1", "/clients/4000000000"), 41),
            ):
                if missing == path:
                    continue
                response = await alice.ask(METHODS[name], missing, body)
                if code == 41:
                    assert number(response) == REFUSED, missing
                elif name == "get_topics":
                    assert (response.status_code, response.json()) == (200, [])
                elif name in ("get_stream", "get_topic"):
                    assert number(response) == (404, 404), missing
                else:
                    assert number(response) == (404, code), (name, missing)


@pytest.mark.parametrize("how", ["logged out", "inactive", "deleted", "replaced"])
async def test_who_is_nobody_any_more_is_told_nothing_but_401(tmp_path: Path, how: str) -> None:
    """With the token of before, and with a personal one; also if somebody else has got his number meanwhile."""

    async with started(tmp_path) as (world, alice):
        root = world.root
        await world.gateway.users.change_permissions("alice", ALL)
        raw = (await alice.post("/personal-access-tokens", {"name": "raw", "expiry": 0}))["token"]
        before = Caller(world.client, alice.token)
        assert await before.get("/users/me") == await Caller(world.client, raw).get("/users/me")
        match how:
            case "logged out":
                await alice.delete("/users/logout")
            case "inactive":
                await world.gateway.users.update("alice", None, UserStatus.INACTIVE)
            case _:
                await root.delete("/users/alice")
        if how == "replaced":
            made = await root.post("/users", CAROL | {"username": "alice", "password": "alicealice"})
            assert made["id"] == 1
        for token in (alice.token,) if how == "logged out" else (alice.token, raw):
            for name in ROUTES:
                assert number(await ask(Caller(world.client, token), name)) == (401, 40), name
            body = {"token": token}
            assert (await world.stranger.refused("POST", "/users/refresh-token", body))[0] == 401
        if how != "logged out":
            refused = await world.stranger.refused("POST", "/personal-access-tokens/login", {"token": raw})
            assert refused == (401, 53, None)
