"""The search for the largest datagram that a path carries."""

from __future__ import annotations

import pytest

from whippet.transports.quic_path import DATAGRAM_BYTES_MIN, STEPS, TRIES, PathProbe

LARGEST = 16_384


def search(probe: PathProbe, carries: int) -> list[int]:
    """Answers every probe like a path that carries datagrams up to this size; returns the sizes that were tried."""
    tried = []
    while (size := probe.next_size) is not None:
        probe.on_sent()
        assert probe.next_size is None
        tried.append(size)
        grew = probe.on_result(size, arrived=size <= carries, is_current=True)
        assert grew == (size <= carries)
    return tried


@pytest.mark.parametrize("carries", [LARGEST, 9_000, 1_500, 1_452, 1_420, 1_300])
def test_the_largest_size_that_arrives_is_found(carries: int) -> None:
    probe = PathProbe(DATAGRAM_BYTES_MIN, LARGEST)
    probe.begin()
    search(probe, carries)
    assert probe.carried == max(size for size in (LARGEST, *STEPS) if size <= carries)


def test_a_path_that_carries_nothing_larger_keeps_the_size_it_began_with() -> None:
    probe = PathProbe(DATAGRAM_BYTES_MIN, LARGEST)
    probe.begin()
    assert search(probe, 0) == [size for size in (LARGEST, *STEPS) for _ in range(TRIES)]
    assert probe.carried == DATAGRAM_BYTES_MIN


def test_no_size_above_the_limit_of_the_peer_is_tried() -> None:
    probe = PathProbe(DATAGRAM_BYTES_MIN, LARGEST)
    probe.limit(1_452)
    probe.begin()
    assert search(probe, LARGEST) == [1_452]


def test_the_search_restarts_on_another_path_or_when_nothing_gets_through() -> None:
    probe = PathProbe(1_400, LARGEST)
    probe.begin()
    assert probe.carried == 1_400
    search(probe, LARGEST)
    probe.narrow()
    assert (probe.carried, probe.next_size) == (DATAGRAM_BYTES_MIN, LARGEST)
    probe.begin()
    assert (probe.carried, probe.next_size) == (1_400, LARGEST)


def test_a_probe_of_another_path_proves_nothing_about_this_one() -> None:
    probe = PathProbe(DATAGRAM_BYTES_MIN, LARGEST)
    probe.begin()
    probe.on_sent()
    probe.begin()
    assert not probe.on_result(LARGEST, arrived=True, is_current=False)
    assert (probe.carried, probe.next_size) == (DATAGRAM_BYTES_MIN, LARGEST)
