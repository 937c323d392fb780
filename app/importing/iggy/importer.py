"""Imports one folder: reads the catalogue, plans, writes everything into the staging folder, puts it into place.

Until the placement is decided, an error or a crash leaves the target as it was: what is in the staging folder is
removed here, or by the next start. From the decision on, the next start finishes the placement (storage/placement.py).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from argon2 import PasswordHasher

from whippet.app.access.passwords import intact
from whippet.app.access.personal_tokens import NAME_BYTES as TOKEN_NAME_BYTES
from whippet.app.access.personal_tokens import Token as TokenDocument
from whippet.app.access.users import NAME_BYTES, UserDocument, encoded
from whippet.app.config.formats import Invalid, parse_expiry, parse_size
from whippet.app.errors import CommandError
from whippet.app.importing.iggy import journal, snapshot, state_log
from whippet.app.importing.iggy.batching import batched
from whippet.app.importing.iggy.catalogue import ROOT, UNLIMITED, Catalogue, Group, Stream, Topic, User
from whippet.app.importing.iggy.cipher import Cipher
from whippet.app.importing.iggy.classic_segments import ClassicSegment
from whippet.app.importing.iggy.modern_segments import ModernSegment, decrypts
from whippet.app.importing.iggy.partition_writer import PartitionWriter
from whippet.app.importing.iggy.plan import Plan, moved, plan
from whippet.app.importing.iggy.report import Refused, Report
from whippet.app.importing.iggy.source import JOURNAL_FILE, SNAPSHOT_FILE, STATE_FILE, Generation, LogFile, Source
from whippet.app.model.topic_options import parse_options
from whippet.storage import catalog_loading, placement, sealed_documents, takeover
from whippet.storage.catalog import Catalog
from whippet.storage.catalog_loading import LoadedCatalog
from whippet.storage.data_folder import DataFolder
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.files import Files, make_folders
from whippet.storage.layout import (
    NUMBERS_FILE,
    PLACEMENT_FILE,
    STAGING_FOLDER,
    TOKENS_FOLDER,
    USERS_FOLDER,
    Layout,
    PartitionId,
)
from whippet.storage.offsets import Key, Kind, OffsetFiles
from whippet.storage.options import StoreOptions, TopicOptions, settings_of
from whippet.storage.packing import Compression
from whippet.storage.survey import SealsOf

STAGED = f"{STAGING_FOLDER}/import"
LOST_IN_MEMORY_MAX = 1_000_000
"""A stored offset after the newest message shows that the messages up to it existed, and that a crash of Iggy lost
them. One that is much further away shows that its file is damaged."""
OFFSET_FOLDERS = {Kind.CONSUMER: "consumers", Kind.GROUP: "groups"}

Progress = Callable[[int, int], None]
"""Called with the bytes of messages that were read, and with how many there are."""


class Root(NamedTuple):
    """The root user as the environment has it. Iggy 0.9 keeps it nowhere else."""

    name: str
    password: str | None


class Finished(Exception):
    """An earlier import was interrupted while it was put into place, and this run has finished it."""


def run(
    source_path: str,
    options: StoreOptions,
    clock: Callable[[], int],
    *,
    cipher: Cipher | None = None,
    root: Root,
    progress: Progress = lambda done, total: None,
    files: Files | None = None,
) -> Report:
    """Raises Refused, StorageError or OSError if nothing was imported, and Finished. `root` is the root user of a
    folder that does not have it."""
    report = Report()
    source = Source(source_path)
    source.refuse_in_use()
    catalogue, cipher = _catalogue(source, cipher, root, clock(), report)
    files = files or Files()
    layout = Layout(options)
    _refuse_same(source, layout)
    folder = DataFolder(files, layout, clock, recreate=options.recreate_missing_state, keyring=options.keyring)
    try:
        folder.enter()
    except BaseException:
        folder.leave(all_is_synced=False)
        raise
    try:
        if awaited := takeover.missing(files, layout):
            raise Refused(
                f"{layout.root}: {len(awaited)} partitions are still only in the archive, from which this folder was "
                "begun; import once a server has fetched all of them"
            )
        was_interrupted = files.exists(layout.below(PLACEMENT_FILE))
        target = catalog_loading.load(
            Catalog(files, layout, sync=True), files, layout, clock, recreate=options.recreate_missing_state
        )
        if was_interrupted:
            raise Finished
        seals = SealsOf(options.keyring, folder.identity)
        for name, documents in ((USERS_FOLDER, target.users), (TOKENS_FOLDER, target.tokens)):
            for identity, stored in documents.items():
                documents[identity], _ = sealed_documents.opened(stored, f"{name}/{identity}.json", seals.documents)
        planned = plan(catalogue, target, layout.streams, report)
        _Import(source, catalogue, planned, target, cipher, options, seals, clock, files, report, progress).run()
    finally:
        folder.leave(all_is_synced=True)
    return report


def _refuse_same(source: Source, layout: Layout) -> None:
    theirs, ours = source.root.resolve(), Path(layout.root).resolve()
    if theirs == ours or theirs in ours.parents or ours in theirs.parents:
        raise Refused(f"the source {theirs} and the target {ours} are the same folder, or one is in the other")


def _catalogue(
    source: Source, cipher: Cipher | None, root: Root, now: int, report: Report
) -> tuple[Catalogue, Cipher | None]:
    """Returns the catalogue, and the cipher if messages are encrypted."""
    if source.generation is Generation.CLASSIC:
        content = source.read(STATE_FILE) or b""
        catalogue = state_log.read(content, source.path(STATE_FILE), cipher, source.says_encrypted, report)
        if cipher is not None and not state_log.is_encrypted(content):
            report.note("the folder is not encrypted; the key was not needed")
            cipher = None
        return catalogue, cipher
    if source.says_encrypted and cipher is None:
        raise Refused(
            "the messages of this folder are encrypted: their key is needed (--key-file, or the variable "
            "WHIPPET_IMPORT_KEY); it is system.encryption.key of Iggy's configuration"
        )
    if cipher is not None and source.config and not source.says_encrypted:
        report.note("the folder is not encrypted; the key was not needed")
        cipher = None
    if cipher is not None:
        _refuse_other_key(source, cipher)
    held, last_op = source.read(SNAPSHOT_FILE), 0
    # Iggy creates the root user at every start, and records it in snapshots only. It has every right anyway.
    password_hash = "" if root.password is None else PasswordHasher().hash(root.password)
    catalogue = Catalogue({}, {ROOT: User(ROOT, root.name, password_hash, now, True, None)})
    if held is not None:
        catalogue, last_op = snapshot.read(held, source.path(SNAPSHOT_FILE))
    content = source.read(JOURNAL_FILE) or b""
    journal.read(content, source.path(JOURNAL_FILE), catalogue, last_op + 1, report)
    return catalogue, cipher


def _refuse_other_key(source: Source, cipher: Cipher) -> None:
    """The journal is not encrypted, so the key is tried on messages."""
    tried = False
    for place in source.partitions():
        for log in source.logs(place):
            if log.size:
                fits = decrypts(log.path, log.size, cipher, Files())
                if fits:
                    return
                tried = tried or fits is False
    if tried:
        raise Refused(f"{source.root}: no message can be decrypted: it is not the key of this folder")


class Interrupted(Exception):
    """Everything is written and decided, but could not be put into place."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            f"{error.filename}: {error.strerror}; everything is imported but not in its place yet: the next start of "
            "the gateway, or the same command, finishes that"
        )


class _Import:
    """One run, after everything has been checked."""

    def __init__(
        self,
        source: Source,
        catalogue: Catalogue,
        planned: Plan,
        target: LoadedCatalog,
        cipher: Cipher | None,
        options: StoreOptions,
        seals: SealsOf,
        clock: Callable[[], int],
        files: Files,
        report: Report,
        progress: Progress,
    ) -> None:
        self._seals = seals
        self._source = source
        self._catalogue = catalogue
        self._plan = planned
        self._target = target
        self._cipher = cipher
        self._options = options
        self._now = clock()
        self._files = files
        self._reading = Files()
        """The files of the source."""
        self._report = report
        self._layout = Layout(options)
        self._staged = Layout(msgspec.structs.replace(options, path=self._layout.below(STAGED)))
        self._catalog = Catalog(files, self._staged, sync=False)
        self._moves: list[placement.Move] = []
        self._progress = progress
        self._done = 0
        self._total = source.log_bytes()
        self._incarnation = 0

    def run(self) -> None:
        try:
            self._build()
            self._source.refuse_changed()
            self._files.sync_filesystem(self._layout.root)
            placement.decide(self._files, self._layout, self._moves)
        except BaseException:
            if not self._files.exists(self._layout.below(PLACEMENT_FILE)):
                self._discard()
                raise
            # Only syncing the decision has failed. What follows tries that again.
        try:
            placement.finish(self._files, self._layout)
        except OSError as error:
            raise Interrupted(error) from error
        self._discard()

    def _discard(self) -> None:
        """Removes what was staged. If that fails, the next start does it."""
        with contextlib.suppress(OSError):
            self._files.remove_tree(self._staged.root)

    def _build(self) -> None:
        for folder in (self._staged.streams, *map(self._staged.below, (STAGING_FOLDER, USERS_FOLDER, TOKENS_FOLDER))):
            make_folders(self._files, folder)
        self._reserve_number()
        for stream in self._catalogue.streams.values():
            self._import_stream(stream)
        self._report_unknown()
        self._import_users()

    def _reserve_number(self) -> None:
        """The partitions are new to this folder, also if the same ones were imported and deleted before."""
        reserved, problem = catalog_loading.read_numbers(self._files, self._layout)
        if problem is not None:
            raise Refused(problem)
        self._incarnation = max(reserved, self._now // 1000)
        self._catalog.write_numbers(self._incarnation + 1)
        self._move(NUMBERS_FILE)

    def _move(self, staged: str) -> None:
        self._moves.append(placement.Move(f"{STAGED}/{staged}", staged))

    # ----------------------------------------------------------------------------------------------- streams, topics

    def _import_stream(self, stream: Stream) -> None:
        identity = self._plan.streams[stream.id]
        self._catalog.create_stream(StreamDocument(id=identity, name=stream.name, created_at=stream.created_at))
        for topic in stream.topics.values():
            self._import_topic(stream, topic)
        path = self._staged.stream(identity)
        self._move(path.removeprefix(f"{self._staged.root}/"))
        self._report.streams += 1

    def _import_topic(self, stream: Stream, topic: Topic) -> None:
        document = self._document(stream, topic)
        target_stream = self._plan.streams[stream.id]
        self._catalog.create_topic(target_stream, document)
        for group in topic.groups.values():
            self._import_group(target_stream, topic.id, group)
        segment_bytes = settings_of(document.options, self._options).segment_bytes
        for partition_id in range(document.partitions_count):
            place = PartitionId(stream.id, topic.id, partition_id)
            self._import_partition(place, topic, segment_bytes, Compression(document.compression_algorithm))
        self._report.topics += 1

    def _document(self, stream: Stream, topic: Topic) -> TopicDocument:
        chosen = self._chosen(stream, topic)
        count = len(topic.partitions)
        return TopicDocument(
            id=topic.id,
            name=topic.name,
            created_at=topic.created_at,
            partitions_count=count,
            message_expiry=topic.message_expiry or self._default("message_expiry", parse_expiry),
            max_topic_size=topic.max_topic_size or self._default("max_size", parse_size),
            compression_algorithm=topic.compression_algorithm if topic.compression_algorithm in (1, 2, 3) else 1,
            replication_factor=topic.replication_factor or 1,
            options=chosen,
            incarnations=(self._incarnation,) * count,
        )

    def _chosen(self, stream: Stream, topic: Topic) -> TopicOptions:
        """What somebody chose for the topic. The classic commands have no options, only numbers of which 0 means
        nothing."""
        if not topic.explicit:
            return TopicOptions(
                message_expiry=topic.message_expiry or None,
                max_topic_size=topic.max_topic_size or None,
                compression_algorithm="gzip" if topic.compression_algorithm == 2 else None,
            )
        chosen = TopicOptions()
        for option in topic.explicit.values():
            try:
                one = parse_options([option])
            except CommandError as error:
                self._report.lose(f"topic {stream.name}/{topic.name}: an option is not imported: {error}")
                continue
            given = {key: value for key, value in msgspec.structs.asdict(one).items() if value is not None}
            chosen = msgspec.structs.replace(chosen, **given)
        return chosen

    def _default(self, key: str, parse: Callable[[object], int | None]) -> int:
        """What Iggy's configuration said for topics for which nothing was chosen: never, and unlimited, unless it says
        otherwise."""
        setting = self._source.setting("topic", key)
        try:
            return (None if setting is None else parse(setting)) or UNLIMITED
        except (Invalid, ValueError):
            return UNLIMITED

    def _import_group(self, stream_id: int, topic_id: int, group: Group) -> None:
        document = GroupDocument(id=group.id, name=group.name, created_at=group.created_at)
        self._catalog.write_group(stream_id, topic_id, document)
        self._report.groups += 1

    # -------------------------------------------------------------------------------------------------------- messages

    def _import_partition(self, place: PartitionId, topic: Topic, segment_bytes: int, compression: Compression) -> None:
        partition = topic.partitions[place.partition]
        logs = self._source.logs(place)
        if not self._source.partition(place).is_dir():
            self._report.lose(f"{self._source.partition(place)}: the folder is missing; the partition is empty")
        is_purged = partition.purges > self._source.purges_done(place)
        if is_purged:
            self._report.note(f"{self._source.partition(place)}: Iggy was about to purge it; it is imported empty")
            logs = []
        logs = [log for log in logs if log.ceiling is None or log.ceiling > partition.deleted_before]
        here = msgspec.structs.replace(place, stream=self._plan.streams[place.stream])
        folder = self._staged.partition(here)
        first = logs[0].start_offset if logs else 0
        offsets = {} if is_purged else self._offsets(place, topic)
        lonely = {} if is_purged else self._source.lonely_indexes(place)
        for start, path in lonely.items():
            self._report.lose(f"{path}: the log beside it is missing; its messages from offset {start} on are lost")
        if not any(log.size for log in logs):
            # An empty log can begin anywhere.
            last = max(logs[-1].start_offset if logs else 0, max(lonely, default=-1) + 1)
            first = max(last, self._consumed(offsets, last))
            self._report_consumed(place, last, first)
        seals = self._seals.of(here)
        writer = PartitionWriter(self._files, folder, place.partition, segment_bytes, first, compression, seals.batches)
        try:
            end = max(first, max(lonely, default=-1) + 1)
            for log in logs:
                end = max(end, self._copy(place, log, writer))
            consumed = self._consumed(offsets, end)
            self._report_consumed(place, end, consumed)
            end = writer.finish(max(end, consumed))
        except BaseException:
            writer.abandon()
            raise
        self._store_offsets(place, OffsetFiles(self._files, folder, seals.offsets), offsets, end)
        self._report.partitions += 1

    def _copy(self, place: PartitionId, log: LogFile, writer: PartitionWriter) -> int:
        """Returns up to where offsets have been given out."""
        index = self._source.index(log)
        segment: ClassicSegment | ModernSegment
        if self._source.generation is Generation.CLASSIC:
            segment = ClassicSegment(log, index, self._cipher, self._reading, self._report)
            found = batched(segment.messages(self._advance), place.partition)
        else:
            segment = ModernSegment(log, index, self._cipher, self._reading, place.partition, self._report)
            found = segment.batches(self._advance)
        for batch in found:
            writer.append(batch)
            self._report.messages += batch.messages
            self._report.message_bytes += len(batch.content)
        return max(segment.next_offset, segment.given_out)

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)

    # ---------------------------------------------------------------------------------------------------------- offsets

    def _offsets(self, place: PartitionId, topic: Topic) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for kind, name in OFFSET_FOLDERS.items():
            for identity, offset in self._source.stored_offsets(place, name, self._report).items():
                if kind is Kind.GROUP and identity not in topic.groups:
                    path = self._source.partition(place) / "offsets" / name / str(identity)
                    self._report.note(f"{path}: the offset of a group that does not exist any more; not imported")
                    continue
                found[kind, identity] = offset
        return found

    @staticmethod
    def _consumed(offsets: Mapping[Key, int], end: int) -> int:
        """The offset after everything that a consumer has read. A number is never given to a second message, also if
        the first one was lost."""
        return max((offset + 1 for offset in offsets.values() if offset < end + LOST_IN_MEMORY_MAX), default=0)

    def _report_consumed(self, place: PartitionId, end: int, consumed: int) -> None:
        if consumed > end:
            self._report.note(
                f"{self._source.partition(place)}: consumers have stored offsets up to {consumed - 1}, but Iggy lost "
                f"the messages from offset {end} on; the next message gets offset {consumed}"
            )

    def _store_offsets(self, place: PartitionId, files: OffsetFiles, offsets: Mapping[Key, int], end: int) -> None:
        kept: dict[Key, int | None] = {}
        for (kind, identity), offset in offsets.items():
            if offset < end:
                kept[kind, identity] = offset
                continue
            path = self._source.partition(place) / "offsets" / OFFSET_FOLDERS[kind] / str(identity)
            self._report.lose(f"{path}: offset {offset} is far after the newest message ({end - 1}); not imported")
        files.write(kept, sync=False)
        self._report.offsets += len(kept)

    def _report_unknown(self) -> None:
        """Folders that the catalogue does not list: of deleted topics, or of those whose entries are damaged."""
        for place in self._source.partitions():
            stream = self._catalogue.streams.get(place.stream)
            topic = None if stream is None else stream.topics.get(place.topic)
            size = sum(log.size for log in self._source.logs(place))
            if size and (topic is None or place.partition >= len(topic.partitions)):
                self._report.lose(
                    f"{self._source.partition(place)}: {size} bytes of messages, but the catalogue does not have this "
                    "partition (any more); not imported"
                )

    # ------------------------------------------------------------------------------------------------- users and tokens

    def _import_users(self) -> None:
        token_id = max(self._target.tokens, default=-1) + 1
        for user in self._catalogue.users.values():
            mark = self._import_user(user)
            for token in user.tokens.values():
                where = f"the personal access token {token.name!r} of user {user.name!r}"
                if mark is None:
                    self._report.lose(f"{where}: not imported, because its user is not")
                elif token.expires_at and token.expires_at <= self._now:
                    self._report.note(f"{where}: has expired; not imported")
                elif len(token.name.encode()) not in TOKEN_NAME_BYTES:
                    self._report.lose(f"{where}: such a name is not possible here; not imported")
                else:
                    document = TokenDocument(
                        id=token_id,
                        user_id=self._plan.users.get(user.id, ROOT),
                        user_mark=mark,
                        name=token.name,
                        hash=token.hash,
                        created_at=token.created_at,
                        expires_at=token.expires_at,
                    )
                    content = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
                    self._catalog.write_token(token_id, self._sealed(f"{TOKENS_FOLDER}/{token_id}.json", content))
                    self._move(f"{TOKENS_FOLDER}/{token_id}.json")
                    token_id += 1
                    self._report.tokens += 1

    def _sealed(self, name: str, content: bytes) -> bytes:
        """A document as it is stored under a name in the target."""
        return sealed_documents.sealed(content, name, self._seals.documents)

    def _import_user(self, user: User) -> str | None:
        """Returns the mark of the user; None if the target has no such user."""
        identity = self._plan.users.get(user.id)
        if identity is None:
            return self._plan.root_mark
        if not intact(user.password_hash) or len(user.name.encode()) not in NAME_BYTES:
            self._report.lose(f"user {user.name!r}: its name or its password hash is not possible here; not imported")
            return None
        document = UserDocument(
            id=identity,
            mark=secrets.token_hex(16),
            username=user.name,
            created_at=user.created_at,
            status=user.status,
            password_hash=user.password_hash,
            permissions=moved(user, self._plan, self._report),
        )
        self._catalog.write_user(identity, self._sealed(f"{USERS_FOLDER}/{identity}.json", encoded(document)))
        self._move(f"{USERS_FOLDER}/{identity}.json")
        self._report.users += 1
        return document.mark
