"""The sections about the data: where it is stored, how safely it is written, how much of it is held in memory.

The docstring of a field is its sentence in the documentation; its annotation defines how its values are written.
"""

from __future__ import annotations

from typing import Annotated, Literal

from whippet.app.config import formats
from whippet.app.config.cores import CPU_ALLOCATION, Allocation
from whippet.app.config.formats import Secret, choice, integer, size
from whippet.app.config.listeners import Boolean, Bytes, Hidden, Microseconds, Name, OptionalBytes, Seconds
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
    """Folder in the backup folder; any other value is refused, because no files are converted."""


class Backup(Section, frozen=True):
    """Copies of files, made before the files are converted."""

    path: Name = "backup"
    """Folder in the data folder; any other value is refused, because no files are converted."""
    compatibility: BackupCompatibility = BackupCompatibility()


class State(Section, frozen=True):
    """How the catalogue (streams, topics, users, tokens) is written."""

    enforce_fsync: Boolean = True
    """Sync a document of the catalogue before responding to the command that changed it; on here (off in Iggy), because
    such commands are rare and a lost topic is worse than a lost message."""
    max_file_operation_retries: Annotated[int, integer(0)] = 1
    """Accepted for compatibility; has no effect, because a change that cannot be written is refused at once."""
    retry_delay: Period = 1.0
    """Pause before a failed write of messages, for instance on a full disk, is tried again."""


class Runtime(Section, frozen=True):
    """Files of the running process."""

    path: Name = "runtime"
    """Folder in the data folder for the effective configuration of this start."""


class Logging(Section, frozen=True):
    """The server's log."""

    path: Name = "logs"
    """Folder in the data folder for log files: `iggy-server.log`, as Iggy names it, and older ones with the time at
    which they ended."""
    level: Annotated[str, formats.LEVEL] = "info"
    """Lowest severity that is logged; the variable RUST_LOG overrides it."""
    format: Annotated[Literal["auto", "text", "json"], choice("auto", "text", "json")] = "auto"
    """Format of a line: `text` for people, `json` for programs, or `auto`: text on a terminal, otherwise JSON. Iggy has
    no such key."""
    file_enabled: Boolean = True
    """Write to files, too, not only to the terminal."""
    max_file_size: Bytes = 500_000_000
    """Size at which a log file is closed and the next one started; 0: unlimited."""
    max_total_size: Bytes = 4_000_000_000
    """Total size of all log files above which the oldest are removed; 0: unlimited."""
    rotation_check_interval: Annotated[float, formats.SECONDS_OR_MORE] = 3_600.0
    """Period of the check of the files' ages and total size; the size of one file is checked at every line."""
    retention: Annotated[float, formats.SECONDS_OR_MORE] = 604_800.0
    """Longest time for which a log file grows, and for which it is kept afterwards."""
    sysinfo_print_interval: Seconds = 10.0
    """Period of the log line about memory, load and connections; 0: none."""


class Encryption(Section, frozen=True):
    """Encryption at rest with AES-256-GCM: of messages, stored offsets, users and tokens, on the disk and in the
    archive. Names, times and sizes stay readable. Clients notice nothing."""

    enabled: Boolean = False
    """Encrypt what is written from now on. What is already there stays as it is, except users and tokens; false still
    reads what is encrypted, with the keys below."""
    key: Hidden = Secret("")
    """A key: 32 bytes in base64."""
    key_file: Annotated[str, formats.TEXT] = ""
    """File with a key in each line, for more than one: the last one is in use, the others read older data. If `key` is
    set, too, it only reads. `whippet keys` makes such a file and adds keys to it."""


class Compression(Section, frozen=True):
    """Compression at rest: each batch is compressed before it is written, if that saves anything. Clients get messages
    as they were sent."""

    allow_override: Boolean = True
    """Let a topic use another algorithm than the default; false refuses to create or change such a topic, and
    compresses what is appended to existing topics with the default, whatever they name. Iggy's default is false."""
    default_algorithm: Annotated[Literal["none", "gzip", "zstd"], choice("none", "gzip", "zstd")] = "none"
    """Algorithm for topics that name none. Of the two, zstd is several times as fast."""


class Disk(Section, frozen=True):
    """The disk of the data folder."""

    reserve: OptionalBytes = None
    """Free space that messages may not use, so that on a full disk everything else still works: below it, local copies
    of what is in the archive are deleted, and if that is not enough, messages are refused (error 4006, over HTTP 507
    `disk_full`). Empty: 128 MiB, or a twentieth of a smaller disk; 0: messages may use all of it."""


class Stream(Section, frozen=True):
    """The folder of streams."""

    path: Folder = "streams"
    """Name of the folder of all streams, in the data folder."""


class Topic(Section, frozen=True):
    """The folder of topics, and the defaults for topics that leave a setting to the server."""

    path: Folder = "topics"
    """Name of the folder of a stream's topics."""
    max_size: Annotated[int | None, formats.TOPIC_SIZE] = None
    """Maximum size of a topic that names none."""
    message_expiry: Microseconds = None
    """How long messages are kept if their topic does not set it; `none`: forever."""
    delete_oldest_segments: Boolean = True
    """What happens to a topic that has reached its size: true deletes its oldest segments at the next run of the
    cleaner, false deletes nothing and refuses a send that would exceed the size (error 3009)."""


class Partition(Section, frozen=True):
    """The folder of partitions, and when their messages are written."""

    path: Folder = "partitions"
    """Name of the folder of a topic's partitions."""
    enforce_fsync: Boolean = False
    """Acknowledge messages only when they would survive a power failure; one sync serves all requests that wait for
    it."""
    validate_checksum: Boolean = False
    """Check every message of every segment at the start, not only the end of the last segment."""
    messages_required_to_save: Annotated[int, integer(1)] = 1
    """Number of messages of a partition that gather before they are written. 1 acknowledges only what was handed to the
    operating system, which survives kill -9; more than 1 acknowledges from memory."""
    size_of_messages_required_to_save: SomeBytes = MIB
    """Size of gathered messages at which they are written, whatever their number."""
    consumer_offsets_max: Annotated[int, integer(1)] = 4_096
    """Number of consumers with a stored offset in one partition, and likewise of groups, because each is a file; the
    first offset of one more is refused (error 3024), while existing ones can be changed."""


class Segment(Section, frozen=True):
    """The files that hold the messages of a partition."""

    size: Annotated[int, size(at_least=512, at_most=GIB, multiple=512)] = GIB
    """Size at which a segment is closed and the next one started; a batch is never split."""
    archive_expired: Boolean = False
    """Delete expired segments, and those of topics above their size, only once they are in the archive; needs
    `data_maintenance.archiver.enabled`."""
    cache_indexes: IndexCache = "open_segment"
    """Which indexes of segments stay in memory: `all` (or true), those of open and recently used segments
    (`open_segment`), or `none` (or false)."""
    server_confirmation: Annotated[Literal["wait", "no_wait"], choice("wait", "no_wait")] = "wait"
    """Whether messages are acknowledged after (`wait`) or before (`no_wait`) they are written."""
    cache_time_indexes: Boolean = True
    """Accepted for compatibility; has no effect, because times are part of the one index."""


class MessageDeduplication(Section, frozen=True):
    """Dropping messages whose id was sent to the same partition recently: the defaults for topics that do not set the
    options `message_deduplication`, `message_deduplication_max_entries` and `message_deduplication_expiry`."""

    enabled: Boolean = False
    """Drop such messages."""
    max_entries: Annotated[int, integer(0)] = 10_000
    """Number of ids that a partition remembers; 0: unlimited."""
    expiry: Seconds = 60.0
    """How long an id is remembered; 0: until newer ids displace it."""


class Recovery(Section, frozen=True):
    """The treatment of damage at the start."""

    recreate_missing_state: Boolean = False
    """Recreate missing documents and folders of the catalogue from the data that exists; nothing is ever deleted."""


class MemoryPool(Section, frozen=True):
    """Accepted for compatibility: Python's allocator has no pool of a given size; `system.limits` bounds the memory."""

    enabled: Boolean = True
    """Has no effect."""
    size: Bytes = 4 * GIB
    """Size of the pool; has no effect."""
    bucket_capacity: Annotated[int, integer(0)] = 8_192
    """Number of buffers in a bucket of the pool; has no effect."""


class Sharding(Section, frozen=True):
    """The threads that own the files of the partitions."""

    cpu_allocation: Annotated[Allocation, CPU_ALLOCATION] = Allocation()
    """One thread for each core named here: all, a number of cores, a half-open range, or those of NUMA nodes. Each
    thread is pinned to its core; with two cores or fewer, only if a range or nodes name them."""
    pin_cores: Boolean = True
    """Pin the threads; false lets the operating system place them, for a machine that is shared with other programs."""


class Protocol(Section, frozen=True):
    """The binary protocol of clients since 0.9, which send its version when they log in."""

    oldest: Annotated[int, formats.PROTOCOL_VERSION] = 11 << 10
    """Oldest version that is accepted; a client with an older one gets the accepted range and cannot log in."""
    newest: Annotated[int, formats.PROTOCOL_VERSION] = 12 << 10 | 2
    """Newest version that is accepted. Versions above 0.12.2 are unknown: if a higher number here admits a client with
    one, it is served as if it had 0.12.2."""


class Limits(Section, frozen=True):
    """Limits of the memory and the files of the server. Iggy has no such keys."""

    tail_bytes: SomeBytes = 256 * MIB
    """Bytes of recent batches, over all partitions, that stay in memory so that readers that keep up need no disk;
    above it, the oldest leave memory, and reading them takes a disk read."""
    unflushed_bytes: SomeBytes = 256 * MIB
    """Bytes accepted but not yet written, over all partitions, so that a slow disk cannot fill the memory; above it,
    appends wait."""
    partition_unflushed_bytes: SomeBytes = 64 * MIB
    """The same for one partition, so that one slow disk does not stop the others; above it, appends to that partition
    wait."""
    batch_bytes: Annotated[int, size(at_most=GIB)] = 64 * MIB
    """Bytes of one batch with its header, because a batch is held in memory whole; a larger one is refused."""
    batch_messages: Annotated[int, integer(1)] = 1_000_000
    """Number of messages in one batch, because nothing else is served while they are validated; a larger batch is
    refused."""
    payload_bytes: Annotated[int, size(at_most=GIB)] = 64_000_000
    """Bytes of the payload of one message, the most that clients accept; a larger one is refused (error 4022)."""
    user_headers_bytes: Annotated[int, size(at_most=GIB)] = 100_000
    """Bytes of the encoded user headers of one message, the most that clients accept; larger ones are refused (error
    4017)."""
    loop_append_bytes: Annotated[int, size(at_least=0)] = 64 << 10
    """Bytes that the event loop writes by itself at most, with one call, when the shard has nothing to do for the
    partition: handing a few bytes to the operating system is faster than a hop to the shard's thread. The shard writes
    larger batches, and with 0 every batch, for disks that often take more than a millisecond."""
    read_bytes: SomeBytes = 128 * MIB
    """Bytes that one poll returns at most, so that a greedy reader cannot fill the memory; the response ends there, but
    has at least one message. Over TCP and WebSocket, clients since 0.9 get responses of more than 8 MiB that are read
    while they are sent, so they take a few megabytes however large this is."""
    streams: Annotated[int, integer(1)] = 32_768
    """Number of streams, because each takes memory, files, and time at the start; one more is refused (error 1020)."""
    topics_per_stream: Annotated[int, integer(1)] = 4_096
    """Number of topics of one stream; one more is refused (error 2021)."""
    partitions: Annotated[int, integer(1)] = 32_768
    """Number of partitions of all topics together, because each takes memory, files, and time at the start; requests
    for more are refused (error 2015). More that already exist are served."""
    partitions_per_topic: Annotated[int, integer(1)] = 10_000
    """Number of partitions of one topic; requests for more are refused (error 2015)."""
    consumer_groups_per_topic: Annotated[int, integer(1)] = 4_096
    """Number of consumer groups of one topic, because any user who may read the topic may create one, and each is a
    file; one more is refused (error 2, over HTTP with the name `too_many_consumer_groups`)."""
    open_files: Annotated[int, integer(16)] = 4_096
    """Number of segment files kept open, so that the process stays below its limit of descriptors; above it, the least
    recently used one is closed, and opened again when needed."""
    frame_bytes: Annotated[int, size(at_least=65_536, at_most=GIB)] = 128 * MIB
    """Bytes of one request on a connection, because a request is held in memory whole; a larger one is skipped and
    refused (error 3)."""
    frames_bytes: SomeBytes = 512 * MIB
    """Bytes of all requests that are being received or executed, over all connections, so that many large ones at once
    cannot fill the memory. One user may hold as much as is left free for all others; beyond that, connections are not
    read from until memory is released."""
    unauthenticated_bytes: SomeBytes = 16 * MIB
    """The same for requests of clients that have not logged in, over all transports, so that they take nothing from
    those that have. One address may hold as much as is left free for all others."""
    responses_bytes: SomeBytes = 256 * MIB
    """Bytes of all responses to polls that are being read or that their clients have not taken yet, over all
    connections, so that clients that do not read cannot fill the memory. One user may hold as much as is left free for
    all others. When memory is scarce, polls return less or wait, and a client that takes nothing while others wait is
    closed."""
    connections: Annotated[int, integer(1)] = 16_384
    """Number of concurrent connections over TCP, and likewise over WebSocket, so that descriptors are left for files;
    above it, new ones are closed. If the operating system allows too few open files for it, for
    `http.limits.connections` and for `open_files`, all three are lowered at the start, and the log reports it."""
    silence_before_login: Period = 60.0
    """How long a connection that has not logged in may send no request; then it is closed."""
    frame_time: Period = 30.0
    """Time in which a request must arrive completely, plus one second per MiB; then the connection is closed."""
    session_answers: Annotated[int, integer(1)] = 16
    """Number of the last responses to a 0.9 client that are remembered, so that a repeated request is not executed
    again; an older one that is repeated is refused (error 59)."""
    session_memory: Period = 60.0
    """How long they are remembered after the connection has ended; then the client is unknown. The session of a client
    of a later version, with its group memberships, waits as long for the client to resume it."""
    waiting_polls: Annotated[int, integer(1)] = 65_536
    """Number of partitions that clients on connections wait for at the same time, counted once per poll or fetch; one
    more is refused (error 90)."""
    waiting_polls_per_user: Annotated[int, integer(1)] = 32_768
    """The same for one user, so that others can wait, too; one more is refused (error 90)."""
    producers: Annotated[int, integer(1)] = 1_000
    """Number of producers per partition that number their sends and whose responses are remembered, because a response
    takes some 400 bytes of memory; above it, those of the least recently active producer are forgotten, and a send that
    it repeats is stored again."""
    producer_answers: Annotated[int, integer(1)] = 16
    """Number of the latest responses to each of them that are remembered, so that a repeated send is not stored again;
    an older one that is repeated is refused (error 59)."""
    stop_time: Period = 30.0
    """Time in which the requests in progress may finish when the gateway stops; then they are aborted."""
    deduplication_bytes: SomeBytes = GIB
    """Bytes of the message ids that are remembered to drop repetitions, over all partitions, some 30 for each; above
    it, the oldest are forgotten earlier than `system.message_deduplication` or a topic sets."""
    index_cache_bytes: SomeBytes = 64 * MIB
    """Bytes of the cached indexes of closed segments, so that many segments do not fill the memory; above it, the least
    recently used ones leave memory and are read again when needed."""


class System(Section, frozen=True):
    """The data folder and everything in it."""

    path: Name = "local_data"
    """The data folder, relative to the working directory."""
    backup: Backup = Backup()
    state: State = State()
    runtime: Runtime = Runtime()
    logging: Logging = Logging()
    encryption: Encryption = Encryption()
    compression: Compression = Compression()
    disk: Disk = Disk()
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
