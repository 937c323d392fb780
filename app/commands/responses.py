"""The responses: a frozen struct for every kind of response, which each transport encodes in its own way.

A command without a result returns None, and so does a query for something that does not exist. Times are microseconds
since 1970.
"""

from __future__ import annotations

import enum

import msgspec

from whippet.app.access.permissions import Permissions
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import Option
from whippet.app.telemetry.activity import Latency, Point
from whippet.storage.batch import Readable
from whippet.storage.options import Durability


class HeldBack(msgspec.Struct, frozen=True):
    """What retention would have deleted from a partition if a consumer had read it."""

    consumer_kind: str
    """`consumer` or `group`."""
    consumer: str
    """Its name, or its number if it has no name that is known."""
    offset: int
    """The last offset that it has stored."""
    segments: int
    bytes: int


class PartitionInfo(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    segments_count: int
    current_offset: int
    size_bytes: int
    messages_count: int
    first_offset: int = 0
    next_offset: int = 0
    """The offset after the last readable message."""
    classic_size_bytes: int | None = None
    """As servers before 0.9 count: 64 bytes for each message, and its content."""
    incarnation: int = 0
    """A number that no other partition of this server ever has."""
    epoch: int = 0
    """A number that changes whenever the offsets of the partition start over; 0 if the connection does not tell."""
    disk_bytes: int = 0
    """What it occupies on the disk."""
    held_back: HeldBack | None = None


class TopicInfo(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    partitions_count: int
    message_expiry: int
    compression_algorithm: int
    max_topic_size: int
    replication_factor: int
    size_bytes: int
    messages_count: int
    name: str
    explicit: tuple[Option, ...] = ()
    """Options that were chosen for this topic, by key."""
    derived: tuple[Option, ...] = ()
    """All other options with the values that apply."""
    classic_size_bytes: int | None = None
    disk_bytes: int = 0
    """What it occupies on the disk."""


class TopicDetails(msgspec.Struct, frozen=True):
    info: TopicInfo
    partitions: tuple[PartitionInfo, ...]


class StreamInfo(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    topics_count: int
    size_bytes: int
    messages_count: int
    name: str
    classic_size_bytes: int | None = None


class StreamDetails(msgspec.Struct, frozen=True):
    info: StreamInfo
    topics: tuple[TopicInfo, ...]


class GroupInfo(msgspec.Struct, frozen=True):
    id: int
    partitions_count: int
    members_count: int
    name: str


class GroupMember(msgspec.Struct, frozen=True):
    id: int
    partitions: tuple[int, ...]


class GroupDetails(msgspec.Struct, frozen=True):
    info: GroupInfo
    members: tuple[GroupMember, ...]


class UserInfo(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    status: UserStatus
    username: str


class UserDetails(msgspec.Struct, frozen=True):
    info: UserInfo
    permissions: Permissions | None


class GroupAssignment(msgspec.Struct, frozen=True):
    """The partitions that a member may poll. `generation` increases with every change in the group."""

    generation: int
    partitions: tuple[int, ...]
    finishing: tuple[int, ...] = ()
    """Partitions that it still owns, but may no longer poll: another member gets them once it has committed what it
    polled."""


class LoggedIn(msgspec.Struct, frozen=True):
    user_id: int


class TokenInfo(msgspec.Struct, frozen=True):
    """`expires_at` 0 means never."""

    name: str
    expires_at: int


class RawToken(msgspec.Struct, frozen=True):
    """The only response that contains the token."""

    token: str

    def __repr__(self) -> str:
        return "RawToken(...)"


class GroupMembership(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    group_id: int


class ClientInfo(msgspec.Struct, frozen=True):
    """`user_id` None: not logged in. Transport: 1 TCP, 2 QUIC, 3 HTTP, 4 WebSocket."""

    client_id: int
    user_id: int | None
    transport: int
    address: str
    groups: tuple[GroupMembership, ...]


class ConsumerOffset(msgspec.Struct, frozen=True):
    partition_id: int
    current_offset: int
    stored_offset: int


class Reader(msgspec.Struct, frozen=True):
    """A consumer or a group that has stored an offset in a partition."""

    partition_id: int
    is_group: bool
    id: int
    name: str | None
    """None if only its number is known."""
    stored_offset: int


class Sent(msgspec.Struct, frozen=True):
    """Where a batch was stored, and the durability level that it has reached."""

    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int
    messages_count: int
    durability: Durability
    repeated: bool = False
    """Nothing was appended: the producer had sent this before, and the response is the original one."""


class Confirmation(msgspec.Struct, frozen=True):
    """The response to a send for clients that want one: where the first message is."""

    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


class Polled(msgspec.Struct, frozen=True):
    """`batches` are batches, or slices of them, one after the other over several buffers."""

    partition_id: int
    current_offset: int
    messages_count: int
    batches: tuple[Readable, ...]
    owned: bool = True
    """False if this member of the group may not, or no longer, poll the partition."""
    next_offset: int = 0
    """Where a reader continues; not part of any wire format."""
    epoch: int = 0
    """The epoch of the partition when it was read; only HTTP reports it."""


class PolledAt(msgspec.Struct, frozen=True):
    """A poll with the version that the client repeats later: the incarnation of the partition, and the number of the
    last change of the catalogue."""

    polled: Polled
    incarnation: int
    metadata_op: int


class Section(msgspec.Struct, frozen=True):
    """A section holds the messages of one partition, or the number of the error that prevented the read."""

    partition_id: int
    status: int
    current_offset: int
    messages_count: int
    incarnation: int
    next_offset: int
    batches: tuple[Readable, ...] = ()


class Fetched(msgspec.Struct, frozen=True):
    sections: tuple[Section, ...]
    metadata_op: int


class PartitionRoute(msgspec.Struct, frozen=True):
    """Which node has a partition, in which incarnation. This server is the only node."""

    incarnation: int
    metadata_op: int
    partitions_count: int


class ClusterNode(msgspec.Struct, frozen=True):
    """Ports are 0 for disabled transports. Role: 0 leader, 1 follower. Status: 0 healthy."""

    name: str
    ip: str
    tcp_port: int
    quic_port: int
    http_port: int
    websocket_port: int
    role: int
    status: int


class ClusterMetadata(msgspec.Struct, frozen=True):
    name: str
    nodes: tuple[ClusterNode, ...]


class Routing(msgspec.Struct, frozen=True):
    """The node to send a command to, and the session to use there."""

    client: bytes
    number: int
    watermark: int
    node: ClusterNode


class OptionFlags(enum.IntFlag):
    """The flags tell a client what it can do with an option. Their values are those of the wire."""

    UPDATABLE = 1
    RESETTABLE = 2
    SECRET = 4
    READ_ONLY = 8
    CRITICAL = 16


class OptionDescription(msgspec.Struct, frozen=True):
    """`default` is encoded in its kind."""

    key: str
    kind: int
    default: bytes
    description: str
    flags: OptionFlags = OptionFlags(0)


class Snapshot(msgspec.Struct, frozen=True):
    """A ZIP archive."""

    content: bytes


class Activity(msgspec.Struct, frozen=True):
    at: int
    """Now, in us since 1970."""
    points: tuple[Point, ...]
    """Oldest first."""
    latest: Point | None
    """The last second."""
    latencies: tuple[Latency, ...]
    """Of the last minute."""
    connections: dict[str, int]
    """Open connections by transport."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    process_id: int
    cpu_usage: float
    total_cpu_usage: float
    memory_usage: int
    total_memory: int
    available_memory: int
    run_time: int
    start_time: int
    read_bytes: int
    written_bytes: int
    messages_size_bytes: int
    streams_count: int
    topics_count: int
    partitions_count: int
    segments_count: int
    messages_count: int
    clients_count: int
    consumer_groups_count: int
    hostname: str
    os_name: str
    os_version: str
    kernel_version: str
    server_version: str
    server_semver: int
    threads_count: int
    free_disk_space: int
    total_disk_space: int
    classic_size_bytes: int | None = None
    open_files_count: int = 0
    open_files_limit: int = 0
