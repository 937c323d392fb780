"""Code that `whippet pipeline run` and `whippet pipeline check` share: both read a file, and need Spark."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whippet.pipelines.pipeline_file import Pipeline

REFUSED = 2
NEEDS_SPARK = "whippet: pipelines need Spark: install whippet-gateway[spark] (docs/install.md)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the pipeline file, such as deploy/pipelines/lake.toml")
    remote = os.environ.get("SPARK_REMOTE")
    parser.add_argument(
        "--remote", default=remote, metavar="sc://HOST:PORT", help="a Spark Connect server (default: SPARK_REMOTE)"
    )
    parser.add_argument("--trace", action="store_true", help="on failure, show the traceback")


def with_file(arguments: argparse.Namespace, act: Callable[[Pipeline], int]) -> int:
    try:
        from whippet.pipelines import command  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "pyarrow", "py4j"):
            raise
        print(NEEDS_SPARK, file=sys.stderr)
        return REFUSED
    return command.run_with_file(arguments.file, act, trace=arguments.trace)
