"""The archiver: copies what is new to the archive, again and again, while the server runs.

The event loop goes through the partitions at an interval. What has changed is synced, looked at by its shard
(views.py), and then archived by one of a few threads (partition_archive.py). Neither producers nor shards ever wait for
the archive. A failure is shown and logged, and tried again after a pause that grows. A conflict with another server
ends the archiver, but not the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from whippet.storage.archive import catalogue_archive, ownership
from whippet.storage.archive.arrivals import Arrivals
from whippet.storage.archive.catalogue_archive import CatalogueArchive
from whippet.storage.archive.documents import Listed
from whippet.storage.archive.histories import Histories, PartitionHistory
from whippet.storage.archive.local_copies import LocalCopies
from whippet.storage.archive.objects import Objects, open_objects
from whippet.storage.archive.ownership import Ownership
from whippet.storage.archive.pacing import Pacer
from whippet.storage.archive.partition_archive import Known, PartitionArchive
from whippet.storage.archive.rounds import RoundRecord
from whippet.storage.archive.uploads import Uploader
from whippet.storage.archive.views import SegmentGone, view_of
from whippet.storage.errors import (
    ArchiveConflict,
    ArchiveError,
    ArchiveUnavailable,
    PartitionClosed,
    StorageError,
)
from whippet.storage.files import Files
from whippet.storage.layout import PartitionId
from whippet.storage.offsets import Kind
from whippet.storage.options import ArchiveOptions, TopicOptions
from whippet.storage.partition import Partition

if TYPE_CHECKING:
    from whippet.storage.store import Store

_log = logging.getLogger(__name__)

THREADS = 4
"""How many partitions are archived at the same time. Each needs memory for a few parts of an upload."""
FAILURES_MAX = 3
"""After so many failures in a row, a round is over: most likely the archive cannot be reached."""
RETRY_S = 1.0
"""The pause after a failed round. It doubles with each further one, up to the interval."""
HOUR_US = 3_600_000_000
WATCH_S = 1.0
"""How often the bytes that wait for the archive are compared with their limit, if there is one."""
START_S = 15.0
"""How long a start waits for the archive. If that is not enough, the server starts, and the archiver tries again."""
Result = TypeVar("Result")
Fingerprint = tuple[object, ...]


class DiskIsFull(ArchiveUnavailable):
    """Nothing may be uploaded, because the archive is on the disk of the data folder."""

    def __init__(self) -> None:
        super().__init__("the archive is on the disk of the data folder, which is full")


class Claimed(NamedTuple):
    """An archive that this server writes to."""

    objects: Objects
    ownership: Ownership
    uploader: Uploader
    catalogue: CatalogueArchive
    rounds: RoundRecord


class Archiver:
    """The event loop uses it. Created by `start`, ended by `stop`."""

    def __init__(self, store: Store, options: ArchiveOptions, files: Files, objects: Objects | None = None) -> None:
        self.options = options
        self.problem: str | None = None
        """Why the last round did not archive everything; None if it did."""
        self.refused = False
        """Whether another server has the archive, so that nothing is written to it any more."""
        self.failures = 0
        """Partitions, catalogues and rounds that could not be archived, since the start."""
        self.completed_at: int | None = None
        """When the last round began that archived everything."""
        self.known: dict[PartitionId, Known] = {}
        """What it has of each partition; after a failure, it has to be read again."""
        self._last_known: dict[PartitionId, tuple[Known, int]] = {}
        """The same, also after a failure, and how often the partition had been emptied."""
        self._store = store
        self._files = files
        self._given = objects
        self._pacer = Pacer(options.bytes_per_second, self._require_disk)
        self._is_on_the_same_disk = False
        self._was_in_doubt = False
        """It did not respond when archived segments were to be deleted."""
        self._claimed: Claimed | None = None
        self._claiming: asyncio.Future[Claimed] | None = None
        self._partitions: dict[PartitionId, PartitionArchive] = {}
        self._seen: dict[PartitionId, Fingerprint] = {}
        """What a partition was like when it was archived last."""
        self._listed: dict[PartitionId, Listed] = {}
        """Where it began and ended then."""
        self._emptied: dict[PartitionId, int] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="archiver")
        self._task: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        """Set to begin the next round at once."""
        self._histories = Histories(
            self._connect,
            files,
            store.layout,
            options.cache_bytes,
            store.opener.seal_of_batches,
            lambda: not store.disk.is_scarce,
        )
        self._local = LocalCopies(store, self._histories, self.covered, self._is_ours, self._hurry.set)
        self.arrivals = Arrivals(store, files, self._histories, self._archive_to_take, self._refuse)
        if options.protects_expired:
            store.archived_before = self.covered

    # ----------------------------------------------------------------------------------------------- starting, stopping

    async def start(self) -> None:
        """Claims the archive, and begins with the rounds. Raises ArchiveConflict if the archive is another server's. If
        it cannot be reached, that is tried again later, because the server can do without it."""
        await self._load_histories()
        self.arrivals.attach()
        try:
            async with asyncio.timeout(START_S):
                await self._claim()
        except ArchiveConflict:
            self._threads.shutdown(wait=False)
            self._histories.stop()
            raise
        except (ArchiveError, TimeoutError, OSError) as error:
            self._failed(str(error) or f"the archive has not answered for {START_S:.0f} seconds")
        self.arrivals.start()
        self._task = asyncio.create_task(self._run(), name="archiver")
        await self._store.disk.use(self._local)
        if self.options.local_limit_bytes is not None:
            self._watch = asyncio.create_task(self._watch_limit(self.options.local_limit_bytes), name="archive limit")

    @property
    def _lacks_disk(self) -> bool:
        return self._is_on_the_same_disk and self._store.room.disk_full is not None

    def _require_disk(self, size: int) -> None:
        """Called on any thread before an upload: copies on the same disk must not use up what it has in reserve."""
        if self._is_on_the_same_disk and not self._store.room.take_beside(size):
            raise DiskIsFull

    async def _claim(self) -> Claimed:
        def claim() -> Claimed:
            objects = self._connect()
            store = self._store
            owned = ownership.claim(objects, self._files, store.layout, store.identity, store.clock)
            catalogue = CatalogueArchive(objects, self._files, store.layout, owned.owner)
            self._is_on_the_same_disk = _are_on_one_disk(self._files, store.options.path, objects)
            rounds = RoundRecord(objects, owned.owner)
            return Claimed(objects, owned, Uploader(objects, self._files, self._pacer), catalogue, rounds)

        # A claim that takes too long for a start goes on, and two at a time would refuse each other.
        claiming = self._claiming
        if claiming is None:
            claiming = self._claiming = asyncio.ensure_future(self._on_thread(claim))
            claiming.add_done_callback(_retrieve)
        try:
            claimed = self._claimed = await asyncio.shield(claiming)
        finally:
            if claiming.done():
                self._claiming = None
        _log.info(
            "archive: %s, every %g seconds; this is its generation %d",
            claimed.objects.location,
            self.options.interval_s,
            claimed.ownership.owner.generation,
        )
        return claimed

    def _connect(self) -> Objects:
        return self._given or open_objects(self.options, self._files)

    async def _load_histories(self) -> None:
        """Before anybody reads, so that what is only in the archive does not seem to be deleted."""
        places = [place for place in self._store.partitions if place not in self._store.awaited]
        firsts = await self._on_thread(lambda: [self._histories.load(place) for place in places])
        for place, first in zip(places, firsts, strict=True):
            partition = self._store.partitions[place]
            if first is not None and first < partition.local_first_offset:
                partition.history = PartitionHistory(place, self._histories, first)

    async def stop(self, *, seconds: float) -> None:
        """Archives what is new, as far as there is time for it, and ends the threads."""
        await self._store.disk.use(None)
        tasks = [task for task in (self._task, self._watch) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.arrivals.stop()
        try:
            async with asyncio.timeout(seconds):
                is_complete = self._task is not None and not self.refused and await self.round()
                if self._task is not None and not is_complete and not self.refused:
                    # It may have met what the round that was just cancelled was still doing on its threads.
                    is_complete = await self.round()
                if is_complete and self._claimed is not None:
                    objects, owned = self._claimed.objects, self._claimed.ownership
                    await self._on_thread(functools.partial(ownership.mark_complete, objects, owned))
        except (StorageError, TimeoutError) as error:
            _log.warning("archive: not everything is archived at the stop: %s", error or "there was no time for it")
        finally:
            self._pacer.stop()
            await asyncio.get_running_loop().run_in_executor(
                None, functools.partial(self._threads.shutdown, wait=True, cancel_futures=True)
            )
            await asyncio.get_running_loop().run_in_executor(None, self._histories.stop)

    async def _run(self) -> None:
        failed = 0
        while not self.refused:
            pause = self.options.interval_s
            if failed:
                pause = min(RETRY_S * 2 ** (failed - 1), pause)
            await self._sleep(pause, may_hurry=not failed)
            try:
                failed = 0 if await self.round() else failed + 1
            except Exception:  # noqa: BLE001 -- logged with its trace; without the archiver nothing would be archived
                _log.exception("the archiver met a defect; it will run again")
                self._failed("the archiver met a defect, which is in the log")
                failed += 1

    async def _sleep(self, seconds: float, *, may_hurry: bool) -> None:
        if not may_hurry:
            await asyncio.sleep(seconds)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._hurry.wait()
        self._hurry.clear()

    async def _watch_limit(self, limit: int) -> None:
        while True:
            self.apply_limit(limit)
            await asyncio.sleep(WATCH_S)

    def apply_limit(self, limit: int) -> None:
        """Refuses messages while more bytes wait for the archive than are allowed."""
        waiting, was, now = self.waiting_bytes, self._store.room.archive_behind, None
        if waiting >= limit:
            now = (
                f"messages are refused because {waiting} bytes are not archived yet, and "
                f"data_maintenance.archiver.local_limit is {limit} bytes; the log has the archiver's problem"
            )
        self._store.room.archive_behind = now
        if was is None and now is not None:
            _log.error("archive: %s", now)
        elif was is not None and now is None:
            _log.info("archive: messages are accepted again")

    # ----------------------------------------------------------------------------------------------------------- rounds

    async def round(self) -> bool:
        """Archives everything that is new; False if not all of it could be archived. May not run twice at a time."""
        began = self._store.clock()
        try:
            claimed = self._claimed
            if claimed is None:
                claimed = await self._claim()
            else:
                await self._on_thread(functools.partial(ownership.require, claimed.objects, claimed.ownership))
            places = await self._archive_catalogue(claimed)
            problem = await self._archive_partitions(claimed, places)
            if problem is None:
                listed = list(self._listed.values())
                await self._on_thread(functools.partial(claimed.rounds.write, began, listed))
        except ArchiveConflict as error:
            self._refuse(error)
            return False
        except (StorageError, OSError) as error:
            problem = str(error)
        if problem is not None:
            self._failed(problem)
            return False
        if self.problem is not None:
            _log.info("archive: everything is archived again")
        if self._was_in_doubt:
            self._was_in_doubt = False
            self._local.progress += 1
        self.problem = None
        self.completed_at = began
        return True

    def _refuse(self, error: ArchiveConflict) -> None:
        self.refused = True
        self.failures += 1
        self.problem = str(error)
        _log.error("archive: %s", error)

    def _failed(self, problem: str) -> None:
        self.failures += 1
        if problem != self.problem:
            _log.warning("archive: %s", problem)
        self.problem = problem

    async def _archive_catalogue(self, claimed: Claimed) -> set[PartitionId]:
        """Returns the partitions that it has."""
        state = catalogue_archive.state_of(self._store)
        removed = await self._on_thread(functools.partial(claimed.catalogue.advance, state, self._store.clock()))
        for place in removed:
            for table in (self._partitions, self._seen, self._emptied, self.known, self._last_known, self._listed):
                table.pop(place, None)
        return set(catalogue_archive.places_in(state.streams))

    async def _archive_partitions(self, claimed: Claimed, places: set[PartitionId]) -> str | None:
        """Returns what went wrong, if anything did. What the catalogue does not have yet is left to the next round:
        nobody would find it."""
        found = [(place, partition) for place, partition in self._store.partitions.items() if place in places]
        coming = [(place, partition) for place, partition in found if partition.coming is not None]
        here = [(place, partition) for place, partition in found if partition.coming is None]
        problems: list[str] = []
        in_a_row = 0
        if coming and self.arrivals.stopped:
            problems.append(f"{len(coming)} partitions have not come from the archive yet")
            coming = []
        waiting = iter(here + coming)

        async def work(waiting: Iterator[tuple[PartitionId, Partition]]) -> None:
            nonlocal in_a_row
            for place, partition in waiting:
                if in_a_row >= FAILURES_MAX:
                    return
                try:
                    await self._archive(claimed, place, partition)
                except (SegmentGone, PartitionClosed):
                    # It was purged or removed meanwhile, which the next round sees.
                    self._seen.pop(place, None)
                except ArchiveConflict:
                    raise
                except DiskIsFull as error:
                    # What it has of the others is still to be found out.
                    problems.append(f"{place}: {error}")
                except (StorageError, OSError) as error:
                    problems.append(f"{place}: {error}")
                    in_a_row += 1
                else:
                    in_a_row = 0
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_first_conflict(work(waiting))) for _ in range(THREADS)]
        for conflict in (task.result() for task in tasks):
            if conflict is not None:
                raise conflict
        if not problems:
            return None
        return problems[0] if len(problems) == 1 else f"{problems[0]} (and {len(problems) - 1} more)"

    async def _archive(self, claimed: Claimed, place: PartitionId, partition: Partition) -> None:
        now, retention = self._store.clock(), self._options_of(place).archive_retention
        # Something may expire although nothing else changes.
        await partition.here()
        fingerprint = (*_fingerprint(partition), None if retention is None else now // min(retention, HOUR_US))
        if self._seen.get(place) == fingerprint:
            return
        archive = self._archive_of(claimed, place)
        known = self.known.get(place)
        if known is None:
            known = await self._on_thread(archive.load)
        emptied = partition.emptied
        if self._emptied.setdefault(place, emptied) != emptied:
            await self._on_thread(archive.begin_epoch)
            self._emptied[place] = emptied
            known = await self._on_thread(archive.load)
        await partition.flush(sync=True)
        view = await partition.with_log(functools.partial(view_of, synced=partition.synced, archived=known.extents))
        is_current = lambda: partition.emptied == emptied  # noqa: E731
        try:
            expired = 0 if retention is None else now - retention
            has_disk = not self._lacks_disk
            if not has_disk:
                # What it has already is what may be deleted to make space.
                known = await self._on_thread(lambda: archive.look(view))
            else:
                known = await self._on_thread(lambda: archive.advance(view, is_current, expired))
        except BaseException:
            self.known.pop(place, None)
            raise
        before = self.known.get(place)
        self.known[place] = known
        self._last_known[place] = known, emptied
        if known.covered > (0 if before is None else before.covered):
            self._local.progress += 1
        if not has_disk:
            raise DiskIsFull
        self._seen[place] = fingerprint
        first, end = known.first_offset, known.next_offset
        self._listed[place] = Listed.of(place, archive.incarnation, first, end, known.log_end)
        if partition.history is not None and known.first_offset > partition.history.first_offset:
            await partition.history.keep_from(known.first_offset)

    def _options_of(self, place: PartitionId) -> TopicOptions:
        return self._store.streams[place.stream].topics[place.topic].document.options

    def _archive_of(self, claimed: Claimed, place: PartitionId) -> PartitionArchive:
        incarnation = self._incarnation(place)
        archive = self._partitions.get(place)
        if archive is None or archive.incarnation != incarnation:
            archive = self._partitions[place] = PartitionArchive(
                place,
                self._store.layout.partition(place),
                incarnation,
                claimed.ownership.owner,
                claimed.objects,
                self._files,
                claimed.uploader,
                self._store.clock,
            )
            self.known.pop(place, None)
            self._last_known.pop(place, None)
            self._emptied.pop(place, None)
        return archive

    async def _archive_to_take(self, place: PartitionId) -> tuple[Objects, PartitionArchive]:
        claimed = self._claimed or await self._claim()
        return claimed.objects, self._archive_of(claimed, place)

    async def _on_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    # -------------------------------------------------------------------------------------------------- local retention

    async def retain_locally(self, stream_id: int, topic_id: int, *, time_us: int | None, max_bytes: int | None) -> int:
        """Deletes closed segments of a topic from this machine that are older than a time, or beyond a size that its
        partitions share, once they are in the archive. They stay readable. Returns how many."""
        if self.refused:
            return 0
        return await self._local.retain(stream_id, topic_id, time_us=time_us, max_bytes=max_bytes)

    async def _is_ours(self) -> bool:
        """Returns whether the archive responds, and no other server has claimed it."""
        claimed = self._claimed
        if self.refused or claimed is None:
            return False
        try:
            # Not on the threads of the archiver, which may be busy for long.
            await asyncio.to_thread(ownership.require, claimed.objects, claimed.ownership)
        except ArchiveConflict as error:
            self._refuse(error)
            return False
        except (StorageError, OSError) as error:
            _log.warning("archive: nothing is deleted on the full disk, because %s", error)
            self._was_in_doubt = True
            return False
        return True

    # ---------------------------------------------------------------------------------------------------------- results

    def covered(self, place: PartitionId) -> int:
        """The offset before which the archive has all closed segments of a partition, so that they may be deleted."""
        known, archive, partition = (
            self.known.get(place),
            self._partitions.get(place),
            self._store.partitions.get(place),
        )
        if known is None or archive is None or partition is None:
            return 0
        is_same = archive.incarnation == self._incarnation(place) and self._emptied.get(place) == partition.emptied
        # What was purged or created again has other messages at the same offsets.
        return known.covered if is_same else 0

    def _incarnation(self, place: PartitionId) -> int:
        return self._store.streams[place.stream].topics[place.topic].document.incarnation(place.partition)

    def summary(self) -> str | None:
        """What is wrong, without any name; the log has the details. None if nothing is."""
        if self.problem is None:
            return None
        if self.refused:
            return "archive: another server has the archive, so nothing is archived any more"
        if self.completed_at is None:
            return "archive: not everything was archived since the start; the log has the reason"
        behind = max(self._store.clock() - self.completed_at, 0) // 1_000_000
        return f"archive: it is {behind} s behind; the log has the reason"

    @property
    def objects(self) -> Objects:
        """The archive, once it is claimed."""
        assert self._claimed is not None
        return self._claimed.objects

    @property
    def uploaded_bytes(self) -> int:
        return 0 if self._claimed is None else self._claimed.uploader.bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of logs that are not in the archive yet."""
        waiting = 0
        for partition in self._store.partitions.values():
            known = self._archived_of(partition)
            waiting += max(partition.disk_bytes - (0 if known is None else known.local_bytes), 0)
        return waiting

    @property
    def waiting_messages(self) -> int:
        """Messages that are not in the archive yet."""
        return sum(self.waiting_in(partition) for partition in self._store.partitions.values())

    @property
    def partitions(self) -> Iterable[Partition]:
        """What is to be archived."""
        return self._store.partitions.values()

    def waiting_in(self, partition: Partition) -> int:
        """Messages of one partition that are not in the archive yet."""
        if partition.coming is not None:
            return 0
        known = self._archived_of(partition)
        archived = 0 if known is None else known.next_offset
        return max(partition.appended - max(archived, partition.local_first_offset), 0)

    def _archived_of(self, partition: Partition) -> Known | None:
        """Returns what the archive has of a partition, as far as is known; None if that is of before a purge."""
        known, emptied = self._last_known.get(partition.place, (None, partition.emptied))
        return known if emptied == partition.emptied else None


def _are_on_one_disk(files: Files, folder: str, objects: Objects) -> bool:
    try:
        return objects.folder is not None and files.share_a_disk(folder, objects.folder)
    except OSError as error:
        raise ArchiveUnavailable(f"{objects.location} cannot be used: {error.strerror}") from error


def _retrieve(claiming: asyncio.Future[Claimed]) -> None:
    """Whoever waits gets the error. If nobody does, the next claim meets it."""
    if not claiming.cancelled():
        claiming.exception()


async def _first_conflict(work: Coroutine[None, None, None]) -> ArchiveConflict | None:
    """A task group would cancel the others in the middle of what they do."""
    try:
        await work
    except ArchiveConflict as conflict:
        return conflict
    return None


def _fingerprint(partition: Partition) -> Fingerprint:
    """Differs whenever there is something to archive."""
    offsets = tuple(
        (kind, identity, partition.offset_of(kind, identity)) for kind in Kind for identity in partition.readers(kind)
    )
    return (
        partition.appended,
        partition.local_first_offset,
        partition.segments_count,
        partition.emptied,
        hash(offsets),
    )
