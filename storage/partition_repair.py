"""Repairs one partition of a data folder that no server has open, from its archive.

Nothing that is healthy changes: every change begins with damage that partition_check.py has found, and afterwards the
partition is checked again, because only that tells what is repaired. Without an archive, indexes are rebuilt.
"""

from __future__ import annotations

import msgspec

from whippet.storage import index as indexes
from whippet.storage import offsets, partition_check, producer_file, recovery, segment_repair
from whippet.storage.document_checksums import with_checksum
from whippet.storage.files import Files, make_folders, read_all, replace
from whippet.storage.layout import (
    INTENT_FILE,
    OFFSETS_FOLDER,
    PRODUCERS_FILE,
    PartitionId,
    index_file,
    left_out_file,
    log_file,
    producers_file,
)
from whippet.storage.partition_check import CHECKSUM_FAULT, CheckedPartition, CheckedSegment, Found, Part, Seals
from whippet.storage.repair_source import ArchivedPartition, ArchivedSegment, Finding, Source
from whippet.storage.segment import Damage, Segment

NO_ARCHIVE = "there is no archive to take it from"
NOT_ARCHIVED = "the archive does not have it"
FROM_ARCHIVE = "taken from the archive"
NO_CEILING = 2**64

AT_START = {
    Part.LOG: "the server reports it at its start and does not deliver these messages",
    Part.TAIL: "the next start of the server cuts it off and keeps it in the folder `damaged`",
    Part.MISSING: "the server reports it at its start and gives none of these offsets to another message",
    Part.INDEX: "the server builds it anew from the log",
    Part.OFFSETS: "the server uses the value that is valid; if none is, this consumer begins anew",
    Part.PRODUCERS: "the server ignores it, and a send that it is about would be stored again if it was repeated",
    Part.HISTORY: "the server reads nothing before the local log",
    Part.FOLDER: "the server reports it at its start and does not serve the partition",
}
"""What a server does about damage that is not repaired."""
SIMILAR_BYTES = 96
"""A damaged record of a numbered send still has so many bytes of the 128 that it had."""


AT_START_OF_DOCUMENTS = {
    "stream.json": "the next start does not serve this stream (system.recovery.recreate_missing_state recreates it)",
    "topic.json": "the next start does not serve this topic (system.recovery.recreate_missing_state recreates it)",
    "users": "this user cannot log in",
    "tokens": "this token is not accepted",
    "groups": "the next start does not have this group",
    "FORMAT": "the server does not open the folder",
    "archive_claims.json": "the server does not archive",
}
"""By the name of a document or of its folder."""


def left(found: Found, reason: str) -> Finding:
    """A finding about something that is not repaired."""
    return Finding(found.part, found.damage, False, f"{reason}; {_at_start(found)}")


def _at_start(found: Found) -> str:
    if found.part is not Part.DOCUMENT:
        return AT_START[found.part]
    if found.damage.reason == CHECKSUM_FAULT:
        return "the server uses it as it is"
    above, _, name = found.damage.file.rpartition("/")
    known = AT_START_OF_DOCUMENTS
    return known.get(name) or known.get(above.rpartition("/")[2]) or "the server reports it at its start"


class PartitionRepair:
    """One run. `histories` are those in the archive; None: there is no archive."""

    def __init__(
        self,
        files: Files,
        folder: str,
        place: PartitionId,
        seals: Seals,
        source: Source | None,
        incarnation: int | None,
        *,
        dry_run: bool,
        trusts_archive: bool,
    ) -> None:
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self._files = files
        self._folder = folder
        self._place = place
        self._seals = seals
        self._source = source
        self._incarnation = incarnation
        self._dry_run = dry_run
        self._trusts_archive = trusts_archive
        self._kept: dict[int, list[str]] = {}
        """Where the bytes of a segment are kept that were replaced, by its start offset."""
        self._reasons: dict[int, str] = {}
        """Why a segment is not repaired."""
        self._covered: dict[int, list[ArchivedSegment]] = {}
        self._known: dict[bool, list[ArchivedPartition]] = {}

    @property
    def histories(self) -> list[ArchivedPartition]:
        """Returns what the archive has of the partition: the history that goes on, then older ones."""
        return self._archived(older=False) + self._archived(older=True)

    def _archived(self, *, older: bool) -> list[ArchivedPartition]:
        if self._source is None or self._incarnation is None:
            return []
        if older not in self._known:
            self._known[older] = self._source.histories(self._place, self._incarnation, older=older)
        return self._known[older]

    def run(self) -> None:
        if self._files.exists(f"{self._folder}/{INTENT_FILE}"):
            self.notes.append("a deletion was in progress, which the next start of the server finishes; not touched")
            return
        before = self._check()
        if self._source is not None:
            self._repair_logs(before)
        after = self._check() if self._kept and not self._dry_run else before
        for one in before.segments:
            self._report_segment(one, after)
        self._report_missing(before, after)
        for one in after.segments:
            self._repair_index(one)
        self._repair_small_files(before)

    def _check(self) -> CheckedPartition:
        return partition_check.check(self._files, self._folder, self._place.partition, self._seals)

    # ------------------------------------------------------------------------------------------------------------- logs

    def _repair_logs(self, checked: CheckedPartition) -> None:
        starts = [one.start for one in checked.segments]
        for start in self._missing(checked):
            after = next((each for each in starts if each > start), NO_CEILING)
            self._create(start, after)
        for one in checked.segments:
            self._compare(one)
            if one.log_is_damaged or self._trusts_archive:
                self._repair_log(one)

    def _missing(self, checked: CheckedPartition) -> list[int]:
        """The segments that the archive has, and the folder had."""
        there = {one.start for one in checked.segments}
        lost = [found.damage for found in checked.found if found.part in (Part.MISSING, Part.LOG)]
        if not lost and not self._trusts_archive:
            return []
        first = min(there, default=0)
        known = sorted({start for history in self.histories for start in history.starts} - there)
        return [
            start
            for start in known
            if any(damage.offset <= start < damage.next_offset for damage in lost)
            or (self._trusts_archive and start > first)
        ]

    def _create(self, start: int, ceiling: int) -> None:
        for history in self.histories:
            archived = history.segment(start, ceiling) if start in history.starts else None
            if archived is None or not len(archived.entries):
                continue
            self.notes += archived.notes
            self._covered.setdefault(start, []).append(archived)
            self._kept[start] = []
            if not self._dry_run:
                segment_repair.create(self._files, self._folder, start, archived)
            return

    def _compare(self, one: CheckedSegment) -> None:
        """A log whose batches are intact, but neither those of its own index nor those in the archive, was put here by
        mistake."""
        if one.log_is_damaged or not len(one.entries):
            return
        for history in self._archived(older=False):
            described = history.described(one.start) if one.start in history.starts else None
            if described is None or not len(described):
                continue
            count = min(len(described), len(one.entries))
            if described.part(0, count).describes_as(one.entries.part(0, count)):
                continue
            index = next((found for found in one.found if found.part is Part.INDEX), None)
            if index is not None and one.described is not None and one.described.describes_as(described):
                one.found.remove(index)
                one.is_foreign = True
                reason = "its batches are intact, but its index and the archive have others"
                path, segment = log_file(self._folder, one.start), one.segment
                damage = Damage(path, 0, segment.log_bytes, segment.start_offset, segment.next_offset, reason)
                one.found.insert(0, Found(Part.LOG, damage))
            elif not self._trusts_archive:
                self.notes.append(
                    f"{log_file(self._folder, one.start)}: all of it is intact, but the archive has other messages "
                    "there; not touched (--trust-archive replaces it)"
                )

    def _repair_log(self, one: CheckedSegment) -> None:
        ceiling = NO_CEILING if one.is_last else one.segment.next_offset
        for history in self.histories:
            archived = history.segment(one.start, ceiling) if one.start in history.starts else None
            if archived is None and one.is_last and one.start >= history.next_offset:
                archived = segment_repair.NotArchived(one.start)
            if archived is None:
                continue
            self.notes += archived.notes
            given_out = one.described.next_offset(len(one.described) - 1) if one.described else 0
            cuts = archived.next_offset == ceiling or (one.is_last and given_out <= archived.next_offset)
            if one.is_unreadable:
                if archived.next_offset == ceiling:
                    kept = self._kept.setdefault(one.start, [])
                    self._covered.setdefault(one.start, []).append(archived)
                    if not self._dry_run:
                        kept.append(segment_repair.replace_unreadable(self._files, self._folder, one.start, archived))
                    return
                self._reasons[one.start] = "the archive may not have all of it; copy the folder to another disk first"
                continue
            wanted = segment_repair.plan(
                self._files,
                log_file(self._folder, one.start),
                one.entries,
                one.segment.log_bytes,
                archived,
                cuts=cuts,
                trusts_archive=self._trusts_archive or one.is_foreign,
            )
            if wanted.reason is not None:
                self._reasons[one.start] = wanted.reason
                continue
            self._covered.setdefault(one.start, []).append(archived)
            if wanted.is_empty:
                continue
            if not one.log_is_damaged:
                reason = "the archive has other messages there"
                damage = Damage(
                    log_file(self._folder, one.start), 0, one.segment.log_bytes, one.start, one.segment.next_offset,
                    reason,
                )  # fmt: skip
                one.found.append(Found(Part.LOG, damage))
            kept = self._kept.setdefault(one.start, [])
            if self._dry_run:
                return
            kept += segment_repair.apply(self._files, self._folder, one.start, one.segment.log_bytes, wanted, archived)
            # What was hidden behind the damage may be visible now, and an older history may have more.
            self._check_again(one)
            if not one.log_is_damaged:
                return

    def _check_again(self, one: CheckedSegment) -> None:
        """Reads a log again that has changed; what was found before stays in the report."""
        fresh = CheckedSegment(Segment(one.start, 0, one.segment.next_offset), one.is_last)
        handle = self._files.open_for_reading(log_file(self._folder, one.start))
        try:
            fresh.segment.log_bytes = self._files.size(handle)
        finally:
            self._files.close(handle)
        partition_check.check_segment(self._files, self._folder, fresh, self._place.partition, self._seals.batches)
        one.segment = fresh.segment

    # ----------------------------------------------------------------------------------------------------------- report

    def _report_segment(self, one: CheckedSegment, after: CheckedPartition) -> None:
        again = next((each for each in after.segments if each.start == one.start), None)
        remaining = [] if again is None else [found for found in again.found if found.part is not Part.INDEX]
        kept = tuple(self._kept.get(one.start, ()))
        reason = self._reasons.get(one.start, NO_ARCHIVE if self._source is None else NOT_ARCHIVED)
        named = set()
        for found in one.found:
            if found.part is Part.INDEX:
                continue
            is_left = any(_meet(found, each) for each in remaining)
            if self._dry_run:
                is_left = not self._covers(one.start, found)
            named |= {each for each in remaining if _meet(found, each)}
            if is_left:
                self.findings.append(left(found, reason))
            else:
                self.findings.append(Finding(found.part, found.damage, True, self._how(one.start, found), kept))
        if not self._dry_run:
            self.findings += [left(found, reason) for found in remaining if found not in named]

    def _how(self, start: int, found: Found) -> str:
        offset = found.damage.offset
        if offset < found.damage.next_offset:
            return FROM_ARCHIVE
        has_more = any(archived.next_offset > offset for archived in self._covered.get(start, ()))
        return FROM_ARCHIVE if has_more else "cut off after the last whole batch; the archive has nothing of it"

    def _covers(self, start: int, found: Found) -> bool:
        """Returns whether the archive has every message that is lost."""
        damage = found.damage
        starts = [start, *(each for each in self._covered if damage.offset <= each < damage.next_offset)]
        entries = [archived.entries for each in starts for archived in self._covered.get(each, ())]
        if start not in self._kept and not any(each in self._kept for each in starts):
            return False
        offset = damage.offset
        while offset < damage.next_offset:
            ends = [part.next_offset(i) for part in entries if (i := part.holding(offset)) < len(part)
                    and part.base_offset(i) <= offset]  # fmt: skip
            if not ends:
                return False
            offset = max(ends)
        return True

    def _report_missing(self, before: CheckedPartition, after: CheckedPartition) -> None:
        reason = NO_ARCHIVE if self._source is None else NOT_ARCHIVED
        remaining = [found for found in after.rest if found.part is Part.MISSING]
        reported = set()
        for found in before.rest:
            if found.part is Part.MISSING:
                start = found.damage.offset
                reported.add(start)
                is_left = found.damage in [each.damage for each in remaining] if not self._dry_run else (
                    start not in self._kept
                )  # fmt: skip
                if is_left:
                    self.findings.append(left(found, reason))
                else:
                    self.findings.append(Finding(found.part, found.damage, True, FROM_ARCHIVE))
        there = {one.start for one in before.segments}
        for start in sorted(set(self._kept) - there - reported):
            (archived, *_) = self._covered[start]
            path, end = log_file(self._folder, start), archived.next_offset
            damage = Damage(path, 0, 0, start, end, "the file is missing")
            self.findings.append(Finding(Part.MISSING, damage, True, FROM_ARCHIVE))

    # ---------------------------------------------------------------------------------------------------------- indexes

    def _repair_index(self, one: CheckedSegment) -> None:
        damaged = next((found for found in one.found if found.part is Part.INDEX), None)
        path, start = index_file(self._folder, one.start), one.start
        is_old = one.described is not None and one.segment.log_bytes and not one.is_last and (
            not one.log_is_damaged and not one.described.describes_as(one.entries)
        )  # fmt: skip
        if damaged is None and not is_old:
            if one.has_index or one.is_last or not len(one.entries):
                return
            reason = "it is missing"
        else:
            reason = damaged.damage.reason if damaged is not None else "it describes only a part of the log"
        kept: tuple[str, ...] = ()
        if not self._dry_run:
            if damaged is not None:
                kept = (recovery.move_aside(self._files, self._folder, path.rpartition("/")[2]),)
            content = indexes.encode(one.entries, start, one.segment.log_bytes)
            replace(self._files, path, content)
        damage = Damage(path, 0, 0, start, start, reason)
        self.findings.append(Finding(Part.INDEX, damage, True, "built anew from the log", kept))

    # ------------------------------------------------------------------------------------------------------ small files

    def _repair_small_files(self, checked: CheckedPartition) -> None:
        producers = []
        for found in checked.rest:
            if found.part is Part.PRODUCERS:
                producers.append(found)
            elif found.part is Part.HISTORY:
                self._repair_file(found, self._history())
            elif found.part is Part.OFFSETS:
                self._repair_file(found, *self._offset(found.damage.file))
        if producers:
            self._repair_producers(producers)

    def _repair_file(self, found: Found, content: bytes | str, how: str = FROM_ARCHIVE) -> None:
        """`content` is what the file should have, or the reason why that is not known."""
        if isinstance(content, str):
            self.findings.append(left(found, content))
            return
        kept = () if self._dry_run else (self._replace(found.damage.file, content),)
        self.findings.append(Finding(found.part, found.damage, True, how, kept))

    def _replace(self, path: str, content: bytes) -> str:
        """Returns where the damaged file is kept."""
        name = path.removeprefix(f"{self._folder}/").replace("/", "-")
        kept = recovery.free_name_aside(self._files, self._folder, name)
        replace_keeping(self._files, path, content, kept)
        return kept

    def _offset(self, path: str) -> tuple[bytes | str, str]:
        """The content of a file of stored offsets: what the archive has, or the local offset if that is newer."""
        if self._source is None:
            return NO_ARCHIVE, ""
        name = "/".join(path.rsplit("/", 2)[1:])
        seal = None if self._seals.offsets is None else self._seals.offsets.for_part(name)
        archived = next((each.offsets[name] for each in self.histories if name in each.offsets), b"")
        if offsets.fault_in(archived, seal) is not None:
            archived = b""
        local = read_all(self._files, path)
        newest = offsets.newest_sequence(local)
        if archived and offsets.newest_sequence(archived) >= newest:
            return archived, FROM_ARCHIVE
        rewritten = offsets.rewritten(local, seal) if newest else None
        if rewritten is None:
            return NOT_ARCHIVED, ""
        return rewritten, "written anew with the offset that is valid, which the archive has not or has an older one of"

    def _history(self) -> bytes | str:
        if not self.histories:
            return NO_ARCHIVE if self._source is None else NOT_ARCHIVED
        return with_checksum(msgspec.json.encode({"first_offset": self.histories[0].first_offset}) + b"\n")

    def _repair_producers(self, found: list[Found]) -> None:
        """Damaged records are replaced by those of the archive that are most like them."""
        path = producers_file(self._folder)
        content = bytearray(read_all(self._files, path))
        size = producer_file.RECORD.size
        pieces = [bytes(content[at : at + size]) for at in range(0, len(content), size)]
        archived = b"" if not self.histories else self.histories[0].producers() or b""
        known = {piece for piece in pieces if len(piece) == size and producer_file.decode(piece) is not None}
        spare = [
            piece
            for at in range(0, len(archived) - size + 1, size)
            if producer_file.decode(piece := archived[at : at + size]) is not None and piece not in known
        ]
        for number, piece in enumerate(pieces):
            if piece in known or not any(piece):
                continue
            best = max(spare, key=lambda each: _alike(each, piece), default=None)
            if best is not None and _alike(best, piece) >= min(SIMILAR_BYTES, len(piece)):
                content[number * size : number * size + len(piece)] = best
                spare.remove(best)
        remaining = {damage.reason for damage in producer_file.faults_in(path, bytes(content))}
        kept: tuple[str, ...] = ()
        repaired = [each for each in found if each.damage.reason not in remaining]
        if repaired and not self._dry_run:
            kept = (self._replace(path, bytes(content)),)
        reason = NO_ARCHIVE if self._source is None else NOT_ARCHIVED
        for each in found:
            if each in repaired:
                self.findings.append(Finding(each.part, each.damage, True, FROM_ARCHIVE, kept))
            else:
                self.findings.append(left(each, reason))


def _alike(one: bytes, other: bytes) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


def _meet(one: Found, other: Found) -> bool:
    """Returns whether two findings are about the same bytes or messages."""
    a, b = one.damage, other.damage
    bytes_meet = a.position < b.position + max(b.length, 1) and b.position < a.position + max(a.length, 1)
    offsets_meet = a.offset < b.next_offset and b.offset < a.next_offset
    return offsets_meet if a.offset < a.next_offset and b.offset < b.next_offset else bytes_meet


def replace_keeping(files: Files, path: str, content: bytes, kept: str) -> None:
    """Replaces a damaged file after copying it. A crash leaves the old file or the new one."""
    replace(files, kept, read_all(files, path))
    replace(files, path, content)


def restore_partition(files: Files, folder: str, archived: ArchivedPartition, source: Source) -> list[str]:
    """Fills an empty folder with everything that the archive has of a partition, and returns what is wrong with its
    objects. Offsets that may have been given out are left out."""
    notes: list[str] = []
    end = archived.starts[0] if archived.starts else 0
    for start, after in zip(archived.starts, [*archived.starts[1:], NO_CEILING], strict=True):
        segment = archived.segment(start, after)
        if segment is None:
            continue
        notes += segment.notes
        if end < start:
            _leave_out(files, folder, end)
        segment_repair.create(files, folder, start, segment)
        replace(files, index_file(folder, start), indexes.encode(segment.entries, start, segment.end))
        end = segment.next_offset
    newest = max(archived.next_offset, end) + (0 if source.complete else source.given_out)
    if newest > end or not archived.starts:
        if archived.starts:
            _leave_out(files, folder, end)
        recovery.create_log(files, folder, newest)
    for name, content in archived.offsets.items():
        path = f"{folder}/{OFFSETS_FOLDER}/{name}"
        make_folders(files, path.rpartition("/")[0])
        replace(files, path, content)
    producers = archived.producers()
    if producers is not None:
        replace(files, f"{folder}/{PRODUCERS_FILE}", producers)
    files.sync_folder(folder)
    return notes


def _leave_out(files: Files, folder: str, offset: int) -> None:
    if not files.exists(log_file(folder, offset)):
        recovery.create_log(files, folder, offset)
    files.close(files.open_for_writing(left_out_file(folder, offset)))
