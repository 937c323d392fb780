"""A job in which one task stops after it has written some of its rows, so that Spark runs a second copy.

spark-submit --py-files whippet-spark.zip straggling.py URL TOPIC
"""

import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator

from pyarrow import RecordBatch
from pyspark import TaskContext
from pyspark.sql import SparkSession

from pyspark_whippet import register

ROWS, TASKS, STOPPED_SECONDS = 4_000, 4, 60


def stored(url: str) -> int:
    """Returns the number of messages in all topics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        found = re.search(r"^messages (\d+)", answer.read().decode(), re.MULTILINE)
    assert found
    return int(found.group(1))


def main(url: str, topic: str) -> None:
    spark = (
        SparkSession.builder.appName("straggling")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "2")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS // TASKS // 10))
        .getOrCreate()
    )
    register(spark)
    before = stored(url)

    def stopping(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        task = TaskContext.get()
        assert task
        deadline = time.monotonic() + STOPPED_SECONDS
        if task.attemptNumber() > 0:
            # The other tasks are done, and the first copy of this one has written some of its rows.
            while stored(url) <= before + ROWS - ROWS // TASKS and time.monotonic() < deadline:
                time.sleep(0.1)
        for number, batch in enumerate(batches):
            yield batch
            if number == 4 and task.partitionId() == 0 and task.attemptNumber() == 0:
                time.sleep(STOPPED_SECONDS)

    # Large enough to pass the buffers between the processes.
    rows = spark.range(0, ROWS, 1, TASKS).selectExpr("rpad(cast(id as string), 2000, ' ') as value")
    options = {"url": url, "username": os.environ["WHIPPET_USERNAME"], "password": os.environ["WHIPPET_PASSWORD"]}
    stopped = rows.mapInArrow(stopping, rows.schema)
    stopped.write.format("whippet").mode("append").options(**options).options(topic=topic, batchSize=50).save()
    spark.stop()


main(*sys.argv[1:])
