"""A result as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from whippet.bench.run.result import ActorResult, BenchResult, LatencySummary

COLUMNS = ("messages", "msg/s", "MB/s", "average", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "highest")


def as_text(result: BenchResult, *, with_actors: bool) -> str:
    lines: list[tuple[str, ...]] = [("", *COLUMNS)]
    for role in result.roles:
        for one in [*(role.actors if with_actors and len(role.actors) > 1 else ()), role.total]:
            lines.append((one.name, *_counts(one), *_latencies(one.latency)))
            if one.end_to_end is not None:
                lines.append(("  from send to receipt", "", "", "", *_latencies(one.end_to_end)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [_line(line, widths) for line in lines]
    return "\n".join([*rows, "", *sentences(result)])


def sentences(result: BenchResult) -> list[str]:
    """What else there is to say, a line each."""
    found = [f"{checked(result)}."]
    shares = [f"{process.share:.0%}" for process in result.client.processes]
    several = "processes" if len(shares) > 1 else "process"
    found.append(f"The load used {', '.join(shares)} of a core in {len(shares)} {several}{_between(result)}.")
    return [*found, *(f"Note: {note}." for note in result.notes)]


def _between(result: BenchResult) -> str:
    share = result.client.between_requests
    return "" if share is None else f"; actors had no request in progress in {share:.0%} of the time"


def checked(result: BenchResult) -> str:
    verification = result.verification
    if verification is None:
        return "Nothing was read, so nothing was verified"
    if verification.is_good:
        return f"All {verification.read:,} messages were read once and in order"
    return f"FAILED: {'; '.join(verification.problems)} (of {verification.expected:,})"


def _counts(one: ActorResult) -> tuple[str, ...]:
    return f"{one.messages:,}", f"{one.messages_s:,.0f}", f"{one.megabytes_s:,.2f}"


def _latencies(latency: LatencySummary) -> tuple[str, ...]:
    values = (
        latency.average,
        latency.p50,
        latency.p90,
        latency.p95,
        latency.p99,
        latency.p99_9,
        latency.p99_99,
        latency.highest,
    )
    return tuple(map(duration, values))


def duration(microseconds: float) -> str:
    """Three digits, in the unit that people would choose."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor * 0.9995:
            return f"{_three_digits(microseconds / factor)} {unit}"
    return f"{_three_digits(microseconds)} us"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = cells
    padded = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
    return "  ".join(padded).rstrip()
