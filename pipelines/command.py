"""A pipeline as a command: what `whippet pipeline` on this machine and deploy/spark/pipeline.py on a cluster have in
common. A file is read, something is done with it, and whatever goes wrong is one line on standard error, in which no
secret is."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from whippet.pipelines import pipeline_file, running, secrets, sentences
from whippet.pipelines.counted import counted
from whippet.pipelines.pipeline_file import Pipeline

DONE, FAILED, REFUSED = 0, 1, 2
"""Exit codes; the last one is for what the file or this machine has to be changed for."""
REFUSALS = ("FileError", "MissingError", "OptionError")
"""Errors that trying again does not help against."""


def with_file(path: str, act: Callable[[Pipeline], int], *, trace: bool = False) -> int:
    """The exit code of `act`, or of what has kept it from its end; `trace` shows where in the code."""
    hidden: tuple[str, ...] = ()
    try:
        pipeline = pipeline_file.load(path)
        hidden = pipeline.secrets
        return act(pipeline)
    except Exception as error:
        if not sentences.is_expected(error):
            raise
        if trace:
            tell(secrets.scrub("".join(traceback.format_exception(error)), hidden))
        tell(f"whippet: {secrets.scrub(sentences.sentence(error), hidden)}")
        return REFUSED if type(error).__name__ in REFUSALS else FAILED


def run(pipeline: Pipeline, *, once: bool, progress_s: float, remote: str | None = None) -> int:
    def say(line: str) -> None:
        tell(secrets.scrub(line, pipeline.secrets))

    done = running.run(pipeline, say, once=once, progress_s=progress_s, remote=remote)
    bad = f", {counted(done.bad_records, 'bad record')}" if done.bad_records else ""
    why = "everything that was there is done" if once else "stopped"
    say(f"pipeline {pipeline.key}: {why}: {counted(done.rows, done.noun)} in {counted(done.batches, 'batch')}{bad}")
    return DONE


def tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
