"""`whippet pipeline run`: runs a pipeline in the foreground, until it is done or stopped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from whippet.app.cli import pipelines

if TYPE_CHECKING:
    from whippet.pipelines.pipeline_file import Pipeline


def run(
    file: pipelines.File,
    remote: pipelines.Remote = None,
    trace: pipelines.Trace = False,
    once: Annotated[bool, typer.Option("--once", help="process what is there now, then exit")] = False,
    progress: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="period of progress reports")] = 10.0,
) -> int:
    if not math.isfinite(progress):
        raise typer.BadParameter("must be a number of seconds", param_hint="--progress")
    return pipelines.with_file(
        file, lambda pipeline: _run(pipeline, once=once, progress_s=progress, remote=remote), trace=trace
    )


def _run(pipeline: Pipeline, *, once: bool, progress_s: float, remote: str | None) -> int:
    from whippet.pipelines import command  # noqa: PLC0415 -- an extra

    return command.run(pipeline, once=once, progress_s=progress_s, remote=remote)
