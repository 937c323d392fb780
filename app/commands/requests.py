"""The requests: a frozen struct for every command, independent of the transport.

Transports create them and call `registry.execute`. Streams, topics, groups, users and consumers are named by an
`Identifier`: a number or a name.
"""

from __future__ import annotations

import enum

import msgspec

from whippet.app.access.permissions import Permissions
from whippet.app.errors import Code, CommandError, of_storage
from whippet.app.model import identity
from whippet.app.model.options import Option, OptionScope
from whippet.storage.batch import Checked, Writable
from whippet.storage.errors import InvalidProducer
from whippet.storage.options import Durability
from whippet.storage.producers import Producer

Identifier = int | str

DIGITS_MAX = 20
"""Digits of 2**64 - 1."""


class Request(msgspec.Struct, frozen=True):
    """The base of all requests."""


class Secretive(Request, frozen=True):
    """A request that contains a secret. Only its type is printed in logs and traces."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class ConsumerKind(enum.IntEnum):
    CONSUMER = 1
    GROUP = 2
    EXTERNAL_GROUP = 3
    """Offsets that an external program, such as a Kafka bridge, stores under the name of a group. It cannot poll,
    nobody needs to be a member, and any offset may be stored."""


class Consumer(msgspec.Struct, frozen=True):
    """A single consumer by its name or number, or a consumer group of the topic."""

    kind: ConsumerKind
    id: Identifier


class PartitioningKind(enum.IntEnum):
    BALANCED = 1
    PARTITION_ID = 2
    MESSAGES_KEY = 3


class Partitioning(msgspec.Struct, frozen=True):
    """The partition that a batch goes to: the next one in turn, a given one, or one by the hash of a key."""

    kind: PartitioningKind
    partition_id: int = 0
    key: bytes = b""


def producer(identity: str, epoch: str, sequence: str) -> Producer:
    """Parses the three headers of a numbered send. The numbers are plain decimals."""
    for name, text in (("epoch", epoch), ("sequence", sequence)):
        if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX):
            raise CommandError(Code.INVALID_PRODUCER, f"the {name} of a producer must be a number, not {text[:40]!r}")
    try:
        return Producer(identity.encode(errors="surrogateescape"), int(epoch), int(sequence))
    except InvalidProducer as error:
        raise of_storage(error) from error


class StrategyKind(enum.IntEnum):
    OFFSET = 1
    TIMESTAMP = 2
    FIRST = 3
    LAST = 4
    NEXT = 5


class Strategy(msgspec.Struct, frozen=True):
    """Where reading starts. `value` is an offset or a time in us; the other kinds have none."""

    kind: StrategyKind
    value: int = 0


UserStatus = identity.UserStatus


# ------------------------------------------------------------------------------------------------- system


class Ping(Request, frozen=True):
    pass


class GetStats(Request, frozen=True):
    pass


class GetActivity(Request, frozen=True):
    """Only HTTP has it: rates over time, and latencies."""

    step: int
    """The seconds that a point covers."""
    since: int
    """Only points that end after this, in us since 1970."""


class GetSnapshot(Request, frozen=True):
    """The compression and the parts, as numbers of the protocol; 100 is all parts."""

    compression: int
    types: tuple[int, ...]


class GetClusterMetadata(Request, frozen=True):
    pass


class DescribeOptions(Request, frozen=True):
    scope: OptionScope
    with_columns: bool = False
    """Includes what can be changed like an option but is a field elsewhere, such as a name."""


class AttachSession(Request, frozen=True):
    """Lets this session poll and commit with the group memberships of another connection of the same user."""

    client: bytes
    number: int


class GetMe(Request, frozen=True):
    pass


class GetClient(Request, frozen=True):
    client_id: int


class GetClients(Request, frozen=True):
    pass


# ------------------------------------------------------------------------------------------------- users and sessions


class GetUser(Request, frozen=True):
    user: Identifier


class GetUsers(Request, frozen=True):
    pass


class CreateUser(Secretive, frozen=True):
    username: str
    password: str
    status: UserStatus
    permissions: Permissions | None
    options: tuple[Option, ...] = ()


class DeleteUser(Request, frozen=True):
    user: Identifier


class UpdateUser(Request, frozen=True):
    user: Identifier
    username: str | None
    status: UserStatus | None
    options: tuple[Option, ...] = ()


class UpdatePermissions(Request, frozen=True):
    user: Identifier
    permissions: Permissions | None


class ChangePassword(Secretive, frozen=True):
    user: Identifier
    current_password: str
    new_password: str
    end_personal_access_tokens: bool = False
    """Sessions and access tokens end in any case. The binary protocols have no field for this."""


class EndSessions(Request, frozen=True):
    """Ends all sessions, access tokens and refreshes of a user, including the caller's."""

    user: Identifier
    personal_access_tokens: bool = False
    """Ends those as well."""


class LoginUser(Secretive, frozen=True):
    username: str
    password: str
    version: str = ""
    context: str = ""


class LoginWithPersonalAccessToken(Secretive, frozen=True):
    token: str


class LogoutUser(Request, frozen=True):
    pass


class GetPersonalAccessTokens(Request, frozen=True):
    pass


class CreatePersonalAccessToken(Request, frozen=True):
    """`expiry` in us from now; 0 and 2**64 - 1 mean never."""

    name: str
    expiry: int


class DeletePersonalAccessToken(Request, frozen=True):
    name: str


# ------------------------------------------------------------------------------------------------- messages and offsets


class SendMessages(Request, frozen=True):
    """Batches in the format of the store, appended in order to one partition; the log takes ownership of them.

    Normally one. There are several only if the origin times of a classic client's messages are too far apart for the
    deltas of one batch.
    """

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batches: tuple[Writable, ...]
    checked: tuple[Checked, ...] = ()
    """The result of the check of each batch, if its bytes were encoded here within the limits of the store; otherwise
    empty."""
    durability: Durability | None = None
    """The level that the batches must reach before the response, if it is higher than the topic's."""
    producer: Producer | None = None
    """Set for a numbered send, which may be repeated; then there is one batch."""


class PollMessages(Request, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    strategy: Strategy
    count: int
    auto_commit: bool
    room: int | None = None
    """Bytes that the response may have, where the transport has a limit of its own."""
    long_room: int | None = None
    """Bytes that the response may have if the transport reads it while sending it; None: it cannot."""
    epoch: int | None = None
    """The epoch of the partition that the client knows; in another one, its offset would be that of another message."""


class GetPartitionRoute(Request, frozen=True):
    """Returns the incarnation of a partition, and the number of partitions of the topic."""

    stream: Identifier
    topic: Identifier
    partition_id: int


class PollMessagesDeferred(PollMessages, frozen=True):
    """A poll whose response is deferred until there are `min_count` messages, or for `wait_us`. `max_bytes` limits the
    response. Executing it does not wait: app/long_poll.py does that before."""

    wait_us: int = 0
    min_count: int = 1
    max_bytes: int | None = None
    request_timeout_us: int = 0
    """When the client gives up."""


class FetchTarget(msgspec.Struct, frozen=True, gc=False):
    """One partition of a fetch: the bytes to read at most, and the incarnation that the client knows."""

    partition_id: int
    strategy: Strategy
    max_bytes: int
    incarnation: int
    owner_generation: int = 0


class FetchMessages(Request, frozen=True):
    """A poll of many partitions at once, deferred like `PollMessagesDeferred`; the limits apply to all together."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    wait_us: int
    request_timeout_us: int
    min_count: int
    count: int
    max_bytes: int
    auto_commit: bool
    targets: tuple[FetchTarget, ...]
    room: int | None = None


class AwaitMessages(Request, frozen=True):
    """Returns the partitions that have a message at or after their start, once one of them has."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    wait_us: int
    request_timeout_us: int
    starts: tuple[tuple[int | None, Strategy], ...]
    min_count: int = 1


class LocateMessages(Request, frozen=True):
    """Returns the first offset to read in each of several partitions."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    starts: tuple[tuple[int | None, Strategy], ...]
    incarnations: tuple[int, ...] = ()
    """The incarnations of the partitions that the client knows; none: they are not checked here."""


class FollowMessages(Request, frozen=True):
    """Reads everything that is appended to one partition, or to all. Without `start`, from now on. `consumer` is for a
    start after its stored offset; for LAST, `value` is the number of messages."""

    stream: Identifier
    topic: Identifier
    partition_id: int | None
    start: Strategy | None = None
    consumer: Consumer | None = None


class GetPollRouting(PollMessages, frozen=True):
    """Asks which node would execute this poll."""


class FlushUnsavedBuffer(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    partition_id: int
    fsync: bool


class GetConsumerOffset(Request, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None


class GetOffsetRouting(GetConsumerOffset, frozen=True):
    """Asks which node stores this offset."""


class StoreConsumerOffset(Request, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    offset: int
    epoch: int | None = None
    """The epoch of the partition in which the client has read the message; None: any."""


class DeleteConsumerOffset(Request, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None


# ------------------------------------------------------------------------------------------------- streams and topics


class GetStream(Request, frozen=True):
    stream: Identifier


class GetStreams(Request, frozen=True):
    pass


class CreateStream(Request, frozen=True):
    name: str
    options: tuple[Option, ...] = ()


class DeleteStream(Request, frozen=True):
    stream: Identifier


class UpdateStream(Request, frozen=True):
    stream: Identifier
    name: str
    options: tuple[Option, ...] = ()


class PurgeStream(Request, frozen=True):
    stream: Identifier


class GetTopic(Request, frozen=True):
    stream: Identifier
    topic: Identifier


class GetTopics(Request, frozen=True):
    stream: Identifier


class CreateTopic(Request, frozen=True):
    """Expiry in us and size in bytes. 0 stands for the value in `options`, or else for the server's default; so does
    compression 1 (none). 2**64 - 1 means never and unlimited. Factor 0 means 1. Newer clients set everything in
    `options`."""

    stream: Identifier
    name: str
    partitions_count: int
    compression_algorithm: int = 1
    message_expiry: int = 0
    max_topic_size: int = 0
    replication_factor: int = 0
    options: tuple[Option, ...] = ()


class DeleteTopic(Request, frozen=True):
    stream: Identifier
    topic: Identifier


class UpdateTopic(Request, frozen=True):
    """None and 0 keep the present value unless `options` set one: a client that only renames a topic changes nothing
    else. 2**64 - 1 means never and unlimited."""

    stream: Identifier
    topic: Identifier
    name: str
    compression_algorithm: int | None = None
    message_expiry: int | None = None
    max_topic_size: int | None = None
    replication_factor: int | None = None
    options: tuple[Option, ...] = ()
    reset: tuple[str, ...] = ()
    """Options to reset to the server's default."""


class PatchStream(Request, frozen=True):
    """Changes only what is named; the name is an option, too."""

    stream: Identifier
    options: tuple[Option, ...] = ()
    reset: tuple[str, ...] = ()


class PatchTopic(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    options: tuple[Option, ...] = ()
    reset: tuple[str, ...] = ()


class PatchUser(Request, frozen=True):
    user: Identifier
    options: tuple[Option, ...] = ()
    reset: tuple[str, ...] = ()


class PurgeTopic(Request, frozen=True):
    stream: Identifier
    topic: Identifier


class CreatePartitions(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    count: int


class DeletePartitions(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    count: int


class DeleteSegments(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    partition_id: int
    count: int


# ------------------------------------------------------------------------------------------------- consumer groups


class GetConsumerGroup(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    group: Identifier


class GetConsumerGroups(Request, frozen=True):
    stream: Identifier
    topic: Identifier


class GetTopicReaders(Request, frozen=True):
    """Only HTTP has it: the stored offsets of all consumers and groups of a topic."""

    stream: Identifier
    topic: Identifier


class CreateConsumerGroup(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    name: str


class DeleteConsumerGroup(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    group: Identifier


class JoinConsumerGroup(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    group: Identifier


class LeaveConsumerGroup(Request, frozen=True):
    stream: Identifier
    topic: Identifier
    group: Identifier


class SyncConsumerGroup(Request, frozen=True):
    """Returns the partitions that the calling member may poll."""

    stream: Identifier
    topic: Identifier
    group: Identifier
