"""Apache Spark data source `whippet`: reads topics as tables and streams, and writes to them, on the Python Data Source
API.

    from pyspark_whippet import register
    register(spark)
    spark.read.format("whippet").option("subscribe", "orders/eu").load()

1. The package travels to executors as a zip without the server, so nothing here imports `whippet`. It needs only the
   standard library, numpy, pyarrow and pyspark. With xxhash, batches are written in the format of the store; without it
   they are sent as JSON.
2. It talks to the gateway over HTTP alone. `session` is the only module that opens a socket.
3. The docstrings of `table_reader`, `stream_reader` and `writer` say which of their methods Spark calls in which
   process. Everything that is pickled (options, readers, writers, splits, commit messages) holds plain values and no
   socket.
4. Spark asks every installed module whose name begins with `pyspark_` for a `DefaultSource`. It finds only installed
   modules, not those from `--py-files`; for these, call `register`. A module that cannot be imported would keep Spark
   from finding all others, so packages are imported where they are needed, and `default_source` reports a missing one.
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
    # Importing this package must not require pyspark.
    from pyspark_whippet.default_source import DefaultSource  # noqa: PLC0415

    return DefaultSource


def register(spark: SparkSession) -> None:
    """Makes `format("whippet")` known to a session.

    Needed where Spark does not discover installed packages, and in every thread that writes but did not create the
    session.
    """
    from pyspark_whippet import packages, registration  # noqa: PLC0415

    packages.need_pyspark()
    from pyspark_whippet.source import WhippetSource  # noqa: PLC0415

    registration.link_zip_for_streams()
    registration.register(spark, WhippetSource)


def log_sink(name: str, **options: str) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that appends each batch to a topic, with ids that are the same on a replay.

    `name` identifies the query in the ids: a query that starts over with a new checkpoint needs a new name.
    """

    def append(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("whippet").mode("append").options(**options)
        writer.options(idNamespace=name, idBatch=str(batch_id)).save()

    return append
