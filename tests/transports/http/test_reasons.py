"""Errors: the reason begins with Iggy's words, which programs look for, and has no repetition; names are stable."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transports.http.support.calling import Calling, with_topic
from whippet.transports.http.errors import Refused, refusal_response

TOPIC = "/streams/s/topics/t"
BOB = {"username": "bob", "password": "secret", "status": "active"}
NEW_TOPIC = {"name": "new", "partitions_count": 1}
NOWHERE = {"partitioning": {"kind": "partition_id", "value": "CQAAAA=="}, "messages": [{"payload": "eA=="}]}
OPTIONS = {"retention.colour": "red"}

REFUSALS: list[tuple[str, str, Any, str]] = [
    ("POST", "/streams", {"name": "s"}, "Stream with name: s already exists."),
    ("PUT", "/streams/other", {"name": "s"}, "Stream with name: s already exists."),
    ("POST", "/streams", {"name": ""}, "Invalid stream name: it must have 1 to 255 bytes."),
    ("DELETE", "/streams/7", None, "Stream with ID: 7 was not found."),
    (
        "POST",
        "/streams/s/topics",
        NEW_TOPIC | {"name": "t"},
        "Topic with name: t for stream with ID: s already exists.",
    ),
    ("DELETE", "/streams/s/topics/7", None, "Topic with ID: 7 for stream with ID: s was not found."),
    (
        *("POST", "/streams/s/topics", NEW_TOPIC | {"partitions_count": 1001}),
        "Too many partitions: a topic is created with 0 to 1000 partitions",
    ),
    ("POST", f"{TOPIC}/partitions", {"partitions_count": 1001}, "Too many partitions: 1 to 1000 partitions at a time"),
    (
        *("DELETE", f"{TOPIC}/partitions?partitions_count=9", None),
        "Invalid partitions count: a topic of 3 partitions cannot lose 9 of them",
    ),
    ("POST", "/streams/s/topics", NEW_TOPIC | {"replication_factor": 0}, "Invalid replication factor"),
    ("POST", "/streams/s/topics", NEW_TOPIC | {"options": OPTIONS}, "Unsupported option key: 'retention.colour' is no"),
    (
        *("POST", "/streams/s/topics", NEW_TOPIC | {"options": {"durability": "some"}}),
        "Invalid option value for key: 'durability' is 'some': ",
    ),
    (
        *("GET", f"{TOPIC}/messages?partition_id=9", None),
        "Partition with ID: 9 for topic with ID: t for stream with ID: s was not found.",
    ),
    ("POST", f"{TOPIC}/messages", NOWHERE, "Partition with ID: 9 for topic with ID: t for stream with ID: s was not f"),
    ("PUT", f"{TOPIC}/consumer-offsets", {"offset": 5}, "Invalid offset: "),
    (
        *("DELETE", f"{TOPIC}/consumer-offsets/5", None),
        "Consumer offset for consumer with ID: 5 was not found: no offset is stored in ",
    ),
    (
        *("POST", f"{TOPIC}/consumer-groups", {"name": "g"}),
        "Consumer group with name: g for topic with ID: t already exists.",
    ),
    ("GET", f"{TOPIC}/consumer-groups/7", None, "Consumer group with ID: 7 for topic with ID: t was not found."),
    ("DELETE", f"{TOPIC}/consumer-groups/x", None, "Consumer group with ID: x for topic with ID: t was not found."),
    ("POST", "/users", BOB, "User already exists: 'bob'"),
    ("POST", "/users", BOB | {"username": "x"}, "Invalid username: it must have 3 to 50 bytes."),
    ("POST", "/users", BOB | {"username": "new", "password": "x"}, "Invalid password: it must have 3 to 100 bytes."),
    ("DELETE", "/users/0", None, "Cannot delete user with ID: 0: it is the root user"),
    ("DELETE", "/users/nobody", None, "Resource with key: nobody was not found: there is no such user"),
    (
        *("PUT", "/users/0/permissions", {"permissions": None}),
        "Cannot change permissions for user with ID: 0: it is the root user",
    ),
    (
        "POST",
        "/users/login",
        {"username": "bob", "password": "wrong"},
        "Invalid credentials: the user name or the pass",
    ),
    (
        *("POST", "/personal-access-tokens", {"name": "mine", "expiry": 0}),
        "Personal access token: mine for user with ID: 0 already exists",
    ),
]


async def filled(world: Calling) -> None:
    root = world.root
    await root.post("/streams", {"name": "other"})
    await root.post(f"{TOPIC}/consumer-groups", {"name": "g"})
    await root.post("/users", BOB)
    await root.post("/personal-access-tokens", {"name": "mine", "expiry": 0})


@pytest.mark.parametrize(("method", "path", "body", "begins"), REFUSALS)
async def test_a_reason_begins_with_the_words_of_iggy(
    tmp_path: Path, method: str, path: str, body: Any, begins: str
) -> None:
    async with with_topic(tmp_path) as world:
        await filled(world)
        response = await world.root.ask(method, path, body)
        assert response.status_code >= 400
        reason = response.json()["reason"]
        assert reason.startswith(begins), reason
        parts = [part.strip(" .").lower() for part in reason.split(": ")]
        assert len(parts) == len(set(parts)), f"{reason} says something twice"


async def test_a_caller_without_permission_is_refused_in_the_words_of_iggy(tmp_path: Path) -> None:
    async with with_topic(tmp_path) as world:
        reply = (await world.stranger.ask("GET", "/streams")).json()["reason"]
        assert reply == "Access token is missing: the request needs `Authorization: Bearer <token>`"
        alice = await world.user()
        reply = (await alice.ask("POST", "/streams", {"name": "new"})).json()["reason"]
        assert reply == "Unauthorized: user 'alice' may not create_stream"


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (413, "payload_too_large"), (422, "unprocessable_entity"), (429, "too_many_requests")],
)
def test_a_status_has_the_same_name_on_every_python(status: int, code: str) -> None:
    error = msgspec.json.decode(refusal_response(Refused(HTTPStatus(status), "because")).body)
    assert error["code"] == code


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/streams/none", "Stream with ID: none was not found."),
        ("/streams/s/topics/none", "Topic with ID: none for stream with ID: s was not found."),
        ("/streams/none/topics/t", "Topic with ID: t for stream with ID: none was not found."),
        ("/users/99", "Resource with key: 99 was not found."),
        ("/clients/99", "Client with ID: 99 was not found."),
        ("/streams/s/topics/t/consumer-offsets", "The consumer has stored no offset here."),
        ("/nowhere", "Resource not found"),
    ],
)
async def test_what_does_not_exist_is_named(tmp_path: Path, path: str, reason: str) -> None:
    async with with_topic(tmp_path) as world:
        response = await world.root.ask("GET", path)
        assert (response.status_code, response.json()["id"], response.json()["code"]) == (404, 404, "not_found")
        assert response.json()["reason"] == reason
