"""The sections about the data: where it lies, how safely it is written, how much of it is held in memory.

The docstring of a field is its sentence in the documentation; its annotation says how it is written.
"""

from __future__ import annotations

from typing import Annotated, Literal

from whippet.app.config import formats
from whippet.app.config.cores import CPU_ALLOCATION, Allocation
from whippet.app.config.formats import Secret, choice, integer, size
from whippet.app.config.listeners import Boolean, Bytes, Hidden, Microseconds, Name, Seconds
from whippet.app.config.section import Section
from whippet.storage.options import GIB, MIB

Folder = Annotated[str, formats.FOLDER]
Period = Annotated[float, formats.PERIOD]
SomeBytes = Annotated[int, size()]
IndexCache = Annotated[
    Literal["all", "open_segment", "none"],
    choice("all", "open_segment", "none", spellings={True: "all", "true": "all", False: "none", "false": "none"}),
]


class BackupCompatibility(Section, frozen=True):
    """Copies of files in the formats of other versions."""

    path: Name = "compatibility"
    """Folder below the backup folder; any other value is refused, because nothing is converted in place."""


class Backup(Section, frozen=True):
    """Copies of files that are made before the files are converted."""

    path: Name = "backup"
    """Folder below the data folder; any other value is refused, because no files are converted so far."""
    compatibility: BackupCompatibility = BackupCompatibility()


class State(Section, frozen=True):
    """How the catalogue (streams, topics, users, tokens) is written."""

    enforce_fsync: Boolean = True
    """Sync a catalogue document before the command that changed it is answered; on here (off in Iggy), because such
    commands are rare and a lost topic is worse than a lost message."""
    max_file_operation_retries: Annotated[int, integer(0)] = 1
    """Accepted for compatibility; has no effect, because a change that cannot be written is refused at once."""
    retry_delay: Period = 1.0
    """Duration of the pause before a write of messages that failed, on a full disk say, is tried again."""


class Runtime(Section, frozen=True):
    """Files of the running process."""

    path: Name = "runtime"
    """Folder below the data folder for the effective configuration of this start."""


class Logging(Section, frozen=True):
    """What the server says about itself."""

    path: Name = "logs"
    """Folder below the data folder for log files: `iggy-server.log`, as Iggy names it, and older ones with the time at
    which they ended."""
    level: Annotated[str, formats.LEVEL] = "info"
    """Least severe level that is logged; the variable RUST_LOG overrides it."""
    file_enabled: Boolean = True
    """Write to files too, not only to the terminal."""
    max_file_size: Bytes = 500_000_000
    """Size at which a log file is closed and the next one begun; 0: unlimited."""
    max_total_size: Bytes = 4_000_000_000
    """Size of all log files together above which the oldest are removed; 0: unlimited."""
    rotation_check_interval: Annotated[float, formats.SECONDS_OR_MORE] = 3_600.0
    """Period at which the ages and the total size of the files are looked at; the size of one is at every line."""
    retention: Annotated[float, formats.SECONDS_OR_MORE] = 604_800.0
    """Duration for which a log file grows at most, and for which it is kept after that."""
    sysinfo_print_interval: Seconds = 10.0
    """Period of the log line about memory, load and connections; 0: none."""


class Encryption(Section, frozen=True):
    """Encryption of what is on disk. It is not supported yet: a start that asks for it is refused."""

    enabled: Boolean = False
    """Encrypt messages and the catalogue; true is refused."""
    key: Hidden = Secret("")
    """The key: 32 bytes in base64; any is refused."""


class Compression(Section, frozen=True):
    """Compression of what is on disk. It is not supported yet: a start that asks for it is refused."""

    allow_override: Boolean = False
    """Let a topic have another algorithm than the default one; true is refused."""
    default_algorithm: Annotated[Literal["none", "gzip", "zstd"], choice("none", "gzip", "zstd")] = "none"
    """Algorithm for topics that name none; any but `none` is refused."""


class Stream(Section, frozen=True):
    """Where streams lie."""

    path: Folder = "streams"
    """Name of the folder of all streams, below the data folder."""


class Topic(Section, frozen=True):
    """Where topics lie, and what holds for those that leave it to the server."""

    path: Folder = "topics"
    """Name of the folder of a stream's topics."""
    max_size: Annotated[int | None, formats.TOPIC_SIZE] = None
    """Size that a topic may reach when it names none of its own."""
    message_expiry: Microseconds = None
    """Duration for which messages are kept when their topic names none; `none`: for ever."""
    delete_oldest_segments: Boolean = True
    """What happens to a topic that has reached its size: true deletes its oldest segments at the next run of the
    cleaner, false deletes nothing and refuses a send that would exceed the size (error 3009)."""


class Partition(Section, frozen=True):
    """Where partitions lie, and when their messages are written."""

    path: Folder = "partitions"
    """Name of the folder of a topic's partitions."""
    enforce_fsync: Boolean = False
    """Acknowledge messages only when they would survive a power cut; one sync serves all that wait for it."""
    validate_checksum: Boolean = False
    """Check every message of every segment at the start, not only the end of the last segment."""
    messages_required_to_save: Annotated[int, integer(1)] = 1
    """Number of messages of a partition that are gathered before they are written; 1 acknowledges only what has been
    handed to the operating system, and so survives kill -9; more than 1 acknowledges from memory."""
    size_of_messages_required_to_save: SomeBytes = MIB
    """Size of gathered messages at which they are written whatever their number."""
    consumer_offsets_max: Annotated[int, integer(1)] = 4_096
    """Number of consumers that may have an offset stored in one partition, and of groups once more, because each is a
    file; the first offset of one more is refused (error 3024), while those that are there can be changed."""


class Segment(Section, frozen=True):
    """The files that the messages of a partition are spread over."""

    size: Annotated[int, size(at_least=512, at_most=GIB, multiple=512)] = GIB
    """Size at which a segment is closed and the next one begun; a batch is never split."""
    archive_expired: Boolean = False
    """Archive an expired segment before it is deleted; true is refused, because there is no archive yet."""
    cache_indexes: IndexCache = "open_segment"
    """Which indexes of segments stay in memory: `all` (or true), those of open and lately used segments, or `none` (or
    false)."""
    server_confirmation: Annotated[Literal["wait", "no_wait"], choice("wait", "no_wait")] = "wait"
    """Whether messages are acknowledged after (`wait`) or before (`no_wait`) they are written."""
    cache_time_indexes: Boolean = True
    """Accepted for compatibility; has no effect, because times are part of the one index."""


class MessageDeduplication(Section, frozen=True):
    """Dropping messages whose id was seen shortly before in the same partition: what holds for topics that do not say
    it for themselves, with the options `message_deduplication`, `message_deduplication_max_entries` and
    `message_deduplication_expiry`."""

    enabled: Boolean = False
    """Drop them."""
    max_entries: Annotated[int, integer(0)] = 10_000
    """Number of ids that a partition remembers; 0: unlimited."""
    expiry: Seconds = 60.0
    """Duration for which an id is remembered; 0: until it is pushed out."""


class Recovery(Section, frozen=True):
    """What is done about damage at the start."""

    recreate_missing_state: Boolean = False
    """Make up catalogue documents and folders that are missing from what is there; nothing is ever deleted."""


class MemoryPool(Section, frozen=True):
    """Accepted for compatibility; Python's allocator has no pool to size, the limits of `system.limits` do its work."""

    enabled: Boolean = True
    """Has no effect."""
    size: Bytes = 4 * GIB
    """Size of the pool; has no effect."""
    bucket_capacity: Annotated[int, integer(0)] = 8_192
    """Number of buffers in a bucket of the pool; has no effect."""


class Sharding(Section, frozen=True):
    """The threads that own the files of the partitions."""

    cpu_allocation: Annotated[Allocation, CPU_ALLOCATION] = Allocation()
    """One thread for each core named here: all, a number of cores, a range without its end, or those of NUMA nodes;
    each thread is pinned to its core, but with two cores or fewer only if a range or nodes name them."""
    pin_cores: Boolean = True
    """Pin them; false lets the operating system place the threads, on a machine that is shared with other programs."""


class Protocol(Section, frozen=True):
    """The binary protocol of clients since 0.9, which say its version when they log in."""

    oldest: Annotated[int, formats.PROTOCOL_VERSION] = 11 << 10
    """Oldest version that is accepted; a client with an older one is told the range and cannot log in."""
    newest: Annotated[int, formats.PROTOCOL_VERSION] = 12 << 10 | 2
    """Newest version that is accepted. Versions that are newer than 0.12.2 are not known: a client that has one, and is
    let in by a higher number here, is served as if it had 0.12.2."""


class Limits(Section, frozen=True):
    """What bounds the memory and the files of the store. Iggy has no such keys."""

    tail_bytes: SomeBytes = 256 * MIB
    """Bytes of the recent batches, over all partitions, that stay in memory so that readers who keep up need no disk;
    above it the oldest leave memory, and reading them takes a disk read."""
    unflushed_bytes: SomeBytes = 256 * MIB
    """Bytes of what is accepted but not yet written, over all partitions, so that a slow disk cannot fill the memory;
    above it appends wait."""
    partition_unflushed_bytes: SomeBytes = 64 * MIB
    """Bytes of the same for one partition, so that a slow disk under one does not stop the others; above it appends to
    that partition wait."""
    batch_bytes: Annotated[int, size(at_most=GIB)] = 64 * MIB
    """Bytes of one batch with its header, because a batch is held in memory whole; a larger one is refused."""
    batch_messages: Annotated[int, integer(1)] = 1_000_000
    """Number of messages in one batch, because checking them takes time in which nobody else is served; a larger one is
    refused."""
    payload_bytes: Annotated[int, size(at_most=GIB)] = 64_000_000
    """Bytes of the payload of one message, the most that clients accept; a larger one is refused (error 4022)."""
    user_headers_bytes: Annotated[int, size(at_most=GIB)] = 100_000
    """Bytes of the encoded user headers of one message, the most that clients accept; larger ones are refused (error
    4017)."""
    read_bytes: SomeBytes = 128 * MIB
    """Bytes that one poll returns at most, so that a greedy reader cannot fill the memory; the answer ends there, but
    with at least one message."""
    streams: Annotated[int, integer(1)] = 32_768
    """Number of streams, because each takes memory, files, and time at the start; one more is refused (error 1020)."""
    topics_per_stream: Annotated[int, integer(1)] = 4_096
    """Number of topics of one stream; one more is refused (error 2021)."""
    partitions: Annotated[int, integer(1)] = 32_768
    """Number of partitions of all topics together, because each takes memory, files, and time at the start; requests
    for more are refused (error 2015). More that are there already are served."""
    partitions_per_topic: Annotated[int, integer(1)] = 10_000
    """Number of partitions of one topic; requests for more are refused (error 2015)."""
    consumer_groups_per_topic: Annotated[int, integer(1)] = 4_096
    """Number of consumer groups of one topic, because everybody who may read the topic may make one, and each is a
    file; one more is refused (error 2, over HTTP with the name `too_many_consumer_groups`)."""
    open_files: Annotated[int, integer(16)] = 4_096
    """Number of segment files kept open, so that the process stays below its limit of descriptors; above it the one
    unused for longest is closed and opened again when needed."""
    frame_bytes: Annotated[int, size(at_least=65_536, at_most=GIB)] = 128 * MIB
    """Bytes of one request on a connection, because a request is held in memory whole; a larger one is read past and
    refused (error 3)."""
    frames_bytes: SomeBytes = 512 * MIB
    """Bytes of all requests that are being received or carried out, over all connections, so that many large ones at
    once cannot fill the memory; one user may have as much as is left free for all others, and beyond that connections
    are not read from until there is room."""
    unauthenticated_bytes: SomeBytes = 16 * MIB
    """The same for requests of clients that have not logged in, over all transports, so that they take nothing from
    those who have; one address may have as much as is left free for all others."""
    responses_bytes: SomeBytes = 256 * MIB
    """Bytes of all responses to polls that are being read or that their clients have not taken yet, over all
    connections, so that clients that do not read cannot fill the memory; one user may have as much as is left free for
    all others. When room is scarce polls return less or wait, and a client that takes nothing while others wait is
    closed."""
    connections: Annotated[int, integer(1)] = 16_384
    """Number of connections at the same time, over TCP, and once more over WebSocket, so that descriptors are left for
    files; above it new ones are closed. Where the operating system allows too few open files for it, for
    `http.limits.connections` and for `open_files`, all three are lowered at the start, and the log says so."""
    silence_before_login: Period = 60.0
    """Duration for which a connection that has not logged in may send no request; then it is closed."""
    frame_time: Period = 30.0
    """Duration in which a request that has begun must be there, with a second more for each MiB of it; then the
    connection is closed."""
    session_answers: Annotated[int, integer(1)] = 16
    """Number of the last answers to a 0.9 client that are remembered, so that a request that comes again is not carried
    out again; an older one that comes again is refused (error 59)."""
    session_memory: Period = 60.0
    """Duration for which they are remembered after its connection has ended; then it is a stranger. The session of a
    client of a later version waits for so long, too, with its group memberships, and the client goes on with it."""
    waiting_polls: Annotated[int, integer(1)] = 65_536
    """Number of partitions that clients on connections wait for at the same time, each poll or fetch that waits
    counting its own; one more is refused (error 90)."""
    waiting_polls_per_user: Annotated[int, integer(1)] = 32_768
    """The same for one user, so that others can wait, too; one more is refused (error 90)."""
    producers: Annotated[int, integer(1)] = 1_000
    """Number of producers that number their sends, in each partition, whose answers are remembered, because an answer
    takes some 400 bytes of memory; above it those of the one that has not sent for longest are forgotten, and what it
    sends again is stored again."""
    producer_answers: Annotated[int, integer(1)] = 16
    """Number of the newest answers to each of them that are remembered, so that a send that comes again is not stored
    again; an older one that comes again is refused (error 59)."""
    stop_time: Period = 30.0
    """Duration in which the requests in hand may finish when the gateway is told to stop; then they are cut off."""
    deduplication_bytes: SomeBytes = GIB
    """Bytes of the message ids that are remembered to drop repetitions, over all partitions, some 30 for each; above it
    the oldest are forgotten sooner than `system.message_deduplication` or a topic says."""
    index_cache_bytes: SomeBytes = 64 * MIB
    """Bytes of the cached indexes of closed segments, so that many segments do not fill the memory; above it the ones
    unused for longest leave and are read again when needed."""


class System(Section, frozen=True):
    """The data folder and everything below it."""

    path: Name = "local_data"
    """The data folder, relative to the working directory."""
    backup: Backup = Backup()
    state: State = State()
    runtime: Runtime = Runtime()
    logging: Logging = Logging()
    encryption: Encryption = Encryption()
    compression: Compression = Compression()
    stream: Stream = Stream()
    topic: Topic = Topic()
    partition: Partition = Partition()
    segment: Segment = Segment()
    message_deduplication: MessageDeduplication = MessageDeduplication()
    recovery: Recovery = Recovery()
    memory_pool: MemoryPool = MemoryPool()
    sharding: Sharding = Sharding()
    protocol: Protocol = Protocol()
    limits: Limits = Limits()
