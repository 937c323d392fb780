"""Everything that the store refuses or cannot do, as types whose text is one clear line.

    StorageError
    |-- InvalidBatch          the caller's bytes are not a batch; says which rule and which message
    |-- TopicFull             a topic that deletes nothing has no room for a batch
    |-- InvalidOffset         a consumer offset that the partition does not have
    |-- TooManyOffsets        a new reader's offset, where as many readers as are allowed have stored one
    |-- InvalidProducer       an id, an epoch or a sequence that no producer can have
    |-- ProducerFenced        a higher epoch of the producer has taken its place
    |-- SequencePassed        a send that was never stored and comes after newer ones of its producer
    |-- SequenceForgotten     a send so old that whether it was stored is not remembered
    |-- DiskError
    |   |-- WriteFailed       the disk refused (full, I/O error); nothing was acknowledged; may be tried again
    |   `-- ReadFailed        the disk could not give what is on it
    |-- PartitionFailed       a sync failed: writes are refused until the partition was re-opened and checked
    |-- PartitionClosed       deleted or shut down while the caller waited
    |-- StoreLocked           another process has the data folder open
    |-- UnsupportedFormat     the data folder was written by another format version
    `-- CatalogueError        a catalogue document is missing, unreadable or in the way

Whose fault an error is shows in its type; the numbers that clients see are in app/errors.py.
"""

from __future__ import annotations

import enum
import os


class StorageError(Exception):
    """The root: whatever the store raises on purpose."""


class BatchFault(enum.Enum):
    """The rule of FORMAT.md, section 2, that a batch breaks."""

    LENGTH = "length"
    """Lengths that do not fit the bytes: shorter than a header, frames that do not tile the batch."""
    COUNT = "count"
    """No message, more than the limit, or another number than there are frames."""
    RESERVED = "reserved"
    """Reserved bytes that are not zero."""
    DELTA = "delta"
    """Offset deltas that are not 0, 1, 2 ..."""
    EMPTY_PAYLOAD = "empty payload"
    PAYLOAD_LIMIT = "payload limit"
    USER_HEADERS_LIMIT = "user headers limit"
    BATCH_LIMIT = "batch limit"
    TIME_SPAN = "time span"
    """Origin timestamps further apart than a delta can say."""
    FRAME_CHECKSUM = "message checksum"
    BATCH_CHECKSUM = "batch checksum"


class InvalidBatch(StorageError):
    """A batch is refused whole; `message` is the index of the first wrong message, None when it is the header."""

    def __init__(self, fault: BatchFault, sentence: str, message: int | None = None) -> None:
        super().__init__(sentence if message is None else f"message {message}: {sentence}")
        self.fault = fault
        self.message = message


class TopicFull(StorageError):
    """The topic would grow beyond its size, and the store is told to refuse messages rather than delete old ones."""

    def __init__(self, stream: str, topic: str, size_bytes: int, max_bytes: int, more_bytes: int) -> None:
        super().__init__(
            f"topic {topic!r} of stream {stream!r} is full: it has {size_bytes} bytes, its max_topic_size is "
            f"{max_bytes} bytes, and {more_bytes} more would exceed that (system.topic.delete_oldest_segments is false)"
        )


class InvalidOffset(StorageError):
    """A consumer offset beyond the last message that may be read."""


class TooManyOffsets(StorageError):
    """A partition has no place for the offset of another consumer or group."""

    def __init__(self, where: str, kind: str, limit: int) -> None:
        super().__init__(
            f"{where}: {limit} {kind}s have stored an offset here, as many as are allowed "
            f"(system.partition.consumer_offsets_max = {limit}); delete one that is not needed any more"
        )


class InvalidProducer(StorageError):
    """What is said of who sends is outside of its limits."""


class ProducerFenced(StorageError):
    """Somebody who has started anew under the same id is the producer now."""

    def __init__(self, name: str, epoch: int, newest: int) -> None:
        super().__init__(f"producer {name}: epoch {epoch} has ended, epoch {newest} has taken its place")


class SequencePassed(StorageError):
    """Storing it now would break the producer's order, and saying that it is stored would be wrong."""

    def __init__(self, name: str, sequence: int, newest: int) -> None:
        super().__init__(
            f"producer {name}: sequence {sequence} is not stored and comes after {newest}; sequences must rise"
        )


class SequenceForgotten(StorageError):
    """Nothing is appended: most likely it was, long ago."""

    def __init__(self, name: str, sequence: int, newest: int) -> None:
        super().__init__(
            f"producer {name}: sequence {sequence} is so far behind {newest} that its answer is not remembered; "
            "it was stored then, or left out"
        )


class UnknownProducer(StorageError):
    """A producer whose sends follow each other begins with sequence 0; nothing is known of an earlier one."""

    def __init__(self, name: str, sequence: int) -> None:
        super().__init__(f"producer {name} is not known here, and sequence {sequence} is not its first")


class SequenceGap(StorageError):
    """What should come before it is not stored."""

    def __init__(self, name: str, sequence: int, expected: int) -> None:
        super().__init__(f"producer {name}: sequence {expected} comes next, not {sequence}")


class DiskError(StorageError):
    """What the operating system said, and about what."""

    act = "used"

    def __init__(self, where: str, error: OSError) -> None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        super().__init__(f"{where} cannot be {self.act}: {reason}")
        self.errno = error.errno


class WriteFailed(DiskError):
    """The operating system refused to write."""

    act = "written"


class ReadFailed(DiskError):
    """The operating system could not read what is there."""

    act = "read"


class PartitionFailed(StorageError):
    """What was written may not be on the disk, so nothing more is accepted until that is known."""


class PartitionClosed(StorageError):
    """The partition was deleted or the store is stopping."""


class StoreLocked(StorageError):
    """Two processes must never write one folder."""


class UnsupportedFormat(StorageError):
    """Newer or foreign data: opening it could only harm it."""


class CatalogueError(StorageError):
    """A document or folder of the catalogue is not as it must be."""
