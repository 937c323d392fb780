"""`whippet pipeline check`: reports what a pipeline would do, and what is wrong with it. It changes nothing."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whippet.app.cli import pipelines

if TYPE_CHECKING:
    from whippet.pipelines.pipeline_file import Pipeline

SOUND = 0


def run(
    file: pipelines.File,
    remote: pipelines.Remote = None,
    trace: pipelines.Trace = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="contact neither source nor sinks, and do not analyse the transforms")
    ] = False,
) -> int:
    return pipelines.with_file(file, lambda pipeline: _check(pipeline, offline, remote), trace=trace)


def _check(pipeline: Pipeline, offline: bool, remote: str | None) -> int:
    from whippet.pipelines import check_report, secrets  # noqa: PLC0415 -- an extra

    for line in check_report.lines(pipeline, inspect=not offline):
        print(secrets.mask(line, pipeline.secrets))
    if not offline:
        print(_columns(pipeline, remote))
    print("the pipeline can run")
    return SOUND


def _columns(pipeline: Pipeline, remote: str | None) -> str:
    """Returns the columns after the transforms, if the sinks accept them; only Spark knows what a statement means."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 -- an extra

    from whippet.pipelines import check_report, spark_session, transform_chain, user_text  # noqa: PLC0415

    print("starting Spark to analyse the transforms ...", file=sys.stderr, flush=True)
    is_own = not spark_session.has_session()
    with tempfile.TemporaryDirectory() as folder:
        session = spark_session.start("whippet pipeline check", pipeline.spark, Path(folder), remote)
        try:
            found = transform_chain.analyse(pipeline.source.frame(session, pipeline.iggy), pipeline.transforms)
            for place, sink in pipeline.placed_sinks:
                sink.check_schema(found.schema, pipeline.iggy, place)
            return check_report.describe_columns(found)
        except PySparkException as error:
            raise user_text.as_pipeline_error(error) from error
        finally:
            if is_own:
                spark_session.stop(session)
