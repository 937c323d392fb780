"""Memberships of consumer groups over HTTP: leases, which take the place of a connection.

A client that reconnects keeps its leases. One that has lapsed is like a membership that ended with its connection: the
next poll is refused with CONSUMER_GROUP_MEMBER_NOT_FOUND, and the client joins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whippet.app.client.http_commands import (
    Answer,
    Exchange,
    group_path,
    nothing,
    poll_with_lease,
    polled,
    refusal,
    with_body,
)
from whippet.app.commands import requests, responses
from whippet.app.commands.requests import ConsumerKind
from whippet.app.errors import Code, CommandError

GONE, CONFLICT = 410, 409
Key = tuple[int | str, int | str, int | str]


class Lease:
    __slots__ = ("generation", "id", "owned")

    def __init__(self, body: Any) -> None:
        self.id: str = body["lease_id"]
        self.generation = 0
        self.owned: frozenset[int] = frozenset()
        self.update(body)

    def update(self, body: Any) -> None:
        self.generation = body["generation"]
        self.owned = frozenset((*body["partitions"], *body["finishing"]))


class Leases:
    """The leases of a client, by stream, topic and group as the caller names them."""

    def __init__(self) -> None:
        self._leases: dict[Key, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def exchange(self, request: requests.Request) -> Exchange | None:
        """Returns what a command does with a lease; None if it has nothing to do with leases."""
        match request:
            case requests.JoinConsumerGroup(stream, topic, group):
                return self._join((stream, topic, group))
            case requests.LeaveConsumerGroup(stream, topic, group):
                return self._leave((stream, topic, group))
            case requests.SyncConsumerGroup(stream, topic, group):
                return self._sync((stream, topic, group))
            case requests.PollMessages(consumer, stream, topic) if consumer.kind is ConsumerKind.GROUP:
                return self._poll((stream, topic, consumer.id), request)
            case requests.DeleteConsumerOffset(consumer, stream, topic) if consumer.kind is ConsumerKind.GROUP:
                return self._delete_offset((stream, topic, consumer.id), request)
        return None

    def of_commit(self, request: requests.Request) -> Key | None:
        """Returns the lease that a commit needs; None if it needs none."""
        if not isinstance(request, requests.StoreConsumerOffset) or request.consumer.kind is not ConsumerKind.GROUP:
            return None
        key = request.stream, request.topic, request.consumer.id
        return key if key in self._leases and request.partition_id is not None else None

    def commit(self, key: Key, request: requests.StoreConsumerOffset) -> Exchange:
        body = {
            "generation": self._known(key).generation,
            "partition_id": request.partition_id,
            "offset": request.offset,
        }
        return with_body("PUT", f"{self._path(key)}/offsets", body, self._updated(key, nothing), handles_refusals=True)

    def look_up(self, key: Key) -> Exchange:
        """Gets the partitions of a lease after the group has changed."""
        return Exchange("GET", self._path(key), self._updated(key, nothing), handles_refusals=True)

    def owns(self, key: Key, partition_id: int | None) -> bool:
        return partition_id in self._known(key).owned

    def renew(self) -> list[Exchange]:
        """Returns what keeps all memberships while their members are busy with messages."""
        return [self._join(key) for key in self._leases]

    def give_back(self) -> list[Exchange]:
        """Returns what ends all memberships."""
        return [self._leave(key) for key in list(self._leases)]

    def _known(self, key: Key) -> Lease:
        lease = self._leases.get(key)
        if lease is None:
            raise CommandError(Code.CONSUMER_GROUP_MEMBER_NOT_FOUND)
        return lease

    def _path(self, key: Key) -> str:
        return f"{group_path(*key)}/leases/{self._known(key).id}"

    def _join(self, key: Key) -> Exchange:
        if key in self._leases:
            return Exchange("PUT", self._path(key), self._updated(key, nothing), handles_refusals=True)

        def joined(answer: Answer) -> None:
            self._leases[key] = Lease(answer.json)

        return Exchange("POST", f"{group_path(*key)}/leases", joined)

    def _leave(self, key: Key) -> Exchange:
        path = self._path(key)
        self._leases.pop(key)
        return Exchange("DELETE", path, _unless_gone, handles_refusals=True)

    def _sync(self, key: Key) -> Exchange | None:
        if key not in self._leases:
            return None

        def assignment(answer: Answer) -> responses.GroupAssignment:
            body = answer.json
            return responses.GroupAssignment(body["generation"], tuple(body["partitions"]), tuple(body["finishing"]))

        return Exchange("GET", self._path(key), self._updated(key, assignment), handles_refusals=True)

    def _poll(self, key: Key, request: requests.PollMessages) -> Exchange:
        return poll_with_lease(self._path(key), request, self._checked(key, polled))

    def _delete_offset(self, key: Key, request: requests.DeleteConsumerOffset) -> Exchange | None:
        if key not in self._leases or request.partition_id is None:
            return None
        path = f"{self._path(key)}/offsets?partition_id={request.partition_id}"
        return Exchange("DELETE", path, self._updated(key, nothing), handles_refusals=True)

    def _checked(self, key: Key, decode: Callable[[Answer], Any]) -> Callable[[Answer], Any]:
        def checked(answer: Answer) -> Any:
            if answer.status == GONE:
                self._leases.pop(key, None)
                raise CommandError(Code.CONSUMER_GROUP_MEMBER_NOT_FOUND)
            if answer.status >= 400:
                raise refusal(answer)
            return decode(answer)

        return checked

    def _updated(self, key: Key, decode: Callable[[Answer], Any]) -> Callable[[Answer], Any]:
        def updated(answer: Answer) -> Any:
            self._known(key).update(answer.json)
            return decode(answer)

        return self._checked(key, updated)


def _unless_gone(answer: Answer) -> None:
    """A lease that has lapsed is left already."""
    if answer.status >= 400 and answer.status != GONE:
        raise refusal(answer)
