"""The catalogue of an Iggy server in memory, and the changes that its records make to it. Pure state.

Both formats of records end up here. A change that cannot be made raises `Rejected` and changes nothing: 0.8 records
only what it has done, so something is missing there; 0.9 records requests before they are carried out, and rejected
ones are part of its normal life.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from whippet.app.access.permissions import Permissions
from whippet.app.importing.iggy.wire import Identifier
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import Option

ROOT = 0
SERVER_DEFAULT = 0
UNLIMITED = 2**64 - 1


class Rejected(Exception):
    """A change that does not apply. The text says why."""


class Partition(msgspec.Struct):
    purges: int = 0
    """How often 0.9 was asked to purge it. It removes the files later, and records up to where it has done so."""
    deleted_before: int = 0
    """0.9 was asked to delete the segments before this offset; the same holds."""


class Group(msgspec.Struct):
    id: int
    name: str
    created_at: int


class Topic(msgspec.Struct):
    """`message_expiry` and `max_topic_size` are 0 where Iggy's configuration decides."""

    id: int
    name: str
    created_at: int
    message_expiry: int
    max_topic_size: int
    compression_algorithm: int
    replication_factor: int
    partitions: list[Partition]
    explicit: dict[str, Option] = {}
    """The options that somebody chose (0.9)."""
    groups: dict[int, Group] = {}
    groups_created: int = 0


class Stream(msgspec.Struct):
    id: int
    name: str
    created_at: int
    topics: dict[int, Topic] = {}


class Token(msgspec.Struct):
    name: str
    hash: str
    created_at: int
    expires_at: int
    """0: never."""


class User(msgspec.Struct):
    id: int
    name: str
    password_hash: str
    created_at: int
    is_active: bool
    permissions: Permissions | None
    tokens: dict[str, Token] = {}

    @property
    def status(self) -> UserStatus:
        return UserStatus.ACTIVE if self.is_active else UserStatus.INACTIVE


class Named(Protocol):
    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


def find(things: dict[int, Thing], identifier: Identifier) -> Thing | None:
    if isinstance(identifier, int):
        return things.get(identifier)
    return next((thing for thing in things.values() if thing.name == identifier), None)


def lowest_free(taken: dict[int, Thing]) -> int:
    """The number that 0.9 gives to a new object."""
    identity = 0
    while identity in taken:
        identity += 1
    return identity


class Catalogue(msgspec.Struct):
    """See the module."""

    streams: dict[int, Stream] = {}
    users: dict[int, User] = {}

    # ---------------------------------------------------------------------------------------------------------- look-up

    def stream(self, identifier: Identifier) -> Stream:
        return _get(self.streams, identifier, "stream")

    def topic(self, stream: Identifier, topic: Identifier) -> Topic:
        return _get(self.stream(stream).topics, topic, "topic")

    def user(self, identifier: Identifier) -> User:
        return _get(self.users, identifier, "user")

    # ------------------------------------------------------------------------------------------------- streams, topics

    def add_stream(self, stream: Stream) -> None:
        _refuse_taken(self.streams, stream.id, stream.name, "stream")
        self.streams[stream.id] = stream

    def rename_stream(self, identifier: Identifier, name: str) -> None:
        stream = self.stream(identifier)
        _refuse_other(self.streams, stream.id, name, "stream")
        stream.name = name

    def remove_stream(self, identifier: Identifier) -> None:
        del self.streams[self.stream(identifier).id]

    def add_topic(self, stream: Identifier, topic: Topic) -> None:
        topics = self.stream(stream).topics
        _refuse_taken(topics, topic.id, topic.name, "topic")
        topics[topic.id] = topic

    def rename_topic(self, stream: Identifier, identifier: Identifier, name: str) -> Topic:
        topic = self.topic(stream, identifier)
        _refuse_other(self.stream(stream).topics, topic.id, name, "topic")
        topic.name = name
        return topic

    def remove_topic(self, stream: Identifier, identifier: Identifier) -> None:
        del self.stream(stream).topics[self.topic(stream, identifier).id]

    def add_partitions(self, stream: Identifier, topic: Identifier, count: int) -> None:
        self.topic(stream, topic).partitions.extend(Partition() for _ in range(count))

    def remove_partitions(self, stream: Identifier, topic: Identifier, count: int) -> None:
        """0.8 removes as many as there are; 0.9 rejects more."""
        partitions = self.topic(stream, topic).partitions
        del partitions[max(len(partitions) - count, 0) :]

    # ----------------------------------------------------------------------------------------------------------- groups

    def add_group(self, stream: Identifier, topic: Identifier, group: Group) -> None:
        found = self.topic(stream, topic)
        _refuse_taken(found.groups, group.id, group.name, "group")
        found.groups[group.id] = group
        found.groups_created = max(found.groups_created, group.id + 1)

    def remove_group(self, stream: Identifier, topic: Identifier, identifier: Identifier) -> None:
        groups = self.topic(stream, topic).groups
        del groups[_get(groups, identifier, "group").id]

    # ------------------------------------------------------------------------------------------------------------ users

    def add_user(self, user: User) -> None:
        _refuse_taken(self.users, user.id, user.name, "user")
        self.users[user.id] = user

    def update_user(self, identifier: Identifier, name: str | None, is_active: bool | None) -> None:
        user = self.user(identifier)
        if name is not None:
            _refuse_other(self.users, user.id, name, "user")
            user.name = name
        if is_active is not None:
            user.is_active = is_active

    def remove_user(self, identifier: Identifier) -> None:
        del self.users[self.user(identifier).id]


def _get(things: dict[int, Thing], identifier: Identifier, kind: str) -> Thing:
    thing = find(things, identifier)
    if thing is None:
        raise Rejected(f"there is no {kind} {identifier!r}")
    return thing


def _refuse_taken(things: dict[int, Thing], identity: int, name: str, kind: str) -> None:
    if identity in things:
        raise Rejected(f"there is a {kind} with the number {identity} already")
    if find(things, name) is not None:
        raise Rejected(f"there is a {kind} {name!r} already")


def _refuse_other(things: dict[int, Thing], identity: int, name: str, kind: str) -> None:
    found = find(things, name)
    if found is not None and found is not things[identity]:
        raise Rejected(f"there is a {kind} {name!r} already")
