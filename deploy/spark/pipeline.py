"""A pipeline on a cluster, under spark-submit, which says where it runs:

    spark-submit --master spark://127.0.0.1:7077 --py-files dist/whippet-spark.zip deploy/spark/pipeline.py FILE

What the sinks need is a matter of the Python on the workers: pyarrow and numpy at least. The state of the pipeline, in
which Spark's checkpoint is, has to be in a folder that the driver and the workers see.
"""

from __future__ import annotations

import argparse
import sys

from whippet.pipelines import command
from whippet.pipelines.pipeline_file import Pipeline


def main() -> int:
    parser = argparse.ArgumentParser(prog="pipeline.py", description="Run a pipeline of Whippet on this cluster.")
    parser.add_argument("file", help="the pipeline file")
    parser.add_argument("--once", action="store_true", help="do what is there now, then end")
    parser.add_argument("--progress", type=float, default=10.0, metavar="SECONDS", help="of its progress lines")
    parser.add_argument("--trace", action="store_true", help="if it fails, show where in the code")
    given = parser.parse_args()

    def run(pipeline: Pipeline) -> int:
        return command.run(pipeline, once=given.once, progress_s=given.progress)

    return command.run_with_file(given.file, run, trace=given.trace)


if __name__ == "__main__":
    sys.exit(main())
