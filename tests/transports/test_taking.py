"""Whether a client takes what it is sent: seen at intervals, while there is always something on its way."""

from __future__ import annotations

from whippet.transports.taking import TAKEN_BYTES_MIN, Taking

SECONDS = 60.0


def test_who_has_nothing_to_take_has_not_stalled() -> None:
    taking = Taking()
    assert not any(taking.has_stalled(now, 0, 100, SECONDS) for now in (1.0, 100.0, 1000.0))


def test_who_takes_everything_that_was_due_is_kept_however_little_it_was() -> None:
    taking = Taking()
    assert not any(taking.has_stalled(now, 50, int(now) * 50, SECONDS) for now in map(float, range(1, 1000, 10)))


def test_a_slow_reader_of_much_is_kept_as_long_as_it_takes_enough() -> None:
    untaken = 100 * TAKEN_BYTES_MIN
    for rate, is_kept in ((TAKEN_BYTES_MIN // 50, True), (TAKEN_BYTES_MIN // 100, False)):
        taking, found = Taking(), False
        for now in range(1, 500):
            found = found or taking.has_stalled(float(now), untaken - now * rate, now * rate, SECONDS)
        assert found is not is_kept


def test_who_takes_nothing_is_not_kept_even_if_more_and_more_is_due() -> None:
    taking = Taking()
    assert not any(taking.has_stalled(float(now), now, 7, SECONDS) for now in range(1, 62))
    assert taking.has_stalled(62.0, 62, 7, SECONDS)


def test_a_pause_with_nothing_due_begins_anew() -> None:
    taking = Taking()
    assert not taking.has_stalled(1.0, 10, 0, SECONDS)
    assert not taking.has_stalled(50.0, 0, 10, SECONDS)
    assert not taking.has_stalled(100.0, 10, 10, SECONDS)
    assert taking.has_stalled(161.0, 10, 10, SECONDS)
