"""Registers the data source with a Spark session, and prepares the driver when the data source came as a zip.

Spark 4 plans a stream with the files of a job named `streaming_job`, and looks for a zip from `--py-files` or
`addPyFile` in that job's folder, where nobody has put it. Streams alone would then fail with "No module named
'pyspark_whippet'", so `link_zip_for_streams` puts it there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

STREAMING_JOB = "streaming_job"
MARK = "_whippet_appends_by_default"


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Registers a data source, even if another session already has it.

    Spark looks the name up in the active session of the thread. Creating a DataFrame is what makes this session the
    active one; writing does it too, but nothing else does.
    """
    frame = spark.createDataFrame([], "nothing int")
    spark.dataSource.register(source)
    append_by_default(type(frame.write), source.name())


def append_by_default(writer: type[Any], name: str) -> None:
    """Makes `append` the mode of writers with this format for which no mode is chosen.

    Spark's own default asks whether the table is empty, which it cannot ask a data source in Python: it would refuse to
    write.
    """
    if getattr(writer, MARK, None) is not None:
        return
    plain_format, plain_mode, plain_save = writer.format, writer.mode, writer.save

    def format(self: Any, source: str) -> Any:  # noqa: A001 -- the name in Spark
        self._whippet_format = source
        return plain_format(self, source)

    def mode(self: Any, saveMode: str | None) -> Any:  # noqa: N803 -- the name in Spark
        self._whippet_mode = self.__dict__.get("_whippet_mode") or saveMode
        return plain_mode(self, saveMode)

    def save(self: Any, path: Any = None, format: Any = None, mode: Any = None, *more: Any, **options: Any) -> None:  # noqa: A002
        chosen = self.__dict__
        if (format or chosen.get("_whippet_format")) == name and not (mode or chosen.get("_whippet_mode")):
            mode = "append"
        plain_save(self, path, format, mode, *more, **options)

    for own, plain in ((format, plain_format), (mode, plain_mode), (save, plain_save)):
        setattr(writer, own.__name__, functools.wraps(plain)(own))
    setattr(writer, MARK, True)


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
