"""Numbers in JSON responses, for clients that keep large integers exact.

Iggy's Web UI decodes responses with json-bigint, which reads every number of more than 15 characters as an integer, and
fails if it has decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transports.http.support.operations import ENDINGS, ROUTES, ask, do, lease_of, started
from whippet.app import rates
from whippet.app.telemetry.machine import Machine, Reading
from whippet.transports.http.forms.field_types import f32

CHARACTERS_MAX = 15
U64 = frozenset(
    {"created_at", "expires_at", "expiry", "message_expiry", "offset", "current_offset", "stored_offset", "timestamp"}
    | {
        "origin_timestamp",
        "checksum",
        "max_topic_size",
        "start_time",
        "run_time",
        "id",
        "at",
        "next_offset",
        "incarnation",
        "metadata_op",
        "reached",
        "owner_generation",
        "value",
        "default",
    }
)
"""Fields that are integers of 64 bits, or ids of 128, in Iggy as well; `value` and `default` are from GET /limits, and
`reached` is the time at which a search is."""


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, Number]]:
    match value:
        case Number():
            yield name, value
        case dict():
            for member, each in value.items():
                yield from numbers(each, member)
        case list():
            for each in value:
                yield from numbers(each, name)


def numbers_in(body: bytes) -> list[tuple[str, Number]]:
    return list(numbers(json.loads(body, parse_int=Number, parse_float=Number)))


def too_long(body: bytes) -> list[tuple[str, Number]]:
    found = [(name, text) for name, text in numbers_in(body) if len(text) > CHARACTERS_MAX]
    return [(name, text) for name, text in found if not text.isdigit() or name not in U64]


@pytest.fixture(autouse=True)
def awkward_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the CPU usage a number with more digits than an f32 holds."""
    read = Machine.read

    def reading(machine: Machine) -> Reading:
        return msgspec.structs.replace(read(machine), cpu_usage=100 / 3, total_cpu_usage=0.1 / 3)

    monkeypatch.setattr(Machine, "read", reading)


async def test_no_response_has_a_number_that_json_bigint_misreads(tmp_path: Path) -> None:
    async with started(tmp_path) as (world, alice):
        lease = await lease_of(world, alice)
        bodies: dict[str, bytes] = {}
        for name in ROUTES:
            if "LEASE" in ROUTES[name][2]:
                response = await ask(alice, name, lease)
            else:
                asker = await world.log_in("alice", "alicealice") if name in ENDINGS else world.root
                response = await do(asker, name)
            bodies[name] = response.content if "json" in response.headers.get("content-type", "") else b"null"
        for path in ("/health/live", "/health/ready", "/nowhere"):
            bodies[path] = (await world.stranger.ask("GET", path)).content
        reply = {"username": "alice", "password": "alicealice"}
        bodies["log_in"] = (await world.stranger.ask("POST", "/users/login", reply)).content
        assert sum(bool(numbers_in(body)) for body in bodies.values()) > 20
        assert {name: found for name, body in bodies.items() if (found := too_long(body))} == {}
        assert json.loads(bodies["get_stats"])["cpu_usage"] == 33.333332
        assert json.loads(bodies["get_stats"])["total_cpu_usage"] == 0.033333335


@pytest.mark.parametrize(
    ("number", "written"),
    [
        *((0.0, b"0.0"), (12.5, b"12.5"), (0.1, b"0.1"), (100.0, b"100.0"), (1 / 3, b"0.33333334")),
        *((3.4028234663852886e38, b"3.4028235e38"), (16777217.0, b"16777216.0"), (-2 / 3, b"-0.6666667")),
    ],
)
def test_an_f32_is_written_with_its_shortest_digits(number: float, written: bytes) -> None:
    assert msgspec.json.encode(f32(number)) == written


async def test_rates_have_few_digits_over_the_channel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of rates such as 0.1 and 0.2 would have 17 digits."""
    monkeypatch.setattr(rates, "PERIOD_SECONDS", 0.01)
    rating = rates._partition
    awkward = iter((0.1, 0.2) * 100)

    def rate(*given: Any) -> rates.PartitionRates:
        each = next(awkward)
        return msgspec.structs.replace(rating(*given), messages_per_second=each, bytes_per_second=each)

    monkeypatch.setattr(rates, "_partition", rate)
    async with started(tmp_path) as (world, _):
        measurement = await world.gateway.rates.next()
        assert measurement.sample.streams[0].messages_per_second == 0.3
        assert too_long(measurement.encoded()) == []
