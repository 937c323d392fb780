"""Clients that do not read are detected, although there are bytes in flight at every check."""

from __future__ import annotations

from whippet.transports.admission.stall_detector import CONTENDED_BYTES_MIN, DELIVERED_BYTES_MIN, StallDetector

SECONDS = 60.0


def test_a_client_with_nothing_pending_has_not_stalled() -> None:
    stalling = StallDetector()
    assert not any(stalling.has_stalled(now, 0, SECONDS, delivered=100) for now in (1.0, 100.0, 1000.0))


def test_a_client_that_takes_everything_is_kept_however_little_it_is() -> None:
    stalling = StallDetector()
    assert not any(
        stalling.has_stalled(now, 50, SECONDS, delivered=int(now) * 50) for now in map(float, range(1, 1000, 10))
    )


def test_a_slow_reader_is_kept_while_it_takes_enough() -> None:
    untaken = 100 * DELIVERED_BYTES_MIN
    for rate, is_kept in ((DELIVERED_BYTES_MIN // 50, True), (DELIVERED_BYTES_MIN // 100, False)):
        stalling, found = StallDetector(), False
        for now in range(1, 500):
            found = found or stalling.has_stalled(float(now), untaken - now * rate, SECONDS, delivered=now * rate)
        assert found is not is_kept


def test_a_client_that_takes_nothing_stalls_even_while_more_is_sent() -> None:
    stalling = StallDetector()
    assert not any(stalling.has_stalled(float(now), now, SECONDS, delivered=7) for now in range(1, 62))
    assert stalling.has_stalled(62.0, 62, SECONDS, delivered=7)


def test_a_pause_with_nothing_pending_restarts_the_clock() -> None:
    stalling = StallDetector()
    assert not stalling.has_stalled(1.0, 10, SECONDS, delivered=0)
    assert not stalling.has_stalled(50.0, 0, SECONDS, delivered=10)
    assert not stalling.has_stalled(100.0, 10, SECONDS, delivered=10)
    assert stalling.has_stalled(161.0, 10, SECONDS, delivered=10)


def test_a_reset_restarts_the_clock() -> None:
    stalling, left = StallDetector(), 100 * DELIVERED_BYTES_MIN
    assert not stalling.has_stalled(500.0, left, SECONDS, delivered=7)
    assert stalling.has_stalled(561.0, left, SECONDS, delivered=7)
    stalling.reset()
    assert not stalling.has_stalled(562.0, left, SECONDS, delivered=7)


def test_a_client_that_takes_nothing_stalls_sooner_while_others_wait() -> None:
    stalling = StallDetector()
    assert not stalling.has_stalled(1.0, 100 * DELIVERED_BYTES_MIN, SECONDS, delivered=0)
    assert not stalling.has_stalled(7.0, 100 * DELIVERED_BYTES_MIN, SECONDS, delivered=0)
    assert stalling.has_stalled(8.0, 100 * DELIVERED_BYTES_MIN, SECONDS, delivered=0, is_contended=True)


def test_a_slow_reader_is_kept_while_others_wait() -> None:
    stalling = StallDetector()
    for now in range(1, 100):
        taken = now * (CONTENDED_BYTES_MIN // 4)
        left = 100 * DELIVERED_BYTES_MIN - taken
        assert not stalling.has_stalled(float(now), left, SECONDS, delivered=taken, is_contended=True)
