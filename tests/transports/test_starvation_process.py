"""One client cannot starve the others: hostile clients of each kind against a server process, over real sockets.

While they hold what they could get, an ordinary producer and consumer continue, and the server's memory stays below
what it was and what GET /limits reports. In `make test` the limits are small, so that few clients exceed them; `make
test-long` has the default configuration, and twice as many clients as an audit has found to be enough. On a quiet
machine, `make starvation` also checks the rate of the ordinary clients: they have to keep half of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.app.support.process import starting
from tests.support.running import run
from tests.transports.support.siege import KINDS, MIB, SETTINGS, Besieged, ordinary

SMALL = {
    "IGGY_SYSTEM_LIMITS_TAIL_BYTES": str(4 * MIB),
    "IGGY_SYSTEM_LIMITS_RESPONSES_BYTES": str(16 * MIB),
    "IGGY_SYSTEM_LIMITS_UNAUTHENTICATED_BYTES": str(2 * MIB),
    "IGGY_HTTP_LIMITS_BODIES_BYTES": str(16 * MIB),
}
FEW = {
    "partial texts": 100,
    "announced": 10,
    "tiny chunks": 100,
    "unread polls, TCP": 6,
    "unread polls, WebSocket": 6,
    "unread polls, HTTP JSON": 20,
    "unread polls, HTTP batches": 20,
    "unread polls, /ws": 20,
    "unread polls, HTTP/3": 40,
    "unread polls, QUIC": 6,
    "unread subscriptions": 20,
    "unread tails": 50,
    "unread documents": 50,
    "unheard sends": 2,
}
GROWTH_MAX = 128 * MIB
"""With this few. Without the limits, clients that poll and do not read have 280 MiB and more, and unacknowledged sends
700 MiB."""
MANY = {
    "partial texts": 1080,
    "announced": 10,
    "tiny chunks": 280,
    "unread polls, TCP": 60,
    "unread polls, WebSocket": 60,
    "unread polls, HTTP JSON": 60,
    "unread polls, HTTP batches": 60,
    "unread polls, /ws": 60,
    "unread polls, HTTP/3": 200,
    "unread polls, QUIC": 60,
    "unread subscriptions": 100,
    "unread tails": 200,
    "unread documents": 200,
    "unheard sends": 4,
}
SHARED = frozenset({"unread subscriptions", "unread tails", "unread documents"})
"""This few hold less than what allocators keep: how they are counted is tested without a process."""
ROUNDS = 100
OVERHEAD_BYTES = 64 * MIB
"""What the process may add for requests in progress and for memory that allocators keep."""
ROOMS = (
    "system.limits.frames_bytes",
    "http.limits.bodies_bytes",
    "system.limits.unauthenticated_bytes",
    "system.limits.responses_bytes",
    "system.limits.unflushed_bytes",
)
RATES = "WHIPPET_STARVATION_RATES" in os.environ
"""Rates are for a quiet machine: `make starvation` compares them."""
SECONDS = 5.0
PAUSE_SECONDS = 0.005
"""An ordinary producer does more than send."""
TRIES = 3
"""The machine may be busy with something else during one of them."""


@contextlib.contextmanager
def besieging(factory: pytest.TempPathFactory, large_bytes: int, **settings: str) -> Iterator[Besieged]:
    with starting(factory.mktemp("siege") / "data") as start:
        gateway = start(**SETTINGS, **settings)
        besieged = Besieged(gateway)
        run(besieged.prepare(large_bytes))
        yield besieged
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
        said = [*gateway.out, *gateway.err]
        wrong = [any(word in line for word in ("Traceback", "ERROR", "defect")) for line in said]
        assert True not in wrong, said[wrong.index(True) :][:60]


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with besieging(tmp_path_factory, 48 * MIB, **SMALL) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
async def test_ordinary_clients_are_served_while_hostile_ones_hold_all_they_can(besieged: Besieged, kind: str) -> None:
    async with ordinary(besieged) as pair:
        await pair.rounds(ROUNDS)
        besieged.forget_peak()
        before = besieged.resident_bytes
        async with KINDS[kind](besieged, FEW[kind]):
            await pair.rounds(ROUNDS)
    if kind not in SHARED:
        assert (besieged.peak_bytes - before) / MIB < GROWTH_MAX / MIB


@pytest.fixture(scope="module")
def defaults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    with besieging(tmp_path_factory, 512 * MIB) as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, "all of them"])
async def test_ordinary_clients_keep_their_rate_and_memory_stays_limited(defaults: Besieged, kind: str) -> None:
    allowed = await defaults.limit(*ROOMS) + OVERHEAD_BYTES
    async with ordinary(defaults) as pair, contextlib.AsyncExitStack() as ends:
        await pair.rounds(ROUNDS)
        alone = await pair.rounds_in(SECONDS, pause=PAUSE_SECONDS)
        defaults.forget_peak()
        before = defaults.resident_bytes
        for each in KINDS if kind == "all of them" else [kind]:
            await ends.enter_async_context(KINDS[each](defaults, MANY[each]))
        besieged = max([await pair.rounds_in(SECONDS, pause=PAUSE_SECONDS) for _ in range(TRIES)])
        peak = defaults.peak_bytes
    # For `make starvation`.
    growth = (peak - before) // MIB
    print(f"{kind}: {alone} rounds without hostile clients, {besieged} with them, {growth} MiB more")  # noqa: T201
    if RATES:
        assert besieged > alone / 2
    assert (peak - before) / MIB < allowed / MIB
