"""Topics as tables and streams of Apache Spark: the data source `whippet`, on the Python Data Source API.

    from pyspark_whippet import register
    register(spark)
    spark.read.format("whippet").option("subscribe", "orders/eu").load()

1. It travels to executors as a zip without the server, so nothing here imports anything of `whippet`: the standard
   library, numpy, pyarrow and pyspark are all there is. xxhash, where it is installed, lets batches be written in the
   form in which they are stored; without it they are sent as JSON.
2. It speaks to the gateway over HTTP alone. `session` is the one module that has a socket.
3. What Spark calls where, and in which process, is in the docstrings of `reader`, `stream_reader` and `writer`.
   Whatever is pickled (options, readers, writers, slices, commit messages) holds plain values and no socket.
4. Spark asks every installed module whose name begins with `pyspark_` for a `DefaultSource`. It finds only what is
   installed, not what `--py-files` brings: there, call `register`. A module that cannot be imported would keep Spark
   from finding all others, so packages are imported where they are needed, and `discovered` tells what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["log_sink", "register"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(name)
    # Importing a package must not need pyspark.
    from pyspark_whippet.default_source import DefaultSource  # noqa: PLC0415

    return DefaultSource


def register(spark: SparkSession) -> None:
    """Makes `format("whippet")` known to a session; needed where discovery of installed packages does not reach, and in
    every thread that writes but is not the one in which the session was made."""
    from pyspark_whippet import registration  # noqa: PLC0415
    from pyspark_whippet.source import WhippetSource  # noqa: PLC0415

    registration.link_zip_for_streams()
    registration.register(spark, WhippetSource)


def log_sink(name: str, **options: str) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: appends each batch to a topic, with ids that come out the same when it is replayed.

    `name` stands for the query in them: a query that begins anew, with a new checkpoint, needs a new one.
    """

    def append(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("whippet").mode("append").options(**options)
        writer.options(idNamespace=name, idBatch=str(batch_id)).save()

    return append
