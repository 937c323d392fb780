"""What can be asked of Whippet: a frozen struct for every command, whoever asks and however they ask.

Transports make these and hand them to `registry.execute`; no transport knows what happens then. Streams,
topics, groups, users and consumers are named by an `Identifier`: a number or a name.
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
"""Of 2**64 - 1."""


class Request(msgspec.Struct, frozen=True):
    """The root of all commands."""


class Secretive(Request, frozen=True):
    """A request with a secret in it: whoever prints it, in a log or a trace, sees only what it is."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class ConsumerKind(enum.IntEnum):
    CONSUMER = 1
    GROUP = 2
    EXTERNAL_GROUP = 3
    """Offsets that somebody else's members keep under the name of a consumer group, such as a Kafka bridge. It cannot
    poll, nobody needs to be a member, and any offset may be stored."""


class Consumer(msgspec.Struct, frozen=True):
    """Who reads: a consumer by its own name or number, or a consumer group of the topic."""

    kind: ConsumerKind
    id: Identifier


class PartitioningKind(enum.IntEnum):
    BALANCED = 1
    PARTITION_ID = 2
    MESSAGES_KEY = 3


class Partitioning(msgspec.Struct, frozen=True):
    """Where a batch goes: the next partition in turn, a given one, or the one that the hash of a key decides."""

    kind: PartitioningKind
    partition_id: int = 0
    key: bytes = b""


def producer(identity: str, epoch: str, sequence: str) -> Producer:
    """Who sends, as three texts say it (the headers of a request). Numbers are plain decimals."""
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


class GetSnapshot(Request, frozen=True):
    """Numbers of the compression and of the parts wanted, as the protocol has them; 100 is all of them."""

    compression: int
    types: tuple[int, ...]


class GetClusterMetadata(Request, frozen=True):
    pass


class DescribeOptions(Request, frozen=True):
    scope: OptionScope
    with_columns: bool = False
    """Also what can be changed like an option and has a field of its own elsewhere, such as a name."""


class AttachSession(Request, frozen=True):
    """Acts from now on in the group memberships of another connection of the same user."""

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
    """Sessions and access tokens end in any case. The binary protocols cannot say this."""


class EndSessions(Request, frozen=True):
    """All sessions, access tokens and refreshes of a user, the one that asks among them."""

    user: Identifier
    personal_access_tokens: bool = False
    """End those as well."""


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
    """`expiry` in us from now; 0 and 2**64 - 1 are never."""

    name: str
    expiry: int


class DeletePersonalAccessToken(Request, frozen=True):
    name: str


# ------------------------------------------------------------------------------------------------- messages and offsets


class SendMessages(Request, frozen=True):
    """Batches in the format of storage, appended in order to one partition; the log makes them its own.

    Normally one. There are more only when the origin times of a classic client's messages are further apart than the
    deltas of one batch can say.
    """

    stream: Identifier
    topic: Identifier
    partitioning: Partitioning
    batches: tuple[Writable, ...]
    checked: tuple[Checked, ...] = ()
    """What is known of each batch, where its bytes were made here within the limits of the store; else nothing."""
    durability: Durability | None = None
    """What the batches have to have reached for the answer, where that is more than what the topic promises."""
    producer: Producer | None = None
    """Who numbers its sends, so that this one may come again; then there is one batch."""


class PollMessages(Request, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    strategy: Strategy
    count: int
    auto_commit: bool
    room: int | None = None
    """Bytes that the answer may have, where the transport has a limit of its own."""


class GetPartitionRoute(Request, frozen=True):
    """Which incarnation of a partition there is, and how many partitions the topic has."""

    stream: Identifier
    topic: Identifier
    partition_id: int


class PollMessagesDeferred(PollMessages, frozen=True):
    """A poll that may be answered later: when there are `min_count` messages, or after `wait_us`. `max_bytes` is what
    the answer may have. Carrying it out does not wait; app/long_poll.py does that before."""

    wait_us: int = 0
    min_count: int = 1
    max_bytes: int | None = None
    request_timeout_us: int = 0
    """When the client gives up."""


class FetchTarget(msgspec.Struct, frozen=True, gc=False):
    """One partition to fetch from: `max_bytes` of it, and the incarnation that the client knows."""

    partition_id: int
    strategy: Strategy
    max_bytes: int
    incarnation: int
    owner_generation: int = 0


class FetchMessages(Request, frozen=True):
    """A poll of many partitions at once, deferred as `PollMessagesDeferred` is; all bounds are for all together."""

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
    """Which of some partitions have a message where reading would begin, once one of them has."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    wait_us: int
    request_timeout_us: int
    starts: tuple[tuple[int | None, Strategy], ...]
    min_count: int = 1


class LocateMessages(Request, frozen=True):
    """Where reading would begin, in each of some partitions."""

    consumer: Consumer
    stream: Identifier
    topic: Identifier
    starts: tuple[tuple[int | None, Strategy], ...]
    incarnations: tuple[int, ...] = ()
    """The incarnations of the partitions that the client knows; none: they are not checked here."""


class FollowMessages(Request, frozen=True):
    """To read all that comes, of one partition or of all of them. No start: from now on. `consumer` is for the start
    after what somebody has stored; `value` of the last ones is how many."""

    stream: Identifier
    topic: Identifier
    partition_id: int | None
    start: Strategy | None = None
    consumer: Consumer | None = None


class GetPollRouting(PollMessages, frozen=True):
    """Which node would answer this poll."""


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
    """Which node keeps this offset."""


class StoreConsumerOffset(Request, frozen=True):
    consumer: Consumer
    stream: Identifier
    topic: Identifier
    partition_id: int | None
    offset: int


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
    """Expiry in us and size in bytes; 0 is what `options` say, or else the server's default, and so is compression 1,
    none. 2**64 - 1 is never and unlimited. Factor 0 is 1. Newer clients say everything in `options`."""

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
    """None and 0 are left as they are, unless `options` say something: who only gives a topic another name takes
    nothing from it. 2**64 - 1 is never and unlimited."""

    stream: Identifier
    topic: Identifier
    name: str
    compression_algorithm: int | None = None
    message_expiry: int | None = None
    max_topic_size: int | None = None
    replication_factor: int | None = None
    options: tuple[Option, ...] = ()
    reset: tuple[str, ...] = ()
    """Options that nobody has chosen any more: the server's default holds again."""


class PatchStream(Request, frozen=True):
    """Only what is named changes; the name is an option, too."""

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
    """Which partitions the asking member may poll."""

    stream: Identifier
    topic: Identifier
    group: Identifier
