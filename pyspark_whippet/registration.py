"""Registers the data source with a Spark session, and prepares the driver when the data source came as a zip.

Spark 4 plans a stream with the files of a job named `streaming_job`, and looks for a zip from `--py-files` or
`addPyFile` in that job's folder, where nobody has put it. Streams alone would then fail with "No module named
'pyspark_whippet'", so `link_zip_for_streams` puts it there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

STREAMING_JOB = "streaming_job"


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Registers a data source, even if another session already has it.

    Spark looks the name up in the active session of the thread. Creating a DataFrame is what makes this session the
    active one; writing does it too, but nothing else does.
    """
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(source)


def link_zip_for_streams() -> None:
    """Does nothing where the data source is installed as a package."""
    archive = getattr(sys.modules[__name__].__loader__, "archive", None)
    if archive is None:
        return
    root = _spark_files_folder()
    if root is not None:
        place = os.path.join(root, STREAMING_JOB, os.path.basename(archive))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.symlink(archive, place)


def _spark_files_folder() -> str | None:
    """Returns None for a client of a Connect server: it may have no Java, and streams do find its artifacts."""
    module: Any = sys.modules.get("pyspark.core.context")
    if module is None or module.SparkContext._active_spark_context is None:
        return None
    from pyspark import SparkFiles  # noqa: PLC0415 -- a Connect client may not be able to import it

    return SparkFiles.getRootDirectory()
