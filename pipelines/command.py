"""A pipeline as a command: shared by `whippet pipeline` and, on a cluster, deploy/spark/pipeline.py.

It loads a file and acts on it. An error becomes one line on standard error, without secrets.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from whippet.pipelines import pipeline_file, runner, secrets, user_text
from whippet.pipelines.pipeline_file import Pipeline
from whippet.pipelines.user_text import pluralize

DONE, FAILED, REFUSED = 0, 1, 2
"""Exit codes; the last one means that the file or this machine has to be changed."""
REFUSALS = ("FileError", "MissingError", "OptionError")
"""Errors that do not go away by trying again."""


def run_with_file(path: str, act: Callable[[Pipeline], int], *, trace: bool = False) -> int:
    """Returns the exit code of `act`, or of the error that stopped it. `trace` prints the traceback as well."""
    hidden: tuple[str, ...] = ()
    try:
        pipeline = pipeline_file.load(path)
        hidden = pipeline.secrets
        return act(pipeline)
    except Exception as error:
        if not user_text.is_expected(error):
            raise
        if trace:
            print_error(secrets.mask("".join(traceback.format_exception(error)), hidden))
        print_error(f"whippet: {secrets.mask(user_text.error_text(error), hidden)}")
        return REFUSED if type(error).__name__ in REFUSALS else FAILED


def run(pipeline: Pipeline, *, once: bool, progress_s: float, remote: str | None = None) -> int:
    def report(line: str) -> None:
        print_error(secrets.mask(line, pipeline.secrets))

    status = runner.run(pipeline, report, once=once, progress_s=progress_s, remote=remote)
    bad = f", {pluralize(status.bad_records, 'bad record')}" if status.bad_records else ""
    why = "everything available was processed" if once else "stopped"
    done = f"{pluralize(status.rows, status.noun)} in {pluralize(status.batches, 'batch')}"
    report(f"pipeline {pipeline.key}: {why}: {done}{bad}")
    return DONE


def print_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
