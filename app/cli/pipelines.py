"""Code that `whippet pipeline run` and `whippet pipeline check` share: both read a file, and need Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from whippet.pipelines.pipeline_file import Pipeline

REFUSED = 2
NEEDS_SPARK = "whippet: pipelines need Spark: install whippet-gateway[spark] (docs/install.md)"


File = Annotated[str, typer.Argument(help="the pipeline file, such as deploy/pipelines/lake.toml")]
Remote = Annotated[
    str | None, typer.Option(envvar="SPARK_REMOTE", metavar="sc://HOST:PORT", help="a Spark Connect server")
]
Trace = Annotated[bool, typer.Option("--trace", help="on failure, show the traceback")]


def with_file(file: str, act: Callable[[Pipeline], int], *, trace: bool) -> int:
    try:
        from pyspark_whippet import packages  # noqa: PLC0415 -- an extra

        packages.need_pyspark()
        from whippet.pipelines import command  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "py4j"):
            raise
        print(NEEDS_SPARK, file=sys.stderr)
        return REFUSED
    except ImportError as error:
        print(f"whippet: {error}", file=sys.stderr)
        return REFUSED
    return command.run_with_file(file, act, trace=trace)
