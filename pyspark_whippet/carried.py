"""What has to be done on the driver when the data source has come as a zip, by `--py-files` or `addPyFile`.

Spark 4 plans a stream with the files of a job `streaming_job`, and looks for the zip in the folder of that job, where
nobody has put it: "No module named 'pyspark_whippet'", in streams alone. So it is put there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

STREAMING_JOB = "streaming_job"


def put_where_streams_look() -> None:
    """Nothing, where the data source is installed."""
    archive = getattr(sys.modules[__name__].__loader__, "archive", None)
    if archive is None:
        return
    root = _files_of_driver()
    if root is not None:
        place = os.path.join(root, STREAMING_JOB, os.path.basename(archive))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(archive, place)


def _files_of_driver() -> str | None:
    """None for a client of a Connect server, which may have no Java, and whose artifacts streams do find."""
    module: Any = sys.modules.get("pyspark.core.context")
    if module is None or module.SparkContext._active_spark_context is None:
        return None
    from pyspark import SparkFiles  # noqa: PLC0415 -- as above

    return SparkFiles.getRootDirectory()
