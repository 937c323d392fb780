"""A result as a page of HTML in one file: plots, tables and settings, without scripts and anything from elsewhere.

Whatever is not a number is escaped: a remark, the name of a machine, or what a server says about itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from whippet.app.cli.remote.output import size_text
from whippet.bench.run.histogram import Histogram
from whippet.bench.run.plot import Line, linear, logarithmic, percentile_points, percentiles, plot, thinned, timeline
from whippet.bench.run.result import ActorResult, BenchResult, LatencySummary, RoleResult
from whippet.bench.run.table import COLUMNS, checked, duration

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --text: #1a1a19; --soft: #6b6a66; --rule: #e4e3df;
  --producers: #2166c2; --consumers: #c2570c; --arrivals: #7c3aa8; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #191918; --text: #ecebe7; --soft: #a3a19b; --rule: #393835;
  --producers: #6ea8f5; --consumers: #f0975a; --arrivals: #c79aef; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0; max-width: 72ch; } .soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); gap: 1.5rem;
  margin-top: 1.25rem; }
figure { margin: 0; overflow-x: auto; } figcaption { font-weight: 600; margin-bottom: .25rem; }
svg { display: block; width: 100%; min-width: 30rem; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.grid, .tick { stroke: var(--rule); } path { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
path.faint { stroke-width: 1; opacity: .35; }
path.producers { stroke: var(--producers); } path.consumers { stroke: var(--consumers); }
path.arrivals { stroke: var(--arrivals); }
.key { font-weight: 400; color: var(--soft); margin-left: .9rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 1.1rem; height: 3px; vertical-align: middle;
  margin-right: .35rem; background: currentColor; border-radius: 2px; }
.key.producers::before { background: var(--producers); } .key.consumers::before { background: var(--consumers); }
.key.arrivals::before { background: var(--arrivals); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--soft); } th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.facts td:first-child { color: var(--soft); white-space: nowrap; }
.columns { display: grid; gap: 0 3rem;
  grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); }
"""
HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
INDENT = "\N{EM SPACE}"
END_TO_END = "from send to receipt"


def as_page(result: BenchResult) -> str:
    title = f"{result.settings.kind} on {result.server.address}"
    parts = [
        f"{HEAD}<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(result.started_at)}, run {escape(result.run)}</p>',
        f"<p>{escape(result.remark)}</p>" if result.remark else "",
        *_statements(result),
        f'<div class="plots">{_throughput(result)}{_latency(result)}{_percentiles(result)}</div>',
        "<h2>All actors</h2>",
        _table([role.total for role in result.roles]),
    ]
    for role in result.roles:
        if len(role.actors) > 1:
            parts += [f"<h2>Each of the {escape(role.role)}</h2>", _table(role.actors)]
    parts += ['<div class="columns">', *_facts(result), "</div></body></html>"]
    return "\n".join(part for part in parts if part) + "\n"


def _statements(result: BenchResult) -> list[str]:
    is_good = result.verification is None or result.verification.is_good
    found = [f"<p{'' if is_good else ' class=bad'}>{escape(checked(result))}.</p>"]
    return [*found, *(f"<p>Note: {escape(note)}.</p>" for note in result.notes)]


# ---------------------------------------------------------------------------------------------------------------- plots


def _throughput(result: BenchResult) -> str:
    lines, highest, end = [], 0.0, 0.0
    for role in result.roles:
        series = role.series
        rates = [size / series.interval_s / 1e6 for size in series.bytes]
        own = [
            Line(role.role, thinned(rates, series.interval_s), is_faint=True),
            Line(role.role, thinned(series.megabytes_s_average, series.interval_s)),
        ]
        lines += own
        highest = max(highest, *_values(own))
        end = max(end, len(rates) * series.interval_s)
    across, up = timeline(end), linear("MB/s", highest, lambda value: f"{value:,.10g} MB/s")
    keys = [(role.role, role.role) for role in result.roles]
    return _figure("Throughput", keys, plot("throughput over time", across, up, lines))


def _latency(result: BenchResult) -> str:
    lines, highest, end = [], 0.0, 0.0
    for role in result.roles:
        series = role.series
        own = [
            Line(role.role, thinned(series.latency_us, series.interval_s), is_faint=True),
            Line(role.role, thinned(series.latency_us_average, series.interval_s)),
        ]
        lines += own
        highest = max(highest, *_values(own))
        end = max(end, len(series.bytes) * series.interval_s)
    across, up = timeline(end), linear("latency", highest, _tick)
    keys = [(role.role, _verb(role)) for role in result.roles]
    return _figure("Latency over time", keys, plot("average latency over time", across, up, lines))


def _percentiles(result: BenchResult) -> str:
    lines, keys = [], []
    for role in result.roles:
        lines.append(Line(role.role, percentile_points(Histogram.decode(role.latency_histogram))))
        keys.append((role.role, _verb(role)))
        if role.end_to_end_histogram is not None:
            lines.append(Line("arrivals", percentile_points(Histogram.decode(role.end_to_end_histogram))))
            keys.append(("arrivals", END_TO_END))
    values = _values(lines)
    up = logarithmic("latency", min(values), max(values), _tick)
    return _figure("Latency by percentile", keys, plot("latency by percentile", percentiles(), up, lines))


def _values(lines: Iterable[Line]) -> list[float]:
    return [y for line in lines for _, y in line.points if y is not None] or [1.0]


def _verb(role: RoleResult) -> str:
    return "sends" if role.role == "producers" else "polls"


def _figure(title: str, keys: Sequence[tuple[str, str]], svg: str) -> str:
    shown = "".join(f'<span class="key {kind}">{escape(text)}</span>' for kind, text in keys)
    return f"<figure><figcaption>{escape(title)}{shown}</figcaption>{svg}</figure>"


def _tick(microseconds: float) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= factor:
            return f"{microseconds / factor:g} {unit}"
    return f"{microseconds:g} us" if microseconds else "0"


# --------------------------------------------------------------------------------------------------------------- tables


def _table(actors: Sequence[ActorResult]) -> str:
    rows = []
    for one in actors:
        rows.append([one.name, f"{one.messages:,}", f"{one.messages_s:,.0f}", f"{one.megabytes_s:,.2f}"])
        rows[-1] += _cells(one.latency)
        if one.end_to_end is not None:
            rows.append([f"{INDENT}{END_TO_END}", "", "", "", *_cells(one.end_to_end)])
    head = "".join(f"<th>{escape(cell)}</th>" for cell in ("", *COLUMNS))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cells(latency: LatencySummary) -> list[str]:
    return [duration(value) for value in msgspec.structs.astuple(latency)]


def _facts(result: BenchResult) -> list[str]:
    machine, server = result.machine, result.server
    shares = ", ".join(f"{process.share:.0%}" for process in result.client.processes)
    between = result.client.between_requests
    found = [
        _list("Settings", [(name.replace("_", " "), str(value)) for name, value in _settings(result)]),
        _list(
            "Load",
            [
                ("Whippet", result.client_version),
                ("Python", machine.python),
                ("machine", machine.host),
                ("system", f"{machine.system}, {machine.kernel}"),
                ("processor", f"{machine.processor}, {machine.cores} cores"),
                ("memory", size_text(machine.memory_bytes)),
                ("processor time", f"{shares} of a core, by process"),
                *([] if between is None else [("without a request", f"actors were, in {between:.0%} of the time")]),
            ],
        ),
        _list(
            "Server, as it describes itself",
            [
                ("address", server.address),
                ("version", server.version),
                ("machine", server.host),
                ("system", f"{server.system}, {server.kernel}"),
            ],
        ),
    ]
    if result.verification is not None:
        counts = msgspec.structs.asdict(result.verification)
        shown = [(name, f"{counts[name]:,}") for name in ("expected", "read", "lost", "repeated", "late")]
        found.append(_list("Messages", shown))
    return found


def _settings(result: BenchResult) -> Iterable[tuple[str, object]]:
    """Those that have an effect in this run."""
    for name, value in msgspec.structs.asdict(result.settings).items():
        if value not in (None, 0, False):
            yield name, "yes" if value is True else value


def _list(title: str, rows: Sequence[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<section><h2>{escape(title)}</h2><table class="facts">{body}</table></section>'
