"""The Spark jobs of the benchmark: blocking functions on one session, each of which returns how fast it was.

The session is `local[2]`, tuned as docs/spark.md recommends, without a web page. Rows go to the sink `noop`, unless
writing to a topic is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark_whippet import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_BATCHES = 3
"""The first batches of a query start processes and compile code."""
TUNED = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}


class NoSpark(Exception):
    pass


class Engine:
    """A Spark session, and the gateway that it reads from and writes to."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._checkpoints = 0
        self.options: Mapping[str, str] = {}
        """How to reach the gateway."""
        self._rows = 0
        self._frame: DataFrame | None = None
        self.spark = _session(folder)

    def close(self) -> None:
        self.spark.stop()

    # -------------------------------------------------------------------------------------------------------- reading

    def read(self, topic: str, rows: int, columns: str | None = None, **more: str) -> float:
        """Returns rows per second."""
        reader = self.spark.read.format("whippet").options(**self.options).option("subscribe", topic)
        if columns is not None:
            reader = reader.schema(columns)
        return _timed(rows, lambda: _drain(reader.options(**more).load()))

    def read_parquet(self, path: str, rows: int) -> float:
        return _timed(rows, lambda: _drain(self.spark.read.parquet(path)))

    def make_parquet(self, topic: str, path: str, rows_a_file: int) -> float:
        """Writes the same rows as Parquet; the returned rate does not matter."""
        reader = self.spark.read.format("whippet").options(**self.options).option("subscribe", topic)
        return _timed(1, lambda: reader.load().write.option("maxRecordsPerFile", rows_a_file).parquet(path))

    # -------------------------------------------------------------------------------------------------------- writing

    def make_rows(self, rows: int, size: int) -> float:
        """Caches this many values of this many bytes in Spark's memory, for `write`."""
        made = self.spark.range(0, rows, 1, 2).selectExpr(f"rpad(string(id), {size}, 'x') AS value")
        self._rows, self._frame = rows, made.cache()
        return _timed(rows, made.count)

    def write(self, topic: str, **more: str) -> float:
        """Returns rows per second."""
        assert self._frame is not None
        register(self.spark)
        writer = self._frame.write.format("whippet").mode("append").options(**self.options).option("topic", topic)
        return _timed(self._rows, writer.options(**more).save)

    # ------------------------------------------------------------------------------------------------------ streaming

    def stream(self, topic: str, rows_a_batch: int, **more: str) -> float:
        """Returns rows per second, in warm batches."""
        reader = self.spark.readStream.format("whippet").options(**self.options).option("subscribe", topic)
        source = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(rows_a_batch), **more).load()
        return _rate(self._batches(source, None))

    def stream_parquet(self, path: str, files_a_batch: int) -> float:
        schema = self.spark.read.parquet(path).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", files_a_batch)
        return _rate(self._batches(reader.parquet(path), None))

    def single_rows(self, topic: str, sink: str | None) -> float:
        """Returns the milliseconds of a warm batch with one row, to a topic or to no sink."""
        reader = self.spark.readStream.format("whippet").options(**self.options).option("subscribe", topic)
        source = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="1").load()
        return _median_ms(self._batches(source if sink is None else source.select("value"), sink))

    def single_rows_of_spark(self, batches: int) -> float:
        """The same with one of Spark's own sources."""
        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
        return _median_ms(self._batches(reader.load(), None, batches))

    def _batches(self, source: DataFrame, topic: str | None, batches: int | None = None) -> list[dict[str, Any]]:
        """Returns Spark's progress reports of the warm batches. The query ends by itself, or after this many
        batches."""
        register(self.spark)
        self._checkpoints += 1
        checkpoint = f"{self._folder}/checkpoint-{self._checkpoints}"
        writer = source.writeStream.option("checkpointLocation", checkpoint)
        if topic is None:
            writer = writer.format("noop")
        else:
            writer = writer.format("whippet").options(**self.options).option("topic", topic)
        if batches is None:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        else:
            query = writer.start()
            while (query.lastProgress or {"batchId": -1})["batchId"] < batches:
                query.awaitTermination(1)
            query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
        found = [json.loads(progress.json) for progress in query.recentProgress]
        return [each for each in found if each["numInputRows"]][WARM_BATCHES:]


def _session(folder: str) -> SparkSession:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 -- nobody else needs it
    except ImportError as error:
        raise NoSpark(f"{error}: install whippet-gateway[spark] (docs/install.md)") from None
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise NoSpark("there is no Java on this machine, and Spark needs 17 or newer")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("whippet bench")
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    for key, value in {**quiet, **TUNED}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _timed(rows: int, act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return rows / (time.perf_counter() - start)


def _rate(batches: list[dict[str, Any]]) -> float:
    rows = sum(each["numInputRows"] for each in batches)
    return float(rows / sum(each["durationMs"]["triggerExecution"] for each in batches) * 1000)


def _median_ms(batches: list[dict[str, Any]]) -> float:
    return float(statistics.median(each["durationMs"]["triggerExecution"] for each in batches))
