"""The result of a run: what the JSON file has, and what tables, pages and comparisons are made of.

Its schema is in docs/bench.schema.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from whippet.app.commands.responses import Stats
from whippet.app.version import version
from whippet.bench.run.conductor import Measured
from whippet.bench.run.histogram import Histogram, Invalid
from whippet.bench.run.jobs import CONSUMERS, PRODUCERS, Finished, Performance
from whippet.bench.run.machine import Machine, machine
from whippet.bench.run.recorder import decoded
from whippet.bench.run.series import Points, added, moving_average
from whippet.bench.run.settings import Settings

FORMAT = "whippet-bench-1"
PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)
BUSY = 0.9
"""A process that used more of its core than this may be what limited the run."""
IDLE = 0.5
"""So may actors that had no request in progress for more of the time than this."""


def _described(description: str) -> Any:
    return msgspec.Meta(description=description)


Us = Annotated[float, _described("microseconds")]


class LatencySummary(msgspec.Struct, frozen=True):
    """Of requests, from when they were due; of messages in `end_to_end`, from when they were due to be sent."""

    average: Us
    p50: Us
    p90: Us
    p95: Us
    p99: Us
    p99_9: Us
    p99_99: Us
    highest: Us


class ActorResult(msgspec.Struct, frozen=True):
    name: str
    messages: int
    bytes: Annotated[int, _described("of payloads")]
    requests: Annotated[int, _described("sends, or polls that returned messages")]
    empty_polls: int
    seconds: Annotated[float, _described("from the begin of the first request to the end of the last one")]
    messages_s: float
    megabytes_s: Annotated[float, _described("payloads, in 10^6 bytes")]
    latency: LatencySummary
    end_to_end: LatencySummary | None


class TimeSeries(msgspec.Struct, frozen=True):
    """Lists with a value for each interval. The averages are over the last intervals, as many as
    `settings.moving_average` says."""

    interval_s: float
    messages: list[int]
    bytes: list[int]
    latency_us: Annotated[list[float | None], _described("the average of the requests that ended in the interval")]
    megabytes_s_average: list[float]
    latency_us_average: list[float]


class RoleResult(msgspec.Struct, frozen=True):
    """All producers, or all consumers."""

    role: Annotated[str, _described("producers or consumers")]
    total: ActorResult
    actors: list[ActorResult]
    latency_histogram: Annotated[str, _described("HdrHistogram V2, compressed, base64; nanoseconds")]
    end_to_end_histogram: str | None
    series: TimeSeries


class Process(msgspec.Struct, frozen=True):
    cpu_s: float
    seconds: float

    @property
    def share(self) -> float:
        return self.cpu_s / self.seconds if self.seconds else 0.0


class Client(msgspec.Struct, frozen=True):
    """What the load itself cost."""

    processes: list[Process]
    between_requests: Annotated[
        float | None,
        _described(
            "the part of the time in which actors had no request in progress; null if they had other reasons for that"
        ),
    ]
    is_limit: Annotated[bool, _described("the server may be faster than measured")]


class ServerInfo(msgspec.Struct, frozen=True):
    """As the server describes itself."""

    address: Annotated[str, _described("without credentials")]
    version: Annotated[str, _described("of the server, or of Iggy, whose behaviour the server has")]
    host: str
    system: str
    kernel: str


class Verification(msgspec.Struct, frozen=True):
    is_good: bool
    expected: Annotated[int, _described("how many messages consumers had to read")]
    read: int
    lost: int
    repeated: int
    late: int
    problems: list[str]


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `whippet bench run`. Times are seconds or microseconds, sizes are bytes."""

    format: Annotated[str, _described(f"{FORMAT}; it changes if the meaning of a field does")]
    run: Annotated[str, _described("the number of the run, which is also in the ids of its messages")]
    started_at: Annotated[str, _described("RFC 3339")]
    remark: str
    settings: Settings
    machine: Machine
    client_version: str
    server: ServerInfo
    roles: list[RoleResult]
    verification: Verification | None
    client: Client
    notes: list[str]


class Unreadable(ValueError):
    """The file is no result."""


def read(octets: bytes) -> BenchResult:
    try:
        found = msgspec.json.decode(octets, type=BenchResult)
    except msgspec.DecodeError as error:
        raise Unreadable(f"it is no result of `whippet bench run`: {error}") from None
    if found.format != FORMAT:
        raise Unreadable(f"its format is {found.format!r}, and this version reads {FORMAT!r}")
    try:
        for role in found.roles:
            Histogram.decode(role.latency_histogram)
    except Invalid as error:
        raise Unreadable(str(error)) from None
    return found


def result_of(measured: Measured, settings: Settings, address: str, remark: str) -> BenchResult:
    finished = measured.finished
    processes = [Process(each.cpu_s, each.seconds) for each in finished]
    between = _between_requests(settings, finished)
    limits = _limits(processes, between, settings)
    notes = [*measured.remarks, *limits]
    roles = [
        _role(role, settings, finished)
        for role in (PRODUCERS, CONSUMERS)
        if any(performance.role == role for each in finished for performance in each.performances)
    ]
    verdict = measured.verdict
    checks = settings.described.consumes
    return BenchResult(
        format=FORMAT,
        run=f"{measured.run:06x}",
        started_at=measured.started_at.isoformat(timespec="milliseconds"),
        remark=remark,
        settings=settings,
        machine=machine(),
        client_version=version(),
        server=_server(measured.stats, address),
        roles=roles,
        verification=Verification(
            verdict.is_good,
            verdict.expected,
            verdict.read,
            verdict.lost,
            verdict.repeated,
            verdict.late,
            verdict.problems,
        )
        if checks
        else None,
        client=Client(processes, between, bool(limits)),
        notes=notes,
    )


def _between_requests(settings: Settings, finished: Sequence[Finished]) -> float | None:
    """Counts the polls that returned nothing neither as requests nor as time without them."""
    worked = [one for each in finished for one in each.performances if one.requests and not one.empty]
    seconds = sum(one.last_ns - one.first_ns for one in worked)
    if settings.rate_bytes_s is not None or settings.described.is_joint or not seconds:
        return None
    return max(1 - sum(one.latency.total_ns for one in worked) / seconds, 0.0)


def _limits(processes: Sequence[Process], between: float | None, settings: Settings) -> list[str]:
    """Returns in which ways the load may have been slower than the server."""
    found = []
    share = max(process.share for process in processes)
    if share > BUSY:
        advice = "more --processes" if len(processes) < settings.actors else "more actors and more --processes"
        found.append(
            f"the client was the limit: a process of the load used {share:.0%} of a core; with {advice}, or another "
            "machine for the load, the server may be faster"
        )
    if between is not None and between > IDLE:
        found.append(
            f"the client was the limit: actors prepared or inspected messages in {between:.0%} of the time; with more "
            "actors the server may be faster"
        )
    return found


def _server(stats: Stats, address: str) -> ServerInfo:
    system = f"{stats.os_name} {stats.os_version}".strip()
    return ServerInfo(address, stats.server_version, stats.hostname, system, stats.kernel_version)


def _role(role: str, settings: Settings, finished: Sequence[Finished]) -> RoleResult:
    performances = [one for each in finished for one in each.performances if one.role == role]
    performances.sort(key=lambda one: int(one.actor.rpartition(" ")[2]))
    latency, end_to_end = Histogram(), Histogram()
    for one in performances:
        latency.add(decoded(one.latency))
        if one.end_to_end is not None:
            end_to_end.add(decoded(one.end_to_end))
    has_end_to_end = performances[0].end_to_end is not None
    total = _actor(_total(role, performances), latency, end_to_end if has_end_to_end else None)
    points = added([each.series[role] for each in finished])
    return RoleResult(
        role,
        total,
        [
            _actor(one, decoded(one.latency), None if one.end_to_end is None else decoded(one.end_to_end))
            for one in performances
        ],
        latency.encode(),
        end_to_end.encode() if has_end_to_end else None,
        _series(points, settings.moving_average),
    )


def _total(role: str, performances: Sequence[Performance]) -> Performance:
    """The time of all actors is from the first request of any to the last one of any."""
    worked = [one for one in performances if one.requests]
    return Performance(
        f"all {role}",
        role,
        sum(one.messages for one in performances),
        sum(one.size for one in performances),
        sum(one.requests for one in performances),
        sum(one.empty for one in performances),
        min((one.first_ns for one in worked), default=0),
        max((one.last_ns for one in worked), default=0),
        performances[0].latency,
        None,
    )


def _actor(one: Performance, latency: Histogram, end_to_end: Histogram | None) -> ActorResult:
    seconds = (one.last_ns - one.first_ns) / 1e9
    return ActorResult(
        one.actor,
        one.messages,
        one.size,
        one.requests,
        one.empty,
        seconds,
        one.messages / seconds if seconds else 0.0,
        one.size / seconds / 1e6 if seconds else 0.0,
        summary(latency),
        None if end_to_end is None else summary(end_to_end),
    )


def summary(histogram: Histogram) -> LatencySummary:
    p50, p90, p95, p99, p99_9, p99_99 = (histogram.percentile(percent) / 1000 for percent in PERCENTILES)
    return LatencySummary(histogram.mean / 1000, p50, p90, p95, p99, p99_9, p99_99, histogram.highest / 1000)


def _series(points: Points, window: int) -> TimeSeries:
    latencies = [
        total / requests if requests else None
        for total, requests in zip(points.latency_total_us, points.requests, strict=True)
    ]
    rates = [size / points.interval_s / 1e6 for size in points.bytes]
    known: list[float] = []
    for latency in latencies:
        # An interval without requests has the latency of the one before.
        known.append(latency if latency is not None else known[-1] if known else 0.0)
    return TimeSeries(
        points.interval_s,
        points.messages,
        points.bytes,
        latencies,
        moving_average(rates, window),
        moving_average(known, window),
    )
