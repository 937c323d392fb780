"""How many bytes the archiver sends in a second."""

from __future__ import annotations

import pytest

from whippet.storage.archive import pacing
from whippet.storage.archive.pacing import Pacer
from whippet.storage.errors import ArchiveUnavailable


class Time:
    """Advances only while somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Waiting:
    """An event whose waiting takes no time but advances the clock."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, seconds: float) -> bool:
        self._time.now += seconds
        return self._is_set


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(pacing, "time", found)
    return found


def paced(time: Time, bytes_per_second: int) -> Pacer:
    pacer = Pacer(bytes_per_second)
    pacer._stopping = Waiting(time)  # type: ignore[assignment]
    return pacer


def test_the_average_is_what_was_configured(time: Time) -> None:
    pacer = paced(time, bytes_per_second=1000)
    for size in (500, 1, 4499, 0, 5000):
        pacer.wait(size)
    pacer.wait(0)
    assert time.now == pytest.approx(110)


def test_time_without_uploads_is_not_made_up_for(time: Time) -> None:
    pacer = paced(time, bytes_per_second=1000)
    pacer.wait(1000)
    time.now += 100
    pacer.wait(1000)
    pacer.wait(1000)
    assert time.now == pytest.approx(201)


def test_without_a_limit_nobody_waits(time: Time) -> None:
    paced(time, bytes_per_second=0).wait(1 << 40)
    assert time.now == 100


@pytest.mark.parametrize("rate", [0, 1000])
def test_a_stop_ends_all_uploads(time: Time, rate: int) -> None:
    pacer = paced(time, rate)
    pacer.wait(1000)
    pacer.stop()
    with pytest.raises(ArchiveUnavailable, match="stopping"):
        pacer.wait(1)


def test_nothing_is_sent_while_something_forbids_it() -> None:
    def require(size: int) -> None:
        if size > 10:
            raise ArchiveUnavailable(f"{size} bytes are too many")

    for rate in (0, 1 << 30):
        pacer = Pacer(rate, require)
        pacer.wait(10)
        with pytest.raises(ArchiveUnavailable, match="11 bytes are too many"):
            pacer.wait(11)
