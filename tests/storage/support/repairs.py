"""A stopped data folder with an archive that has all of it, to be damaged, checked and repaired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.storage.archive.support.archives import archived
from tests.storage.support.numbered_sends import by
from tests.storage.support.ways import WAYS
from tests.storage.support.world import opened, split, texts
from whippet.storage import batch as batches
from whippet.storage.archive.objects import LocalObjects
from whippet.storage.archive.repairing import ArchiveSource
from whippet.storage.documents import GroupDocument, StreamDocument, TopicDocument
from whippet.storage.files import Buffer, Files
from whippet.storage.layout import ASIDE_FOLDER
from whippet.storage.offsets import Kind
from whippet.storage.options import StoreOptions
from whippet.storage.repair import Repair
from whippet.storage.repair_source import Finding, Outcome
from whippet.storage.segment import Damage
from whippet.storage.store import now_us
from whippet.storage.survey import survey_all

SEGMENT_BYTES = 1100
BATCHES = 9
PARTITION = "streams/0/topics/0/partitions/0"
NOT_COMPARED = ("LOCK", "archive_claims.json")


class Mirrored:
    """A data folder and its archive, and what the folder was."""

    def __init__(self, root: Path, way: str) -> None:
        self.root = root
        self.data = root / "data"
        self.partition = self.data / PARTITION
        self.options: dict[str, Any] = WAYS[way]
        self.messages: list[bytes] = []
        self.before: dict[str, bytes] = {}

    async def fill(self) -> None:
        """Two partitions with some segments each, the last one open; offsets, numbered sends, users and groups."""
        async with archived(self.root, segment_bytes=SEGMENT_BYTES, **self.options) as (store, archiver):
            await store.create_stream(StreamDocument(id=0, name="orders", created_at=1))
            await store.create_topic(0, TopicDocument(id=0, name="eu", created_at=1, partitions_count=2))
            await store.create_topic(0, TopicDocument(id=1, name="us", created_at=1, partitions_count=1))
            await store.write_group(0, 0, GroupDocument(id=5, name="workers", created_at=9))
            await store.write_user(1, b'{"id": 1, "name": "root"}')
            first, second = store.partitions_of(0, 0)
            (other,) = store.partitions_of(0, 1)
            for i in range(BATCHES):
                batch = texts(f"message {i} ".encode() * 20, f"and {i} ".encode() * 10)
                await (first.append_once(batch, by(i)) if i % 3 == 0 else first.append(batch))
                await second.append(texts(f"second {i} ".encode() * 15))
                await other.append(texts(f"the other {i} ".encode() * 20, f"and {i} ".encode() * 10))
            for partition in (first, second, other):
                await partition.append(texts("the last log is never empty"))
            await first.store_offset(Kind.CONSUMER, 7, 3)
            await first.store_offset(Kind.CONSUMER, 7, 5)
            await first.store_offset(Kind.GROUP, 5, 2)
            self.messages = await everything(first)
            assert await archiver.round()
        self.before = self.files()
        assert self.logs()[-1].stat().st_size

    def files(self) -> dict[str, bytes]:
        """Every file of the folder by its path, but those that are kept aside."""
        found = {}
        for path in self.data.rglob("*"):
            name = str(path.relative_to(self.data))
            if path.is_file() and f"{ASIDE_FOLDER}/" not in name and ".damaged" not in name and name != "LOCK":
                found[name] = path.read_bytes()
        return found

    def kept_aside(self) -> list[Path]:
        return [
            path
            for path in self.data.rglob("*")
            if path.is_file() and (path.parent.name == ASIDE_FOLDER or ".damaged" in path.name)
        ]

    def reset(self) -> None:
        """Puts the folder back to what it was."""
        for path in self.kept_aside():
            path.unlink()
        now = self.files()
        for name in now.keys() - self.before.keys():
            (self.data / name).unlink()
        for name, content in self.before.items():
            if now.get(name) != content:
                (self.data / name).parent.mkdir(parents=True, exist_ok=True)
                (self.data / name).write_bytes(content)

    def store_options(self) -> StoreOptions:
        return StoreOptions(path=str(self.data), keyring=self.options["keyring"])

    def damage(self) -> list[Damage]:
        """What a check finds."""
        return [damage for found in survey_all(self.store_options()) for damage in found.damage]

    def repair(self, files: Files | None = None, *, archive: bool = True, **chosen: Any) -> list[Outcome]:
        source = ArchiveSource(LocalObjects(str(self.root / "archive"), Files()), now_us) if archive else None
        return list(Repair(self.store_options(), files or Files(), source, **chosen).run())

    async def readable(self) -> list[bytes]:
        """What a server delivers of the first partition."""
        async with opened(self.data, **self.options) as store:
            assert not store.problems
            assert not list(store.damage)
            return await everything(next(iter(store.partitions_of(0, 0))))

    def logs(self) -> list[Path]:
        return sorted(self.partition.glob("*.log"))


async def everything(partition: Any) -> list[bytes]:
    found = await partition.read(0, 1000)
    return [message.payload for whole in split(found.buffers) for message in batches.messages(whole)]


async def mirrored(root: Path, way: str = "plain") -> Mirrored:
    made = Mirrored(root, way)
    await made.fill()
    return made


def findings(outcomes: list[Outcome]) -> list[Finding]:
    return [finding for outcome in outcomes for finding in outcome.findings]


def flipped(content: bytes, position: int, mask: int) -> bytes:
    return content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :]


class Killed(BaseException):
    """The process has ended: nothing handles it."""


class Dying(Files):
    """The real disk, until the n-th change: that write is cut off half-way, any other change is not done."""

    def __init__(self, dies_at: int) -> None:
        self.left = dies_at

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def open_for_writing(self, path: str) -> int:
        self._count()
        return super().open_for_writing(path)

    def write(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        try:
            self._count()
        except Killed:
            content = b"".join(buffers)
            super().write(handle, [content[: len(content) // 2]], position)
            raise
        return super().write(handle, buffers, position)

    def truncate(self, handle: int, size: int) -> None:
        self._count()
        super().truncate(handle, size)

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._count()
        super().remove_tree(path)

    def make_folder(self, path: str) -> None:
        self._count()
        super().make_folder(path)
