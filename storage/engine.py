"""The seam between what the server does and what keeps its data: the engine and its partitions, as protocols.

Commands, transports and the dashboard use nothing else of the store, and do not know which engine they have. `Store`
with its `Partition` is the engine of this machine. It is passed as it is where these protocols are named, so no call
costs more. app/archiving.py, and the tools that work on a data folder, are about that engine alone, and name it.

What every engine promises:

1. **Append.** An append returns when its batch has the durability of the partition, or the higher one that was
   requested, and tells which. Batches of one caller get rising offsets, in the order of the calls. A batch that is
   refused leaves nothing behind. After any other failure it is unknown whether it is stored, except for numbered sends.
2. **Offsets.** An offset that was visible never names another message, except after a purge, which raises `emptied`
   and changes `epoch`. There may be gaps, so a reader continues at `next_offset` and does not count.
3. **Read.** Nobody reads from `readable` on, and what was read is never taken back. A read returns whole batches as
   clients get them, and at least one message, however large, if there is any at or after the offset.
4. **Wait.** `until` and `readable_at` are over as soon as a message is readable, but also after a purge, and with an
   error when the partition is closed: the caller checks again. Giving up one wait affects no other.
5. **What is known.** Properties and `offset_of` never wait. Once `here()` has returned they can be relied upon, and
   `readable` also after `catch_up()`.
6. **Stored offsets.** A stored offset is at most that of the newest message (except of `Kind.EXTERNAL_GROUP`). It has
   the durability that the topic promises, and everybody reads it, once `store_offset` has returned.
7. **Catalogue.** A change is durable once its call has returned, and `streams`, `users` and `tokens` have what is
   durable. Callers make one change at a time. Numbers in `reserved_ids`, and those below `numbers_reserved`, are never
   assigned again.
8. **Numbered sends.** A repeated send is stored once and gets the first result, whatever ended in between. Sends of one
   producer are made one after the other.
9. **Groups.** An engine keeps the names of groups and their offsets. Who is a member, and of which partitions, is
   decided in memory, by app/model/groups.py.

Every refusal and failure is a `StorageError`. All of it is called on the event loop, which no call blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from whippet.storage.appended import Appended
    from whippet.storage.batch import Checked, Readable, Writable
    from whippet.storage.disk_space import DiskSpace
    from whippet.storage.documents import GroupDocument, Stream, StreamDocument, TopicDocument
    from whippet.storage.fetched import Fetched
    from whippet.storage.layout import PartitionId
    from whippet.storage.long_reads import LongRead
    from whippet.storage.offsets import Key, Kind
    from whippet.storage.options import Durability, StoreOptions
    from whippet.storage.producers import Producer
    from whippet.storage.retention import HeldBack
    from whippet.storage.room import Room
    from whippet.storage.single_batch import Single
    from whippet.storage.waiting import Awaiting


Values = list[tuple[tuple[str, ...], float]]


class Reading(NamedTuple):
    """A number that an engine measures of itself, for the metrics; one for each combination of the labels."""

    name: str
    help: str
    values: Values
    labels: tuple[str, ...] = ()
    counts: bool = False
    """Whether it only rises."""


class Partition(Protocol):
    """A partition, from its creation or the start until it is removed or the engine is closed."""

    held_back: HeldBack | None
    """What the last round of retention had to keep for a reader."""

    @property
    def place(self) -> PartitionId: ...
    @property
    def durability(self) -> Durability:
        """What an append reaches if nothing higher is requested."""
        ...

    @property
    def emptied(self) -> int:
        """How often everything was deleted. Readers that stay need it: after a purge, offsets may start over."""
        ...

    @property
    def epoch(self) -> int:
        """A number that no earlier partition in this place ever had. It changes together with `emptied`, and survives
        restarts, so that clients can remember it next to an offset."""
        ...

    @property
    def failed(self) -> Exception | None:
        """Why appends are refused at the moment."""
        ...

    @property
    def appended(self) -> int:
        """The offset after the last message accepted."""
        ...

    @property
    def readable(self) -> int:
        """The offset after the last message that readers see."""
        ...

    @property
    def first_offset(self) -> int:
        """The oldest retained offset, or that of the next message if there is none."""
        ...

    @property
    def messages_count(self) -> int: ...
    @property
    def segments_count(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """Bytes of all batches as clients get them."""
        ...

    @property
    def disk_bytes(self) -> int: ...
    @property
    def message_bytes(self) -> int:
        """The size of the messages for clients before 0.9."""
        ...

    async def here(self, reader: Key | None = None) -> None:
        """Returns when everything above can be relied upon, and the stored offset of this reader. Raises if the
        partition is closed, or cannot be reached."""
        ...

    # ------------------------------------------------------------------------------------------------------- appending

    def check(self, batch: Readable) -> Checked:
        """Checks a batch as `append` does, for callers that need the result earlier."""
        ...

    def check_room(self, size: int) -> None:
        """Raises an error if there is no room for this many bytes."""
        ...

    async def append(
        self, batch: Writable, durability: Durability | None = None, *, checked: Checked | None = None
    ) -> Appended:
        """Appends a batch, whose bytes are the partition's from now on. `checked` is what is already known of it."""
        ...

    def append_at_once(self, content: Single | tuple[Writable, Checked], size: int, waiting: Awaiting) -> int | None:
        """Does the same without a coroutine, for what the caller has just checked and which makes a batch of that
        size. Returns its first offset; `waiting` is told when it has the durability of the partition, perhaps already,
        or why it will not. None: nothing was done, and `append` has to do it; that is always allowed."""
        ...

    async def append_once(
        self,
        batch: Writable,
        producer: Producer,
        durability: Durability | None = None,
        *,
        checked: Checked | None = None,
    ) -> Appended:
        """Appends for a producer that numbers its sends. It completes even if the caller is cancelled."""
        ...

    async def result_of(self, producer: Producer, durability: Durability | None = None) -> Appended | None:
        """The result of a numbered send that was made before; None if it is new."""
        ...

    def remembers(self, producer: Producer) -> bool:
        """Whether this send has a result, or is in progress."""
        ...

    def has_passed(self, producer: Producer) -> bool:
        """Whether a newer send of the same epoch has a result, or is in progress."""
        ...

    def epoch_of(self, producer: Producer) -> int | None:
        """The newest epoch of a producer; None if the producer is unknown."""
        ...

    async def flush(self, *, sync: bool = False) -> Durability:
        """Writes what is buffered, stored offsets too, and with `sync` returns when all of it is on the disk. Returns
        the durability that everything has."""
        ...

    # --------------------------------------------------------------------------------------------- waiting and reading

    async def until(self, offset: int, durability: Durability | None = None) -> None:
        """Returns as soon as the message at an offset is readable or has reached a durability, or the caller has to
        check again."""
        ...

    def readable_at(self, offset: int) -> asyncio.Future[None]:
        """Such a wait as a future, for callers that wait for several partitions. `stop_waiting` gives it up."""
        ...

    def stop_waiting(self, future: asyncio.Future[None]) -> None: ...
    async def read(self, offset: int, count: int, room: int | None = None) -> Fetched:
        """Reads at most `count` messages in at most `room` bytes, from an offset or the first one after it."""
        ...

    async def read_long(self, offset: int, count: int, room: int) -> LongRead | None:
        """Like `read`, for what is to be read while it is sent. None: use `read`; that is always allowed."""
        ...

    async def offset_at(self, timestamp: int) -> int:
        """The first offset whose message has this time (us) or a later one; the next offset if there is none."""
        ...

    # ------------------------------------------------------------------------------------------------- stored offsets

    def offset_of(self, kind: Kind, identity: int) -> int | None:
        """The stored offset of a consumer or a group; None if there is none."""
        ...

    def readers(self, kind: Kind) -> list[int]:
        """The ids of the consumers, or of the groups, that have stored an offset."""
        ...

    def reader_name(self, kind: Kind, identity: int) -> str | None:
        """The name under which an offset was stored; None if that is not known."""
        ...

    async def store_offset(self, kind: Kind, identity: int, offset: int, name: str | None = None) -> None: ...
    async def delete_offset(self, kind: Kind, identity: int) -> bool:
        """Deletes a stored offset; False if there was none."""
        ...


class Engine(Protocol):
    """What keeps streams, topics, partitions, groups, users and tokens."""

    @property
    def options(self) -> StoreOptions:
        """Limits and defaults, which are the same for every engine."""
        ...

    @property
    def clock(self) -> Callable[[], int]:
        """Returns the time in us since 1970."""
        ...

    @property
    def room(self) -> Room:
        """Whether messages are refused because there is no room, for senders that are not told."""
        ...

    @property
    def disk(self) -> DiskSpace | None:
        """How much space there is; None if the messages are not on a disk of this machine."""
        ...

    @property
    def lines(self) -> Mapping[str, str]:
        """Lines of the banner that are not those of a store on this machine."""
        ...

    @property
    def appends_at_once(self) -> bool:
        """Whether `append_at_once` is worth trying."""
        ...

    def readings(self) -> Iterator[Reading]: ...

    async def catch_up(self, places: Sequence[PartitionId]) -> None:
        """Returns when it is known how far the logs of these partitions go. Unlike `here`, it brings no files."""
        ...

    async def measure(self, stream_id: int | None = None, topic_id: int | None = None) -> None:
        """Brings the numbers of all partitions, of those of a stream or of those of a topic up to date, for people who
        look at them. What cannot be found out in a moment stays as it was."""
        ...

    # ------------------------------------------------------------------------------------------------------ catalogue

    @property
    def streams(self) -> Mapping[int, Stream]: ...
    @property
    def users(self) -> Mapping[int, bytes]: ...
    @property
    def tokens(self) -> Mapping[int, bytes]: ...
    @property
    def numbers_reserved(self) -> int:
        """Numbers below this one may have been given away; see app/unique_numbers.py."""
        ...

    def reserved_ids(self, stream_id: int | None = None, topic_id: int | None = None) -> set[int]:
        """The ids that must not be assigned again: of streams, of the topics of a stream, of the groups of a topic."""
        ...

    async def create_stream(self, document: StreamDocument) -> None: ...
    async def update_stream(self, document: StreamDocument) -> None: ...
    async def remove_stream(self, stream_id: int) -> None: ...
    async def create_topic(self, stream_id: int, document: TopicDocument) -> None: ...
    async def update_topic(self, stream_id: int, document: TopicDocument) -> None: ...
    async def remove_topic(self, stream_id: int, topic_id: int) -> None: ...
    async def create_partitions(self, stream_id: int, topic_id: int, count: int, incarnation: int) -> None: ...
    async def remove_partitions(self, stream_id: int, topic_id: int, count: int) -> None: ...
    async def write_group(self, stream_id: int, topic_id: int, document: GroupDocument) -> None: ...
    async def remove_group(self, stream_id: int, topic_id: int, group_id: int) -> None: ...
    async def write_user(self, user_id: int, document: bytes) -> None: ...
    async def remove_user(self, user_id: int) -> None: ...
    async def write_token(self, token_id: int, document: bytes) -> None: ...
    async def remove_token(self, token_id: int) -> None: ...
    async def reserve_numbers(self, below: int) -> None: ...

    # ----------------------------------------------------------------------------------------------------- partitions

    @property
    def partitions(self) -> Mapping[PartitionId, Partition]: ...
    @property
    def partitions_count(self) -> int:
        """All partitions, including those that cannot be used."""
        ...

    def partition(self, stream_id: int, topic_id: int, partition_id: int) -> Partition | None:
        """None if there is none, or if it cannot be used."""
        ...

    def partitions_of(self, stream_id: int, topic_id: int) -> Iterator[Partition]:
        """The partitions that can be used."""
        ...

    async def purge_topic(self, stream_id: int, topic_id: int, epoch: int | None = None) -> None:
        """Deletes all messages, stored offsets and results of numbered sends. The epoch of the partitions is then this
        number, which none of them ever had."""
        ...

    async def delete_segments(self, place: PartitionId, count: int) -> int:
        """Deletes the oldest closed segments of a partition, fewer if some have to be kept. Returns how many."""
        ...

    async def retain(self, stream_id: int, topic_id: int, *, expiry_us: int | None, max_bytes: int | None) -> int:
        """Deletes the segments that exceed a topic's limits, by age and then by size. Returns how many."""
        ...
