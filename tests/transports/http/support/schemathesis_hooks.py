"""What schemathesis cannot know from the document: loaded by its command line, in a process of its own.

What it deletes, renames and makes unusable is made again after every such request, by root, so that every operation
goes on to find something. Its own account is kept from itself. How each operation was answered is counted.
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
LEASES = f"{TOPIC}/consumer-groups/g/leases"
BOB = {"username": "bob", "password": "secret", "status": "active", "permissions": {"global": ALL}}
OURS = ("0", "root", "2", "prover", "me")
CHANGES = ("PUT", "DELETE", "POST")
VALID = ("log_in", "change_password", "store_consumer_offset", "commit_with_lease")
"""These need what only we know."""
TWO_HUNDREDS = range(200, 300)


class World:
    """The server as root sees it."""

    def __init__(self, address: str, root: str, prover: str) -> None:
        self._link = http.client.HTTPConnection(address, timeout=20)
        self._root, self._prover = root, prover
        self.lease: dict[str, Any] = {"lease_id": "none", "client_id": 1, "generation": 0}

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What is there already is refused, which does no harm."""
        token = self._prover if path.startswith(LEASES) else self._root
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._link.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._link.getresponse()
        said = response.read()
        return json.loads(said) if said and response.status in TWO_HUNDREDS else None

    def restore(self) -> None:
        if self.ask("GET", TOPIC) is None or self.ask("GET", "/streams/0") is None:
            self.ask("POST", "/streams", {"name": "s"})
            self.ask("POST", "/streams/s/topics", {"name": "t", "partitions_count": 3})
        count = (self.ask("GET", TOPIC) or {}).get("partitions_count", 3)
        if count < 3:
            self.ask("POST", f"{TOPIC}/partitions", {"partitions_count": 3 - count})
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
    """Without the word that any failure is documented."""
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
        # Our own token is one of them.
        query["personal_access_tokens"] = "false"
    if draw == 0:
        return
    if "lease" in parameters:
        parameters["lease"] = WORLD.lease["lease_id"]
        parameters |= {"stream": "s", "topic": "t", "group": "g"}
    if "client" in parameters:
        parameters["client"] = WORLD.lease["client_id"]
    for name, value in (("wait", "10ms"), ("expiry", "30s")):
        if name in query:
            query[name] = value
    if operation_name == "send_messages":
        _make_valid(case.headers or {}, query, body)
    if isinstance(body, dict):
        valid: tuple[tuple[str, object], ...] = (
            *(("username", "bob"), ("password", "secret"), ("current_password", "secret")),
            *(("generation", WORLD.lease["generation"]), ("partition_id", 0), ("offset", 0)),
        )
        body |= {name: value for name, value in valid if name in body and operation_name in VALID}


def _make_valid(headers: Any, query: Any, body: Any) -> None:
    """A send whose body says itself where it goes does not want to be told; and sequences have an order."""
    for name in ("key", "partition", "partition_id", "ack"):
        query.pop(name, None)
    for name in [name for name in headers if name.lower().startswith("producer-")]:
        del headers[name]
    if isinstance(body, dict) and isinstance(body.get("messages"), list):
        body["partitioning"] = {"kind": "balanced", "value": ""}
        for message in body["messages"]:
            if isinstance(message, dict):
                message["payload"] = "eA=="


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
