"""The rows that the commands print, and how responses of the server become rows.

Their names are those of the HTTP API where there is one. Unlike the responses, they have no fields that only some
protocols carry.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from whippet.app.cli.remote.output import Count, Duration, Expiry, Limit, Row, Size, Time

COMPRESSIONS = {1: "none", 2: "gzip", 3: "zstd"}
ROLES = {0: "leader", 1: "follower"}
STATUSES = {0: "healthy", 1: "starting", 2: "stopping", 3: "unreachable", 4: "maintenance"}
TRANSPORTS = {1: "tcp", 2: "quic", 3: "http", 4: "websocket"}


class Stream(Row, frozen=True):
    id: int
    name: str
    topics_count: Count
    messages_count: Count
    size_bytes: Size
    created_at: Time


class Topic(Row, frozen=True):
    id: int
    name: str
    partitions_count: Count
    messages_count: Count
    size_bytes: Size
    compression_algorithm: str
    message_expiry: Expiry
    max_topic_size: Limit
    created_at: Time


class StreamDetails(Stream, frozen=True):
    topics: list[Topic]


class Partition(Row, frozen=True):
    identity: ClassVar[str] = "id"
    id: int
    segments_count: Count
    messages_count: Count
    size_bytes: Size
    current_offset: int
    created_at: Time


class TopicDetails(Topic, frozen=True):
    partitions: list[Partition]


class Group(Row, frozen=True):
    id: int
    name: str
    partitions_count: Count
    members_count: Count


class Member(Row, frozen=True):
    identity: ClassVar[str] = "id"
    id: int
    partitions: list[int]


class GroupDetails(Group, frozen=True):
    members: list[Member]


class Offset(Row, frozen=True):
    identity: ClassVar[str] = "stored_offset"
    partition_id: int
    current_offset: int
    stored_offset: int


class User(Row, frozen=True):
    id: int
    name: str
    status: str
    created_at: Time


class UserDetails(User, frozen=True):
    global_permissions: list[str]
    stream_permissions: list[str]


class Token(Row, frozen=True):
    name: str
    expires_at: Time


class RawToken(Row, frozen=True):
    """The token itself, which is shown once."""

    identity: ClassVar[str] = "token"
    name: str
    token: str

    def __repr__(self) -> str:
        return f"RawToken({self.name!r}, ...)"


class Membership(Row, frozen=True):
    identity: ClassVar[str] = "group_id"
    stream_id: int
    topic_id: int
    group_id: int


class Client(Row, frozen=True):
    identity: ClassVar[str] = "id"
    id: int
    user_id: int | None
    transport: str
    address: str


class ClientDetails(Client, frozen=True):
    consumer_groups: list[Membership]


class Node(Row, frozen=True):
    name: str
    ip: str
    tcp_port: int
    quic_port: int
    http_port: int
    websocket_port: int
    role: str
    status: str


class Cluster(Row, frozen=True):
    """Ports of transports that are off are 0."""

    name: str
    nodes: list[Node]


class Stats(Row, frozen=True):
    identity: ClassVar[str] = "hostname"
    hostname: str
    server_version: str
    os_name: str
    os_version: str
    kernel_version: str
    process_id: int
    start_time: Time
    run_time: Duration
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: Size
    available_memory: Size
    total_memory: Size
    read_bytes: Size
    written_bytes: Size
    messages_size_bytes: Size
    streams_count: Count
    topics_count: Count
    partitions_count: Count
    segments_count: Count
    messages_count: Count
    clients_count: Count
    consumer_groups_count: Count
    threads_count: Count
    free_disk_space: Size
    total_disk_space: Size


class Ping(Row, frozen=True):
    identity: ClassVar[str] = ""
    number: int
    round_trip: Duration


class Snapshot(Row, frozen=True):
    identity: ClassVar[str] = "file"
    file: str
    size_bytes: Size


class Message(Row, frozen=True):
    identity: ClassVar[str] = "payload"
    partition_id: int
    offset: int
    timestamp: Time
    id: str
    headers: dict[str, str | int | float | bool]
    payload: str
    """Text, or base64 if the bytes are no UTF-8."""
    encoding: str


class Sent(Row, frozen=True):
    identity: ClassVar[str] = ""
    messages_count: Count
    size_bytes: Size


class Exported(Row, frozen=True):
    identity: ClassVar[str] = "file"
    file: str
    format: str
    messages_count: Count
    size_bytes: Size
    """Of the payloads."""


class Copied(Row, frozen=True):
    identity: ClassVar[str] = ""
    messages_count: Count
    size_bytes: Size
    found_count: Count
    """Messages that a copy that was interrupted had sent already."""


class Context(Row, frozen=True):
    name: str
    server: str
    user: str | None
    secret: str
    """The place of the secret: keyring, file or none."""
    in_use: bool


class Lag(Row, frozen=True):
    identity: ClassVar[str] = "partition_id"
    partition_id: int
    next_offset: int
    stored_offset: int | None
    lag: Count


# ------------------------------------------------------------------------------------------------- from the responses


def copied(row: type[Any], source: Any, **more: Any) -> Any:
    """Returns a row with the fields of a response of the same names."""
    names = set(row.__struct_fields__) - more.keys()
    return row(**{name: getattr(source, name) for name in names}, **more)


def stream(info: Any) -> Stream:
    found: Stream = copied(Stream, info)
    return found


def stream_details(details: Any) -> StreamDetails:
    found: StreamDetails = copied(StreamDetails, details.info, topics=[topic(each) for each in details.topics])
    return found


def topic(info: Any) -> Topic:
    found: Topic = copied(Topic, info, compression_algorithm=_compression(info))
    return found


def _compression(info: Any) -> str:
    return COMPRESSIONS.get(info.compression_algorithm, str(info.compression_algorithm))


def topic_details(details: Any) -> TopicDetails:
    partitions = [copied(Partition, each) for each in details.partitions]
    found: TopicDetails = copied(
        TopicDetails, details.info, compression_algorithm=_compression(details.info), partitions=partitions
    )
    return found


def group(info: Any) -> Group:
    found: Group = copied(Group, info)
    return found


def group_details(details: Any) -> GroupDetails:
    members = [Member(each.id, list(each.partitions)) for each in details.members]
    found: GroupDetails = copied(GroupDetails, details.info, members=members)
    return found


def user(info: Any) -> User:
    return User(info.id, info.username, info.status.name.lower(), info.created_at)


def user_details(details: Any) -> UserDetails:
    permissions = details.permissions
    everywhere = _granted(permissions.everywhere) if permissions else []
    streams = []
    for stream_id, granted in sorted(permissions.streams.items()) if permissions else ():
        parts = [f"{stream_id}:{','.join(_granted(granted))}".rstrip(":")]
        parts += [
            f"{topic_id}:{','.join(_granted(flags))}".rstrip(":") for topic_id, flags in sorted(granted.topics.items())
        ]
        streams.append("#".join(parts))
    found = user(details.info)
    return UserDetails(**msgspec.structs.asdict(found), global_permissions=everywhere, stream_permissions=streams)


def _granted(flags: Any) -> list[str]:
    return [name for name in flags.__struct_fields__ if getattr(flags, name) is True]


def client(info: Any) -> Client:
    return Client(info.client_id, info.user_id, _transport(info), info.address)


def client_details(info: Any) -> ClientDetails:
    groups = [copied(Membership, each) for each in info.groups]
    return ClientDetails(info.client_id, info.user_id, _transport(info), info.address, groups)


def _transport(info: Any) -> str:
    return TRANSPORTS.get(info.transport, str(info.transport))


def cluster(found: Any) -> Cluster:
    nodes = [
        copied(
            Node, each, role=ROLES.get(each.role, str(each.role)), status=STATUSES.get(each.status, str(each.status))
        )
        for each in found.nodes
    ]
    return Cluster(found.name, nodes)


def stats(found: Any) -> Stats:
    row: Stats = copied(Stats, found)
    return row
