"""Changes the catalogue on disk: a JSON document for every stream, topic, group, user and token (FORMAT.md, section 6).

All methods run on a shard's thread. Each change is one rename: of a new document over the old one, of a finished folder
into its place, or of a removed folder into the trash. So a crash leaves either the old state or the new one.
catalog_loading.py reads the documents; what they mean is up to the command layer.
"""

from __future__ import annotations

import contextlib
import uuid

import msgspec

from whippet.storage.document_checksums import with_checksum
from whippet.storage.documents import GroupDocument, NumbersDocument, StreamDocument, TopicDocument
from whippet.storage.errors import CatalogueError
from whippet.storage.files import Files, make_folders, replace
from whippet.storage.layout import (
    NUMBERS_FILE,
    STAGING_FOLDER,
    STREAM_FILE,
    TOKENS_FOLDER,
    TOPIC_FILE,
    TRASH_FOLDER,
    USERS_FOLDER,
    Layout,
    PartitionId,
    log_file,
    segment_of,
)

Document = StreamDocument | TopicDocument | GroupDocument | NumbersDocument


def encoded(document: Document) -> bytes:
    """A document as people can read it, without its checksum."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


class Catalog:
    """Writes and removes the documents and folders of one store."""

    def __init__(self, files: Files, layout: Layout, *, sync: bool) -> None:
        self._files = files
        self._layout = layout
        self._sync = sync
        self._staged = 0

    # -------------------------------------------------------------------------------------------------------- documents

    def write_stream(self, document: StreamDocument) -> None:
        self.write(f"{self._layout.stream(document.id)}/{STREAM_FILE}", document)

    def write_topic(self, stream_id: int, document: TopicDocument) -> None:
        self.write(f"{self._layout.topic(stream_id, document.id)}/{TOPIC_FILE}", document)

    def write_group(self, stream_id: int, topic_id: int, document: GroupDocument) -> None:
        folder = self._layout.groups(stream_id, topic_id)
        make_folders(self._files, folder)
        self._sync_folder(folder.rpartition("/")[0])
        self.write(f"{folder}/{document.id}.json", document)

    def remove_group(self, stream_id: int, topic_id: int, group_id: int) -> None:
        self._remove(f"{self._layout.groups(stream_id, topic_id)}/{group_id}.json")

    def write_user(self, user_id: int, document: bytes) -> None:
        self._replace(f"{self._layout.below(USERS_FOLDER)}/{user_id}.json", document)

    def remove_user(self, user_id: int) -> None:
        self._remove(f"{self._layout.below(USERS_FOLDER)}/{user_id}.json")

    def write_token(self, token_id: int, document: bytes) -> None:
        self._replace(f"{self._layout.below(TOKENS_FOLDER)}/{token_id}.json", document)

    def remove_token(self, token_id: int) -> None:
        self._remove(f"{self._layout.below(TOKENS_FOLDER)}/{token_id}.json")

    def write_numbers(self, reserved: int) -> None:
        self.write(self._layout.below(NUMBERS_FILE), NumbersDocument(reserved=reserved))

    def write(self, path: str, document: Document) -> None:
        self._replace(path, encoded(document))

    def _replace(self, path: str, content: bytes) -> None:
        replace(self._files, path, with_checksum(content), sync=self._sync)

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)
        # Sync even if the file was already gone: an earlier attempt may have failed at this point.
        with contextlib.suppress(FileNotFoundError):
            self._sync_folder(path.rpartition("/")[0])

    # ---------------------------------------------------------------------------------------------------------- folders

    def create_stream(self, document: StreamDocument) -> None:
        target = self._layout.stream(document.id)
        staged = self._stage()
        # The document comes last: replacing it syncs both names.
        self._files.make_folder(f"{staged}/{self._layout.topics(document.id).rpartition('/')[2]}")
        self.write(f"{staged}/{STREAM_FILE}", document)
        self._move_in(staged, target)

    def create_topic(self, stream_id: int, document: TopicDocument) -> None:
        """Creates the topic with all its partitions, or nothing."""
        target = self._layout.topic(stream_id, document.id)
        staged = self._stage()
        partitions = f"{staged}/{self._layout.partitions(stream_id, document.id).rpartition('/')[2]}"
        self._files.make_folder(partitions)
        for partition_id in range(document.partitions_count):
            self._make_partition(f"{partitions}/{partition_id}")
        self._sync_folder(partitions)
        self.write(f"{staged}/{TOPIC_FILE}", document)
        self._move_in(staged, target)

    def create_partitions(self, stream_id: int, document: TopicDocument, first: int) -> None:
        """Creates the partitions from `first` on that the new document counts, then writes the document."""
        for partition_id in range(first, document.partitions_count):
            self.create_partition(PartitionId(stream_id, document.id, partition_id))
        self.write_topic(stream_id, document)

    def create_partition(self, place: PartitionId) -> None:
        """Creates the folder of a partition. The document must already count it, or be written afterwards."""
        staged = self._stage()
        self._make_partition(staged)
        target = self._layout.partition(place)
        if self._files.exists(target):
            self._set_aside(target)
        for above in make_folders(self._files, target.rpartition("/")[0]):
            self._sync_folder(above)
        self._move_in(staged, target)

    def remove_partitions(self, stream_id: int, document: TopicDocument, count: int) -> TopicDocument:
        """Decides that the `count` highest partitions go, and returns the new document. `finish_removing` removes
        them."""
        left = document.partitions_count - count
        removing = (*document.removing, *range(left, document.partitions_count))
        decided = msgspec.structs.replace(
            document,
            partitions_count=left,
            removing=removing,
            incarnations=document.incarnations[:left],
            epochs=document.epochs[:left],
        )
        self.write_topic(stream_id, decided)
        return decided

    def finish_removing(self, stream_id: int, document: TopicDocument) -> TopicDocument:
        for partition_id in document.removing:
            self._discard(self._layout.partition(PartitionId(stream_id, document.id, partition_id)))
        document = msgspec.structs.replace(document, removing=())
        self.write_topic(stream_id, document)
        return document

    def remove_topic(self, stream_id: int, topic_id: int) -> None:
        self._discard(self._layout.topic(stream_id, topic_id))

    def remove_stream(self, stream_id: int) -> None:
        self._discard(self._layout.stream(stream_id))

    def restore(self, folder: str) -> None:
        """Returns when a folder whose removal failed is certain to exist; raises OSError if it does not."""
        self._files.list(folder)
        self._sync_folder(folder.rpartition("/")[0])

    def empty_trash(self) -> None:
        """Frees the space of what was removed, and of what was being created when the process crashed."""
        for folder in (TRASH_FOLDER, STAGING_FOLDER):
            path = self._layout.below(folder)
            make_folders(self._files, path)
            for item in self._files.list(path):
                if item.is_folder:
                    self._files.remove_tree(f"{path}/{item.name}")
                else:
                    self._files.remove(f"{path}/{item.name}")

    def _make_partition(self, folder: str) -> None:
        make_folders(self._files, folder)
        self._files.close(self._files.open_for_writing(log_file(folder, 0)))
        self._sync_folder(folder)

    def _set_aside(self, folder: str) -> None:
        """Clears the place of a folder that no document lists. If it has messages, it is kept under another name."""
        if any(segment_of(item.name) and item.size for item in self._files.list(folder)):
            self._files.rename(folder, f"{folder}.found-{uuid.uuid4().hex[:8]}")
        else:
            self._discard(folder)

    def _stage(self) -> str:
        self._staged += 1
        path = f"{self._layout.below(STAGING_FOLDER)}/{self._staged}"
        if self._files.exists(path):
            self._files.remove_tree(path)
        self._files.make_folder(path)
        return path

    def _move_in(self, staged: str, target: str) -> None:
        if self._files.exists(target):
            raise CatalogueError(f"{target}: already exists")
        self._files.rename(staged, target)
        try:
            self._sync_folder(target.rpartition("/")[0])
        except OSError:
            # The caller gets an error, so the folder must not be in the way of the next attempt.
            with contextlib.suppress(OSError):
                self._files.rename(target, staged)
            raise

    def _discard(self, folder: str) -> None:
        """Moves a folder into the trash, or back if the move cannot be made durable."""
        above = folder.rpartition("/")[0]
        if not self._files.exists(folder):
            # An earlier attempt may have moved it and failed to sync that.
            with contextlib.suppress(FileNotFoundError):
                self._sync_folder(above)
            return
        trash = f"{self._layout.below(TRASH_FOLDER)}/{uuid.uuid4().hex}"
        self._files.rename(folder, trash)
        try:
            self._sync_folder(above)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.rename(trash, folder)
                self._sync_folder(above)
            raise

    def _sync_folder(self, path: str) -> None:
        if self._sync:
            self._files.sync_folder(path)
