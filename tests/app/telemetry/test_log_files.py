"""The log in files: complete, bounded in size and age, and harmless if the disk fails."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import HANGS_S
from whippet.app.config.system import Logging
from whippet.app.telemetry import log_files
from whippet.app.telemetry.log_files import NAME, OLDER, LogFiles

DAY = 24 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self, data_folder: Path) -> None:
        self.data_folder = data_folder
        self.clock = Clock()
        self.logger = logging.Logger("test")
        self.files = self.make()

    def make(self) -> LogFiles:
        files = LogFiles(logging.Formatter("%(message)s"), self.clock)
        self.logger.handlers[:] = [files.handler]
        return files

    def begin_again(self, settings: Logging) -> None:
        self.files.stop()
        self.files = self.make()
        self.files.start(str(self.data_folder), settings)

    def log(self, text: str) -> None:
        """The line is written on return."""
        self.logger.warning("%s", text)
        self.files.handler.queue.join()

    def older(self, folder: str = "logs") -> list[Path]:
        return sorted(path for path in (self.data_folder / folder).iterdir() if OLDER.fullmatch(path.name))

    def lines(self, folder: str = "logs") -> list[str]:
        paths = [*self.older(folder), self.data_folder / folder / NAME]
        return [line for path in paths for line in path.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.files.stop()


def test_lines_from_before_the_start_are_written_afterwards(world: World, tmp_path: Path) -> None:
    world.logger.info("early %s", "line")
    assert not (tmp_path / "logs").exists()
    world.files.start(str(tmp_path), Logging(path="logs"))
    world.logger.warning("late\nline \udc80")
    world.files.stop()
    assert world.lines() == ["early line", "late", "line \\udc80"]
    assert (tmp_path / "logs" / NAME).stat().st_mode & 0o077 == 0


def test_a_new_start_appends_to_the_file_in_the_configured_folder(world: World) -> None:
    for text in ("first", "second"):
        world.begin_again(Logging(path="elsewhere"))
        world.log(text)
    assert world.lines("elsewhere") == ["first", "second"]
    assert not world.older("elsewhere")


def test_a_file_that_would_exceed_its_size_is_rotated(world: World) -> None:
    world.begin_again(Logging(max_file_size=100, max_total_size=0))
    texts = [f"{number:039}" for number in range(7)]
    for text in texts:
        world.clock.now += 1
        world.log(text)
    assert [path.stat().st_size for path in world.older()] == [80, 80, 80]
    assert world.lines() == texts


def test_a_size_of_0_is_no_limit(world: World) -> None:
    world.begin_again(Logging(max_file_size=0, max_total_size=0))
    for _ in range(100):
        world.log("x" * 1000)
    assert not world.older()


def test_the_oldest_files_are_removed_when_the_total_size_is_exceeded(world: World, tmp_path: Path) -> None:
    world.begin_again(Logging(max_file_size=100, max_total_size=250))
    (tmp_path / "logs" / "mine.log").write_text("x" * 1000)
    for number in range(20):
        world.clock.now += 1
        world.log(f"{number:039}")
    sizes = [path.stat().st_size for path in (*world.older(), tmp_path / "logs" / NAME)]
    assert sum(sizes) <= 250
    assert world.lines() == [f"{number:039}" for number in range(20 - len(world.lines()), 20)]
    assert (tmp_path / "logs" / "mine.log").exists(), "only our own files are removed"


def test_files_are_kept_for_the_retention_and_no_longer(world: World, tmp_path: Path) -> None:
    world.begin_again(Logging(max_file_size=100, retention=7 * DAY))
    for number in range(4):
        world.clock.now += 1
        world.log(f"{number:060}")
    for path in world.older():
        os.utime(path, (world.clock.now, world.clock.now))
    world.clock.now += 6 * DAY
    world.files.tidy()
    assert len(world.older()) == 3
    world.clock.now += DAY
    os.utime(tmp_path / "logs" / NAME, (world.clock.now, world.clock.now))
    world.files.tidy()
    kept = world.older()
    assert [path.read_text() for path in kept] == [f"{3:060}\n"], "the file that grew was closed for its age"
    assert (tmp_path / "logs" / NAME).stat().st_size == 0


def test_logging_never_waits_for_the_disk_and_dropped_lines_are_counted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "WAITING_MAX", 3)
    world.files = world.make()
    for number in range(10):
        world.logger.warning("%d", number)
    world.files.start(str(tmp_path), Logging())
    world.files.handler.queue.join()
    world.logger.warning("after")
    world.files.stop()
    report = "7 lines were dropped here, because the disk was too slow"
    assert world.lines() == ["0", "1", "2", report, "after"]


def test_a_failing_disk_is_reported_once_on_stderr_and_does_no_harm(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(line: bytes) -> None:
        raise OSError(28, "No space left on device")

    world.files.start(str(tmp_path), Logging())
    file = world.files._file
    assert file is not None
    write, file.lines.write = file.lines.write, full  # type: ignore[method-assign]
    world.log("lost")
    world.log("lost as well")
    file.lines.write = write  # type: ignore[method-assign]
    world.log("back")
    assert world.lines() == ["back"]
    assert capsys.readouterr().err == f"whippet: {tmp_path}/logs/{NAME} cannot be written: No space left on device\n"


def test_stopping_writes_every_line_even_if_the_queue_is_full(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "WAITING_MAX", 5)
    world.files = world.make()
    world.files.start(str(tmp_path), Logging())
    file = world.files._file
    assert file is not None
    going = threading.Event()
    emit = file.emit

    def slow(record: logging.LogRecord) -> None:
        assert going.wait(HANGS_S)
        emit(record)

    file.emit = slow  # type: ignore[method-assign]
    for number in range(5):
        world.logger.warning("%d", number)
    stopping = threading.Thread(target=world.files.stop)
    stopping.start()
    going.set()
    stopping.join(HANGS_S)
    assert world.lines()[:4] == ["0", "1", "2", "3"]
