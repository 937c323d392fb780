"""What `whippet doctor` says about the clock; a time server is a thread here."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from whippet.app.diagnosis import clock
from whippet.app.diagnosis.finding import Status


@contextmanager
def time_server(ahead_s: float, garbled: bytes | None = None) -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", 0))

        def answer() -> None:
            _, client = link.recvfrom(512)
            whole, fraction = divmod(time.time() + 2_208_988_800 + ahead_s, 1)
            moment = struct.pack("!II", int(whole), int(fraction * 2**32))
            packet = bytearray(48)
            packet[0], packet[1], packet[32:40], packet[40:48] = 0x24, 2, moment, moment
            link.sendto(bytes(packet) if garbled is None else garbled, client)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{link.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("ahead_s", [-3600, 0, 3600])
def test_the_offset_is_what_a_time_server_says(ahead_s: int) -> None:
    with time_server(ahead_s) as server:
        found = list(clock.findings(server))
    last = found[-1]
    assert (last.status is Status.OK) is (ahead_s == 0)
    assert ahead_s == 0 or f"it is {-ahead_s:+.1f} s"[:10] in last.found


def test_an_answer_that_is_none_counts_as_no_answer() -> None:
    with time_server(0, b"nonsense") as server:
        assert clock.asked(server) is None


def test_a_server_that_does_not_answer_or_exist_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "ANSWER_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        assert clock.asked(f"127.0.0.1:{silent.getsockname()[1]}") is None
    assert clock.asked("no such host") is None
    assert all(each.status is not Status.FAIL for each in clock.findings("no such host"))


def test_a_clock_that_jumps_or_was_never_set_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_jump", lambda: 0.5)
    monkeypatch.setattr(clock, "EARLIEST", clock.LATEST)
    failed, jumped, *_ = clock.findings(None)
    assert (failed.status, "says the clock" in failed.found) == (Status.FAIL, True)
    assert (jumped.status, "it moved by +500 ms" in jumped.found) == (Status.WARN, True)
