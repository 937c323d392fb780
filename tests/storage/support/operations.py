"""A log on a simulated disk, and the operations that it caused there, for tests of their order."""

from __future__ import annotations

import errno
from collections.abc import Callable

from tests.storage.support.disk import SimulatedDisk
from tests.storage.support.segments import START_TIME, Opened, open_log, stamped
from whippet.storage import batch as batches
from whippet.storage.entry import Entry
from whippet.storage.log import Log

FOLDER = "/d"
BATCH_BYTES = len(stamped([100], 0))


def traced_disk() -> SimulatedDisk:
    """An empty disk with a folder for a log."""
    made = SimulatedDisk()
    made.make_folder(FOLDER)
    made.trace = []
    return made


def entry(offset: int, time: int = 0) -> Entry:
    """A batch of one message, which has `BATCH_BYTES`."""
    batch = bytearray(stamped([100], offset, timestamp=START_TIME + time - offset))
    return Entry(batch, offset, offset + 1, START_TIME + time, batches.frame_positions(batch))


def write(log: Log, *times: int) -> OSError | None:
    """Writes a batch of one message for each time, all together."""
    start = log.next_offset
    return log.write([entry(start + i, time) for i, time in enumerate(times)], [], sync=False)


def done(disk: SimulatedDisk, *acts: str) -> list[tuple[str, str]]:
    """The operations of these kinds since the last call: each with the name of its file."""
    assert disk.trace is not None
    named = [(one.act, one.path.rpartition("/")[2]) for one in disk.trace if one.act in acts]
    disk.trace.clear()
    return named


def log_name(start: int) -> str:
    return f"{start:020}.log"


def index_name(start: int) -> str:
    return f"{start:020}.index"


def starts(log: Log) -> list[int]:
    return [segment.start_offset for segment in log.segments]


def refusing(act: str, ending: str) -> Callable[[str, str], int | None]:
    return lambda asked, path: errno.EIO if asked == act and path.endswith(ending) else None


def filled(disk: SimulatedDisk, count: int, segment_bytes: int = 1 << 20) -> Opened:
    """A log that was written, closed and opened again."""
    before = open_log(FOLDER, files=disk, segment_bytes=segment_bytes)
    for _ in range(count):
        assert write(before.log, 0) is None
    before.close()
    found = open_log(FOLDER, files=disk, segment_bytes=segment_bytes)
    assert found.damage == []
    done(disk)
    return found
