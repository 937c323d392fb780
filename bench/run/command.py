"""`whippet bench run`: the options, and what becomes of the result."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from whippet.app.cli import exit_codes
from whippet.app.cli.remote import arguments, destination, output
from whippet.app.cli.remote.failures import Failure, UsageFailure
from whippet.app.cli.remote.framework import Located, connect
from whippet.bench.run.kinds import KINDS

if TYPE_CHECKING:
    from whippet.bench.run.result import BenchResult


def _kinds(incomplete: str) -> list[tuple[str, str]]:
    return [(kind.name, kind.summary) for kind in KINDS if kind.name.startswith(incomplete)]


KindName = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help=f"{', '.join(f'{kind.name} ({kind.alias})' for kind in KINDS)}, or `examples` to see some",
        autocompletion=_kinds,
    ),
]
MessageSize = Annotated[
    str | None, typer.Option("--message-size", "-m", metavar="BYTES", help="of a payload, or a range: 200..500 (1000)")
]
PerBatch = Annotated[
    str | None,
    typer.Option("--messages-per-batch", "-P", metavar="COUNT", help="in a send or a poll, or a range (1000)"),
]
Batches = Annotated[int | None, typer.Option("--message-batches", "-b", min=1, help="of each actor (1000)")]
TotalData = Annotated[
    str | None, typer.Option("--total-data", "-T", metavar="SIZE", help="of all actors, instead of a number of batches")
]
RateLimit = Annotated[
    str | None, typer.Option("--rate-limit", "-r", metavar="SIZE", help="a second, of all actors: 50MB")
]
Amplification = Annotated[
    float | None,
    typer.Option(
        "--read-amplification", "-R", min=1, help="how much faster than producers consumers may be, with -r (1.05)"
    ),
]
Warmup = Annotated[
    str | None, typer.Option("--warmup-time", "-w", metavar="TIME", help="the same load before the measurement (0s)")
]
Sampling = Annotated[
    str | None, typer.Option("--sampling-time", "-t", metavar="TIME", help="the interval of the time series (10ms)")
]
Window = Annotated[
    int | None,
    typer.Option("--moving-average-window", "-W", min=1, help="over how many intervals the plots average (20)"),
]
Streams = Annotated[int | None, typer.Option("--streams", "-s", min=1, help="bench-stream-1 and so on")]
Partitions = Annotated[int | None, typer.Option("--partitions", "-a", min=1, help="of each topic")]
Producers = Annotated[int | None, typer.Option("--producers", "-p", min=1, help="each with a connection (8)")]
Consumers = Annotated[int | None, typer.Option("--consumers", "-c", min=1, help="each with a connection (8)")]
Groups = Annotated[int | None, typer.Option("--consumer-groups", "-g", min=1, help="that share the consumers (1)")]
Expiry = Annotated[
    str | None, typer.Option("--message-expiry", "-e", metavar="TIME", help="of the topics: 1h, `never`")
]
TopicSize = Annotated[str | None, typer.Option("--max-topic-size", metavar="SIZE", help="of the topics: 10GB")]
HighLevel = Annotated[
    bool, typer.Option("--high-level-api", "-H", help="use the producers and consumers of the Python client")
]
Reuse = Annotated[bool, typer.Option("--reuse-streams", help="use streams that exist, and leave them")]
Keep = Annotated[bool, typer.Option("--keep", help="keep the streams that were created for the run")]
Processes = Annotated[
    int | None, typer.Option("--processes", min=1, help="that share the actors (half as many as there are cores)")
]
PerActor = Annotated[bool, typer.Option("--per-actor", help="show every actor in the table")]
ResultFile = Annotated[str | None, typer.Option("--result", metavar="FILE", help="write the result as JSON")]
Report = Annotated[str | None, typer.Option("--report", metavar="FILE", help="write a page with plots: report.html")]
OutputDir = Annotated[
    str | None,
    typer.Option(
        "--output-dir", "-o", metavar="FOLDER", help="write both into a folder in it, which is named after the settings"
    ),
]
Identifier = Annotated[
    str | None, typer.Option("--identifier", metavar="NAME", help="the end of that name (the name of this machine)")
]
Remark = Annotated[str | None, typer.Option("--remark", metavar="TEXT", help="goes into the result")]


EXAMPLES_KIND = ("examples", "e")
EXAMPLES = """\
# Four producers fill a stream each, with batches of 100 messages of 1 KB.
whippet bench run pinned-producer --producers 4 --messages-per-batch 100 --total-data 1GB

# The latency of a steady load of 20 MB a second, after two seconds of warm-up, with a page of plots.
whippet bench run pinned-producer-and-consumer -P 100 -T 1GB --rate-limit 20MB --warmup-time 2s --report r.html

# Two consumer groups read all that four producers send to a topic of 12 partitions, in messages of different sizes.
whippet bench run balanced-producer-and-consumer-group -p 4 -c 8 -g 2 -a 12 -m 100..2000 -P 1..200 -b 500

# How long one small message takes until it has been read again.
whippet bench run end-to-end-producing-consumer --producers 1 --message-size 100 --messages-per-batch 1

# Fill streams once, and read them several times.
whippet bench run balanced-producer --partitions 8 --total-data 500MB --keep
whippet bench run balanced-consumer-group --consumers 4 --message-batches 100

# Is the change in the server faster? Five runs each, in turn, then the verdict.
whippet bench run pinned-producer --total-data 1GB --server iggy://old:8090 --output-dir before
whippet bench run pinned-producer --total-data 1GB --server iggy://new:8090 --output-dir after
whippet bench compare before after --fail-if-slower 5
"""


async def run(
    on: Located,
    kind: KindName,
    message_size: MessageSize = None,
    messages_per_batch: PerBatch = None,
    message_batches: Batches = None,
    total_data: TotalData = None,
    rate_limit: RateLimit = None,
    read_amplification: Amplification = None,
    warmup_time: Warmup = None,
    sampling_time: Sampling = None,
    moving_average_window: Window = None,
    streams: Streams = None,
    partitions: Partitions = None,
    producers: Producers = None,
    consumers: Consumers = None,
    consumer_groups: Groups = None,
    message_expiry: Expiry = None,
    max_topic_size: TopicSize = None,
    high_level_api: HighLevel = False,
    reuse_streams: Reuse = False,
    keep: Keep = False,
    processes: Processes = None,
    per_actor: PerActor = False,
    result: ResultFile = None,
    report: Report = None,
    output_dir: OutputDir = None,
    identifier: Identifier = None,
    remark: Remark = None,
) -> int:
    """The server may be Whippet or Apache Iggy. Streams are created for the run and deleted after it; what was there
    before is never deleted. Consumers verify what they read: if a message is missing, comes twice or comes too late,
    the exit code is 1. docs/benchmarks.md describes the kinds, the figures and the files."""
    from whippet.bench.run import conductor, table  # noqa: PLC0415 -- not for --help
    from whippet.bench.run.machine import cores  # noqa: PLC0415
    from whippet.bench.run.progress_bar import ProgressBar  # noqa: PLC0415
    from whippet.bench.run.result import result_of  # noqa: PLC0415
    from whippet.bench.run.settings import Wrong, settings_of  # noqa: PLC0415

    if kind in EXAMPLES_KIND:
        print(EXAMPLES, end="")
        return exit_codes.DONE
    if identifier is not None and output_dir is None:
        raise UsageFailure("--identifier is for the folder that --output-dir makes")
    given = {
        "message_size": message_size,
        "messages_per_batch": messages_per_batch,
        "message_batches": message_batches,
        "total_data": _size(total_data, "--total-data"),
        "rate_limit": _size(rate_limit, "--rate-limit"),
        "read_amplification": read_amplification,
        "warmup_time": _duration(warmup_time, "--warmup-time"),
        "sampling_time": _duration(sampling_time, "--sampling-time", at_least=0.001),
        "moving_average_window": moving_average_window,
        "streams": streams,
        "partitions": partitions,
        "producers": producers,
        "consumers": consumers,
        "consumer_groups": consumer_groups,
        "message_expiry": None if message_expiry is None else arguments.expiry([message_expiry]),
        "max_topic_size": None if max_topic_size is None else arguments.topic_size(max_topic_size),
        "high_level_api": high_level_api or None,
        "reuse_streams": reuse_streams or None,
        "keep": keep or None,
        "processes": processes,
    }
    bar = ProgressBar()
    try:
        settings = settings_of(kind, given, cores())
        server = destination.find(on.given)
        async with await connect(server) as client:
            measured = await conductor.conduct(client, server.address, settings, bar.show)
    except Wrong as wrong:
        raise UsageFailure(str(wrong)) from None
    except conductor.RunFailed as failed:
        bar.clear()
        raise Failed(str(failed), failed.code) from None
    finally:
        bar.clear()
    found = result_of(measured, settings, server.server, remark or "")
    _write(found, on, result, report, output_dir, identifier)
    if on.form is output.Format.TABLE:
        print(table.as_text(found, with_actors=per_actor))
    elif on.form is not output.Format.QUIET:
        encoded = msgspec.json.encode(found)
        print((msgspec.json.format(encoded, indent=2) if on.form is output.Format.JSON else encoded).decode())
    if found.verification is not None and not found.verification.is_good:
        raise Failure(table.checked(found))
    return exit_codes.DONE


class Failed(Failure):
    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def _size(text: str | None, option: str) -> int | None:
    from whippet.app.config.formats import Invalid, parse_size  # noqa: PLC0415

    if text is None:
        return None
    try:
        found = parse_size(text)
    except Invalid:
        found = 0
    if not found:
        raise UsageFailure(f"{option} is a size such as 500KB, 10MB or 1GiB, not {text!r}")
    return found


def _duration(text: str | None, option: str, at_least: float = 0.0) -> float | None:
    from whippet.app.config.formats import Invalid, parse_duration  # noqa: PLC0415

    if text is None:
        return None
    try:
        found = parse_duration(text)
    except Invalid:
        found = -1.0
    if found < at_least:
        least = f", at least {at_least * 1000:.0f}ms" if at_least else ""
        raise UsageFailure(f"{option} is a duration such as 10ms, 5s or 2m{least}, not {text!r}")
    return found


# ------------------------------------------------------------------------------------------------------------ the files


def _write(
    found: BenchResult,
    on: Located,
    result: str | None,
    report: str | None,
    output_dir: str | None,
    identifier: str | None,
) -> None:
    from whippet.bench.run.page import as_page  # noqa: PLC0415

    results, reports = [Path(each) for each in (result,) if each], [Path(each) for each in (report,) if each]
    if output_dir is not None:
        folder = Path(output_dir) / folder_name(found, identifier)
        folder.mkdir(parents=True, exist_ok=True)
        # Several runs with the same settings share a folder, which is what `bench compare` takes.
        moment = re.sub(r"\D", "", found.started_at.partition(".")[0])
        results.append(folder / f"result-{moment}-{found.run}.json")
        reports.append(folder / f"report-{moment}-{found.run}.html")
    for path in results:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        on.note(f"wrote {path}")
    for path in reports:
        path.write_text(as_page(found), encoding="utf-8")
        on.note(f"wrote {path}")


def folder_name(found: BenchResult, identifier: str | None) -> str:
    """Named as Iggy's benchmark names its folders: kind, actors, message size, per batch, amount, transport, remark,
    machine."""
    settings: Any = found.settings
    transport = found.server.address.partition("://")[0].partition("+")[2] or "tcp"
    parts = [
        settings.kind.replace("-", "_"),
        settings.actors,
        settings.message_bytes or "as_stored",
        settings.batch_messages,
        settings.batches or settings.total_bytes,
        transport,
        found.remark,
        identifier or found.machine.host,
    ]
    return "_".join(re.sub(r"[^\w.-]+", "-", str(part)) for part in parts if part)
