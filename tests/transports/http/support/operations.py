"""Every operation that needs a token: its permission, its status, and a valid request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from tests.transports.http.support.calling import Caller, Calling, calling
from whippet.app.access.permissions import ALL
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
    "get_activity": ("server read", 200, "/stats/activity", None),
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
    "poll_messages_deferred": ("poll", 200, f"{TOPIC}/messages/deferred", None),
    "poll_and_commit_messages_deferred": ("poll", 200, f"{TOPIC}/messages/deferred?auto_commit=true", None),
    "poll_messages": ("poll", 200, f"{TOPIC}/messages", None),
    "search_messages": ("poll", 200, f"{TOPIC}/messages/search", None),
    "tail_messages": ("poll", 200, f"{TOPIC}/messages/tail", None),
    "flush": ("send", 200, f"{TOPIC}/messages/flush/0/true", None),
    "flush_messages": ("send", 200, f"{TOPIC}/messages/flush/0/true", None),
    "get_topic_readers": ("poll", 200, f"{TOPIC}/readers", None),
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
    "delete_offset_with_lease": ("topic read", 200, f"{GROUP}/leases/LEASE/offsets?partition_id=0", None),
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
"""For each operation the permission, the status with it, and the request, in an order in which all can be executed."""

METHODS = {operation.name: operation.method for operation in routes.OPERATIONS}
ENDINGS = ("log_out", "end_own_sessions")
"""After these the caller's token is no longer valid."""
LEASED = [name for name, (_, _, path, _) in ROUTES.items() if "LEASE" in path]


@contextlib.asynccontextmanager
async def started(tmp_path: Path) -> AsyncIterator[tuple[Calling, Caller]]:
    """Creates streams 0 and 1 with topic 0 each, group g in the first one, alice with a token `old`, and bob."""

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
    """A tail has no end, so it is requested with HEAD."""
    return await (who.ask("HEAD", ROUTES[name][2]) if name == "tail_messages" else ask(who, name))


async def ask(who: Caller, name: str, lease: dict[str, Any] | None = None) -> httpx.Response:
    _, _, path, body = ROUTES[name]
    if lease is not None:
        path = path.replace("LEASE", lease["lease_id"])
        body = body and {key: lease["generation"] if each == "GENERATION" else each for key, each in body.items()}
    return await who.ask(METHODS[name], path, body)


async def lease_of(world: Calling, who: Caller) -> dict[str, Any]:
    await world.gateway.users.change_permissions("alice", ALL)
    found: dict[str, Any] = await who.post(f"{GROUP}/leases", b"")
    return found
