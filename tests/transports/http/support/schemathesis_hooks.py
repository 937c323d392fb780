"""Teaches schemathesis what the document does not contain. Its command line loads this in a process of its own.

After every change, root creates again what was deleted, renamed or made unusable, so that every operation finds
something. The account of schemathesis itself is protected. The responses of each operation are counted.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zlib import crc32

import schemathesis

ALL = dict.fromkeys(
    (
        *("manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"),
        *("manage_topics", "read_topics", "poll_messages", "send_messages"),
    ),
    True,
)
TOPIC = "/streams/s/topics/t"
PARTITIONS = 3
MANY_PARTITIONS = range(PARTITIONS, 1001)
PREALLOCATED = "preallocate_segments"
LEASES = f"{TOPIC}/consumer-groups/g/leases"
BOB = {"username": "bob", "password": "secret", "status": "active", "permissions": {"global": ALL}}
OURS = ("0", "root", "2", "prover", "me")
CHANGES = ("PUT", "DELETE", "POST")
VALID = ("log_in", "change_password", "store_consumer_offset", "commit_with_lease")
"""Operations that need values which only the tests know."""
TWO_HUNDREDS = range(200, 300)
REFUSED_FOR_WHAT_IS_THERE = frozenset({401, 403, 404, 409, 410, 429, 503})
DEPENDS_ON_WHAT_IS_THERE = frozenset(
    {
        *("stream_name_already_exists", "topic_name_already_exists", "consumer_group_name_already_exists"),
        *("user_already_exists", "personal_access_token_already_exists", "personal_access_tokens_limit_reached"),
        *("invalid_credentials", "cannot_delete_user", "cannot_change_permissions", "not_resolved_consumer"),
        *("invalid_partitions_count", "invalid_offset", "invalid_topic_size", "too_many_consumer_offsets"),
        *(
            "too_many_streams",
            "too_many_topics",
            "too_many_partitions",
            "too_many_consumer_groups",
            "users_limit_reached",
        ),
        "consumer_group_partition_not_owned",
    }
)
"""Errors with status 400 that no document can predict."""


class World:
    """The server, with requests of root."""

    def __init__(self, address: str, root: str, prover: str) -> None:
        self._link = http.client.HTTPConnection(address, timeout=20)
        self._root, self._prover = root, prover
        self.lease: dict[str, Any] = {"lease_id": "none", "client_id": 1, "generation": 0}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Creating what exists already is refused, which is harmless."""
        token = self._prover if path.startswith(LEASES) else self._root
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._link.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._link.getresponse()
        reply = response.read()
        return json.loads(reply) if reply and response.status in TWO_HUNDREDS else None

    def restore(self) -> None:
        if self.ask("GET", TOPIC) is None or self.ask("GET", "/streams/0") is None:
            self.ask("POST", "/streams", {"name": "s"})
            self.ask("POST", "/streams/s/topics", {"name": "t", "partitions_count": PARTITIONS})
        count = (self.ask("GET", TOPIC) or {}).get("partitions_count", PARTITIONS)
        if count < PARTITIONS:
            self.ask("POST", f"{TOPIC}/partitions", {"partitions_count": PARTITIONS - count})
        self.ask("POST", f"{TOPIC}/consumer-groups", {"name": "g"})
        here = {"kind": "partition_id", "value": "AAAAAA=="}
        self.ask("POST", f"{TOPIC}/messages", {"partitioning": here, "messages": [{"payload": "eA=="}] * 3})
        self.ask("PUT", f"{TOPIC}/consumer-offsets", {"offset": 0})
        found = self.ask("GET", f"{LEASES}/{self.lease['lease_id']}") or self.ask("POST", LEASES)
        self.lease = found or self.lease

    def restore_people(self) -> None:
        self.ask("DELETE", "/users/bob")
        self.ask("DELETE", "/users/1")
        self.ask("POST", "/users", BOB)


WORLD = World(os.environ["WHIPPET_ADDRESS"], os.environ["WHIPPET_ROOT"], os.environ["WHIPPET_PROVER"])
WORLD.restore()
WORLD.restore_people()
ANSWERED: defaultdict[str, Counter[int]] = defaultdict(Counter)


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Removes the default response, which would allow any error."""
    for operations in raw_schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("default", None)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    parameters, query, body = case.path_parameters or {}, case.query or {}, case.body
    operation_name = case.operation.definition.raw["operationId"]
    draw = crc32(repr((parameters, query, body)).encode()) % 4
    named = {name: unquote(str(value)) for name, value in parameters.items()}
    if named.get("user") in OURS and case.method in CHANGES:
        parameters["user"] = "bob"
    if named.get("name") == "prover's":
        parameters["name"] = "one"
    if operation_name == "end_own_sessions" and query.get("personal_access_tokens") == "true":
        # The token of the test is one of them.
        query["personal_access_tokens"] = "false"
    if operation_name == "send_messages":
        _make_valid(case.headers or {}, query, body)
    if operation_name.endswith("messages_deferred"):
        # Dependent values: at least as many messages as the poll waits for, and time left after the wait.
        query |= {"min_count": 1, "wait_us": 10, "request_timeout_us": 2_000_000}
    if operation_name == "search_messages":
        _make_searchable(query)
    if operation_name == "update_topic" and isinstance(body, dict):
        _name_one_change(body)
    if isinstance(body, dict) and isinstance(options := body.get("options"), dict) and PREALLOCATED in options:
        # It would fill the disk.
        options[PREALLOCATED] = "false"
    # Their limits are settings.
    query |= {name: value for name, value in (("wait", "10ms"), ("expiry", "30s")) if name in query}
    if isinstance(body, dict) and body.get("partitions_count") in MANY_PARTITIONS:
        # They would soon reach the limit of the server, and nothing could be created any more.
        body["partitions_count"] = PARTITIONS
    if draw == 0:
        return
    if "lease" in parameters:
        parameters["lease"] = WORLD.lease["lease_id"]
        parameters |= {"stream": "s", "topic": "t", "group": "g"}
    if "client" in parameters:
        parameters["client"] = WORLD.lease["client_id"]
    if isinstance(body, dict):
        valid: tuple[tuple[str, object], ...] = (
            *(("username", "bob"), ("password", "secret"), ("current_password", "secret")),
            *(("generation", WORLD.lease["generation"]), ("partition_id", 0), ("offset", 0)),
        )
        body |= {name: value for name, value in valid if name in body and operation_name in VALID}


def _make_searchable(query: dict[str, Any]) -> None:
    """Sets conditions that have a grammar, and removes what depends on something else."""
    query.pop("cursor", None)
    query |= {name: value for name, value in (("message_id", "7"), ("where", "$.a > 1")) if name in query}
    for name, needed in (("value", "header" in query), ("key", "partition" not in query)):
        if not needed:
            query.pop(name, None)


def _make_valid(headers: Any, query: Any, body: Any) -> None:
    """A send has one destination, which a JSON body names itself; and the three producer headers belong together."""
    for name in ("key", "partition_id") if isinstance(body, dict) else ("key",):
        query.pop(name, None)
    for name in [name for name in headers if name.lower().startswith("producer-")]:
        del headers[name]


def _name_one_change(body: dict[str, Any]) -> None:
    """An update changes something, and does not reset what it sets; without a name it keeps the compression."""
    if body.get("name") is None:
        body.pop("compression_algorithm", None)
        body["name"] = "renamed"
    body.pop("reset", None)


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """A schema accepts 1.0 as an integer. Neither Iggy nor Whippet does."""
    return _whole(body)


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


@schemathesis.check
def what_the_document_allows_is_accepted(context: Any, response: Any, case: Any) -> None:
    """Wherever the server is stricter than the document, the document is incomplete."""
    status = response.status_code
    if case.meta is None or not case.meta.generation.mode.is_positive or case.method != case.operation.method.upper():
        return
    if status in range(400, 500) and status not in REFUSED_FOR_WHAT_IS_THERE:
        reply = response.json()
        if "needs an archive" in reply["reason"]:
            # The configuration decides whether there is one.
            return
        assert reply["code"] in DEPENDS_ON_WHAT_IS_THERE, f"{status} {reply['code']}: {reply['reason']}"


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    operation = case.operation
    if case.method == operation.method.upper():
        ANSWERED[operation.label][response.status_code] += 1
    if case.method in CHANGES and response.status_code in TWO_HUNDREDS:
        if operation.path.startswith("/users/{user}"):
            WORLD.restore_people()
        elif operation.path.startswith("/streams"):
            WORLD.restore()


@atexit.register
def tell() -> None:
    with contextlib.suppress(KeyError):
        Path(os.environ["WHIPPET_ANSWERED"]).write_text(json.dumps(ANSWERED))
