"""Everything that the store refuses or cannot do, as exceptions whose text is one clear line.

    StorageError
    |-- InvalidBatch          the caller's bytes are not a batch; names the rule and the message
    |-- TopicFull             a topic that deletes nothing has no room for a batch
    |-- ArchiveBehind         too much waits for the archive, and there is a limit for that
    |-- DiskFull              the disk has less free space than is kept in reserve; nothing was written
    |-- Unsupported           what the engine in use cannot do
    |-- ClusterUnavailable    the brokers of the engine in use did not answer in time
    |-- InvalidOffset         a consumer offset that the partition does not have
    |-- TooManyOffsets        a new consumer's offset, when as many as are allowed have stored one
    |-- InvalidProducer       an id, an epoch or a sequence that no producer can have
    |-- ProducerFenced        a higher epoch of the producer has replaced this one
    |-- SequencePassed        a send that was never stored and comes after newer sends of its producer
    |-- SequenceForgotten     a send so old that it is unknown whether it was stored
    |-- UnknownProducer       a producer whose earlier sends are not known here
    |-- SequenceGap           a send that does not directly follow the one before it
    |-- DiskError
    |   |-- WriteFailed       the disk refused (full, I/O error); nothing was acknowledged; may be tried again
    |   `-- ReadFailed        the disk could not return what is stored
    |-- PartitionFailed       a sync failed: writes are refused until the partition is reopened and checked
    |-- PartitionClosed       deleted or shut down while the caller waited
    |-- StoreLocked           another process has the data folder open
    |-- UnsupportedFormat     the data folder was written by another format version
    |-- KeyMissing            what is stored is encrypted with a key that is not known, or encryption has no key
    |-- CatalogueError        a catalogue document is missing, unreadable or in the way
    |-- BackupFailed          a data folder could not be copied
    |-- SurveyFailed          a data folder could not be checked to its end
    |-- RepairRefused         a repair would mix two histories, or another tool has to finish first
    `-- ArchiveError
        |-- ArchiveUnavailable  the archive could not be reached or used; may be tried again
        |-- ArchiveConflict     something else writes to the archive, or has continued it
        |-- ArchiveDamaged      the archive's content contradicts its own records
        `-- RestoreRefused      there is no archive, or the folder to restore into is not empty

The type tells whose fault an error is. The numbers that clients see are in app/errors.py.
"""

from __future__ import annotations

import enum
import os


class StorageError(Exception):
    """The root of everything that the store raises on purpose."""


class BatchFault(enum.Enum):
    """The rule of FORMAT.md, section 2, that a batch breaks."""

    LENGTH = "length"
    """Lengths that do not match the bytes: shorter than a header, or frames that do not fill the batch exactly."""
    COUNT = "count"
    """No messages, more than the limit, or not as many as there are frames."""
    RESERVED = "reserved"
    """Reserved bytes that are not zero."""
    DELTA = "delta"
    """Offset deltas that are not 0, 1, 2 ..."""
    EMPTY_PAYLOAD = "empty payload"
    PAYLOAD_LIMIT = "payload limit"
    USER_HEADERS_LIMIT = "user headers limit"
    BATCH_LIMIT = "batch limit"
    TIME_SPAN = "time span"
    """Origin timestamps further apart than a delta can express."""
    FRAME_CHECKSUM = "message checksum"
    BATCH_CHECKSUM = "batch checksum"


class Unsupported(StorageError):
    """The engine in use cannot do it. The text is what, and becomes a sentence that names the engine."""

    ENGINE = "kafka"
    """The only engine that lacks something."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the engine in use (engine.kind = {self.ENGINE}) cannot do this: {what}")


class ClusterUnavailable(StorageError):
    """The brokers did not answer in time. What was asked of them may have happened, unless the text says otherwise."""


class InvalidBatch(StorageError):
    """A batch is refused as a whole. `message` is the index of the first invalid message, None if it is the header."""

    def __init__(self, fault: BatchFault, sentence: str, message: int | None = None) -> None:
        super().__init__(sentence if message is None else f"message {message}: {sentence}")
        self.fault = fault
        self.message = message


class TopicFull(StorageError):
    """The topic would exceed its size, and the store is configured to refuse messages rather than delete old ones."""

    def __init__(self, stream: str, topic: str, size_bytes: int, max_bytes: int, more_bytes: int) -> None:
        super().__init__(
            f"topic {topic!r} of stream {stream!r} is full: it has {size_bytes} bytes, its max_topic_size is "
            f"{max_bytes} bytes, and {more_bytes} more would exceed that (system.topic.delete_oldest_segments is false)"
        )


class ArchiveBehind(StorageError):
    """More bytes are only on this machine than the operator allows."""


class DiskFull(StorageError):
    """The disk has less free space than the reserve, which is kept for everything but messages."""


class InvalidOffset(StorageError):
    """A consumer offset beyond the last message that may be read."""


class TooManyOffsets(StorageError):
    """A partition has no place for the offset of another consumer or group."""

    def __init__(self, where: str, kind: str, limit: int) -> None:
        super().__init__(
            f"{where}: {limit} {kind}s have stored an offset here, the most that are allowed "
            f"(system.partition.consumer_offsets_max = {limit}); delete one that is no longer needed"
        )


class InvalidProducer(StorageError):
    """The id, epoch or sequence of a producer is out of range."""


class ProducerFenced(StorageError):
    """A newer incarnation of the producer has taken over its id."""

    def __init__(self, name: str, epoch: int, newest: int) -> None:
        super().__init__(f"producer {name}: epoch {epoch} has ended, epoch {newest} has taken its place")


class SequencePassed(StorageError):
    """Storing it now would break the producer's order, and reporting it as stored would be wrong."""

    def __init__(self, name: str, sequence: int, newest: int) -> None:
        super().__init__(
            f"producer {name}: sequence {sequence} is not stored and comes after {newest}; sequences must rise"
        )


class SequenceForgotten(StorageError):
    """Nothing is appended: most likely the messages were stored long ago."""

    def __init__(self, name: str, sequence: int, newest: int) -> None:
        super().__init__(
            f"producer {name}: sequence {sequence} is so far below {newest} that its result is no longer known; "
            "it was either stored then or skipped"
        )


class UnknownProducer(StorageError):
    """A producer that counts its messages has to begin with sequence 0, and no earlier send of it is known."""

    def __init__(self, name: str, sequence: int) -> None:
        super().__init__(f"producer {name} is not known here, and sequence {sequence} is not its first")


class SequenceGap(StorageError):
    """A producer that counts its messages has skipped some."""

    def __init__(self, name: str, sequence: int, expected: int) -> None:
        super().__init__(f"producer {name}: sequence {expected} comes next, not {sequence}")


class DiskError(StorageError):
    """The error of the operating system, and what it was about."""

    action = "used"

    def __init__(self, where: str, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        super().__init__(f"{where} cannot be {self.action}: {reason}")
        self.errno = error.errno


class WriteFailed(DiskError):
    """The operating system refused to write."""

    action = "written"


class ReadFailed(DiskError):
    """The operating system could not read what is stored."""

    action = "read"


class PartitionFailed(StorageError):
    """What was written may not be on the disk. Nothing more is accepted until that has been checked."""


class PartitionClosed(StorageError):
    """The partition was deleted or the store is stopping."""


class StoreLocked(StorageError):
    """Two processes must never write to one folder."""


class KeyMissing(StorageError):
    """A key is missing, or it is not the right one."""


class UnsupportedFormat(StorageError):
    """Newer or foreign data, which opening could damage."""


class CatalogueError(StorageError):
    """A document or folder of the catalogue is missing, unreadable or in the way."""


class BackupFailed(StorageError):
    """The folder for the copy is not empty, or the original changes too fast."""


class ArchiveError(StorageError):
    """The root of everything about the archive."""


class ArchiveUnavailable(ArchiveError):
    """The network, the service, the credentials or the disk; it may work later."""


class ArchiveConflict(ArchiveError):
    """Another server has written to the archive, so nothing may be written until that is understood."""


class ArchiveDamaged(ArchiveError):
    """An object is missing, or its content is not what was recorded."""


class SurveyFailed(StorageError):
    """A data folder could not be checked to its end."""


class RepairRefused(StorageError):
    """Repairing would mix two histories, or another tool has to finish first."""


class RestoreRefused(ArchiveError):
    """Restoring would mix two histories, or there is nothing to restore."""
