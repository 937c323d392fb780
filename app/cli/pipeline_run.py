"""`whippet pipeline run`: runs a pipeline in the foreground, until it is done or stopped."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from whippet.app.cli import pipelines

if TYPE_CHECKING:
    from whippet.pipelines.pipeline_file import Pipeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pipelines.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="process what is there now, then exit")
    parser.add_argument(
        "--progress",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="period of progress reports (default: 10)",
    )


def seconds(text: str) -> float:
    found = float(text)
    if not 0.1 <= found < float("inf"):
        raise argparse.ArgumentTypeError("must be 0.1 or more")
    return found


def run(arguments: argparse.Namespace) -> int:
    return pipelines.with_file(arguments, lambda pipeline: _run(pipeline, arguments))


def _run(pipeline: Pipeline, arguments: argparse.Namespace) -> int:
    from whippet.pipelines import command  # noqa: PLC0415 -- an extra

    return command.run(pipeline, once=arguments.once, progress_s=arguments.progress, remote=arguments.remote)
