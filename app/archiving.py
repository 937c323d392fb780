"""Starts the archiver, and restores data folders from the archive: for `whippet serve`, `whippet serve --from-archive`
and `whippet restore`.

The modules of the archive are loaded when they are needed: most servers have none, and object storage takes memory.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from whippet.storage import takeover
from whippet.storage.errors import UnsupportedFormat
from whippet.storage.files import Files
from whippet.storage.layout import FORMAT_FILE, Layout
from whippet.storage.options import MIB, ArchiveOptions, StoreOptions
from whippet.storage.repair_source import Source
from whippet.storage.store import Store, now_us
from whippet.storage.survey import Surveyed

if TYPE_CHECKING:
    from whippet.storage.archive.archiver import Archiver
    from whippet.storage.archive.restoring import Progress, Restored

_log = logging.getLogger(__name__)

PROGRESS_S = 5.0
AT_STOP_S = 20.0
"""How long a stop waits for the archive. What is not archived then is archived after the next start."""


@contextlib.asynccontextmanager
async def running(store: Store, options: ArchiveOptions | None, files: Files) -> AsyncIterator[Archiver | None]:
    """Archives while the server runs, and what is left at its end. Raises ArchiveConflict if the archive belongs to
    another server."""
    if options is None:
        yield None
        return
    archiver: Archiver = importlib.import_module("whippet.storage.archive.archiver").Archiver(store, options, files)
    await archiver.start()
    try:
        yield archiver
    finally:
        _log.info("archiving what is new")
        await archiver.stop(seconds=AT_STOP_S)


def restore_if_empty(options: StoreOptions) -> None:
    """Restores an empty data folder except for the messages, which are read from the archive, and takes the archive
    over. A folder that is complete stays as it is, so that a
    server may be restarted with the same command. It blocks."""
    files = Files()
    if files.exists(Layout(options).below(FORMAT_FILE)):
        _log.info("--from-archive: %s is a data folder already, so nothing is restored", options.path)
        return
    restored = restore(options, files, takes_over=True, downloads=False, show=lambda line: _log.info("%s", line))
    _log.log(logging.INFO if restored.complete else logging.WARNING, "%s", sentence(restored))


def restore(
    options: StoreOptions,
    files: Files,
    *,
    to: int | None = None,
    takes_over: bool = False,
    downloads: bool = True,
    show: Callable[[str], None],
) -> Restored:
    """`show` gets a line about the progress now and then. It blocks."""
    objects = importlib.import_module("whippet.storage.archive.objects").open_objects(options.archive, files)
    restoring = importlib.import_module("whippet.storage.archive.restoring").Restoring
    shown_at = time.monotonic()

    def on_progress(progress: Progress) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at > PROGRESS_S:
            shown_at = time.monotonic()
            size = progress.size_bytes / MIB
            show(f"restored {progress.partitions} of {progress.total} partitions, {size:.0f} MiB")

    show(f"restoring {options.path} from {objects.location}")
    run = restoring(
        objects, options, files, now_us, to=to, take_over=takes_over, downloads=downloads, on_progress=on_progress
    )
    restored: Restored = run.run()
    return restored


def is_archive(path: str) -> bool:
    """Whether a folder is an archive, not a data folder."""
    files = Files()
    return files.exists(f"{path}/archive.json") and not files.exists(f"{path}/{FORMAT_FILE}")


def awaited(options: StoreOptions) -> int:
    """Returns how many partitions of a data folder are still only in the archive from which it was begun."""
    try:
        return len(takeover.missing(Files(), Layout(options)))
    except UnsupportedFormat:
        # That is damage, which the check reports.
        return 0


def survey(options: ArchiveOptions) -> Iterator[Surveyed]:
    """Checks everything in an archive. It blocks."""
    objects = importlib.import_module("whippet.storage.archive.objects").open_objects(options, Files())
    found: Iterator[Surveyed] = importlib.import_module("whippet.storage.archive.checking").survey(objects)
    return found


def source_of(options: ArchiveOptions) -> Source:
    """Opens the archive that the options name, for a repair. It blocks."""
    objects = importlib.import_module("whippet.storage.archive.objects").open_objects(options, Files())
    source: Source = importlib.import_module("whippet.storage.archive.repairing").ArchiveSource(objects, now_us)
    return source


def sentences(restored: Restored, to: int) -> list[str]:
    """Returns sentences about what is newer than the time as of which a state was restored."""
    found = [
        f"the messages are those received until {_shown(to)}; streams, topics and groups that were created later are "
        "left out",
        f"names, options, users and tokens are those of {_shown(restored.catalogue_at)}, the newest ones; what was "
        "removed before then is not there",
    ]
    if restored.offsets_lowered:
        found.append(f"{restored.offsets_lowered} stored offsets were later, and are now those of the last message")
    if restored.offsets_unknown:
        found.append(
            f"{restored.offsets_unknown} stored offsets are the newest ones: they are encrypted with a key that is not "
            "configured here"
        )
    return found


def _shown(time_us: int) -> str:
    return f"{datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def sentence(restored: Restored) -> str:
    """What was restored, and what may be lost."""
    size = f"{restored.size_bytes / MIB:.1f} MiB"
    done = f"restored {restored.messages:,} messages in {restored.partitions} partitions, {size}"
    if restored.complete:
        return f"{done}; the server had stopped and archived everything, so nothing is missing"
    ago = max(now_us() - restored.archived_at, 0) / 1e6
    return (
        f"{done}; the archive was complete at {_shown(restored.archived_at)}, {ago:.0f} seconds ago: what its server "
        "received after that may be missing, and the offsets of that are left out"
    )
