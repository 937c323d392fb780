"""Archives for tests: a store with an archiver that runs when a test says so, and archives that fail on demand."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.storage.support.world import opened
from whippet.storage.archive.archiver import Archiver
from whippet.storage.archive.objects import Listed, LocalObjects, Objects, Version
from whippet.storage.archive.restoring import Restored, Restoring
from whippet.storage.errors import ArchiveUnavailable
from whippet.storage.files import Buffer, Files
from whippet.storage.options import ArchiveOptions, StoreOptions
from whippet.storage.store import Store, now_us


class Crash(BaseException):
    """The end of the process: nothing handles it, and nothing is done after it."""


class Flaky(LocalObjects):
    """An archive in a folder that counts its operations and lets a test interfere with any of them."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(str(path), Files())
        self.done: list[str] = []
        """Every operation that changes or reads something, with the name of its object."""
        self.before: Callable[[str], None] = lambda operation: None
        """Called before an operation; what it raises, the operation raises."""
        self.after: Callable[[str], None] = lambda operation: None
        self.spoil: Callable[[str, bytes], bytes] = lambda name, content: content
        """What is stored instead of what was sent."""
        self.hidden: set[str] = set()
        """Names that a listing does not have yet."""

    @contextlib.contextmanager
    def _operation(self, kind: str, name: str) -> Iterator[None]:
        operation = f"{kind} {name}"
        self.done.append(operation)
        self.before(operation)
        yield
        self.after(operation)

    def put(self, name: str, content: bytes) -> None:
        with self._operation("put", name):
            super().put(name, self.spoil(name, content))

    def put_parts(self, name: str, parts: Iterable[bytes]) -> None:
        with self._operation("put", name):
            super().put_parts(name, [self.spoil(name, part) for part in parts])

    def replace(self, name: str, content: bytes, expected: Version | None) -> Version:
        with self._operation("replace", name):
            return super().replace(name, content, expected)

    def read(self, name: str, start: int, length: int) -> Buffer:
        with self._operation("read", name):
            return super().read(name, start, length)

    def list(self, below: str) -> Iterator[Listed]:
        with self._operation("list", below):
            yield from [item for item in super().list(below) if item.name not in self.hidden]

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            with self._operation("remove", name):
                super().remove([name])


def unavailable(operation: str) -> None:
    raise ArchiveUnavailable(f"{operation} failed, because the test wants it")


class Dying(Flaky):
    """An archive that does not respond any more from an operation on, counted from 0: for the archive, that is how the
    end of a server looks."""

    def __init__(self, path: str | Path, when: str) -> None:
        super().__init__(path)
        self.is_dead = False
        self._left: int | None = None
        setattr(self, when, self._count)

    def die_at(self, number: int) -> None:
        self._left = number

    def _count(self, operation: str) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.is_dead = True
                self.before = unavailable
                unavailable(operation)


def archiver_of(store: Store, objects: Objects, **options: Any) -> Archiver:
    return Archiver(store, ArchiveOptions(**options), Files(), objects)


@contextlib.asynccontextmanager
async def archived(
    folder: Path, objects: Objects | None = None, *, protects_expired: bool = False, **options: Any
) -> AsyncIterator[tuple[Store, Archiver]]:
    """A store in `folder/data` whose archiver has claimed `folder/archive` and runs when a test calls `round`. It does
    not archive anything at its end."""
    async with opened(folder / "data", **options) as store:
        chosen = objects or LocalObjects(str(folder / "archive"), Files())
        archiver = archiver_of(store, chosen, protects_expired=protects_expired, interval_s=1e6)
        await archiver.start()
        try:
            yield store, archiver
        finally:
            archiver.refused = True
            await archiver.stop(seconds=10)


def restore(folder: Path, target: str = "restored", objects: Objects | None = None, **chosen: Any) -> Restored:
    """Restores `folder/archive` into another folder beside it."""
    files = chosen.pop("files", None) or Files()
    clock = chosen.pop("clock", now_us)
    found = objects or LocalObjects(str(folder / "archive"), Files())
    options = StoreOptions(path=str(folder / target), keyring=chosen.pop("keyring", None))
    return Restoring(found, options, files, clock, **chosen).run()
