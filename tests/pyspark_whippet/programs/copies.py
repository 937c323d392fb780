"""Copies a topic twice, as streams that resume where they were: copies.py URL PASSWORD FROM FOLDER [once]

One copy takes its ids from the source, in whatever order its rows come; the other derives them from what it writes.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import rand

from pyspark_whippet import register

BATCH = 400


def main(url: str, password: str, source: str, folder: str, once: str = "") -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    options = {"url": url, "username": "iggy", "password": password}
    options |= {"http.retries": "8", "http.timeoutMs": "10000"}
    stream = spark.readStream.format("whippet").options(**options).option("subscribe", source)
    rows = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", BATCH).load()
    copies = {
        "by_id": rows.select("id", "value").repartition(3, rand()),
        "by_value": rows.select("value"),
    }
    queries = []
    for name, copied in copies.items():
        writer = copied.writeStream.format("whippet").options(**options).option("topic", f"copies/{name}")
        writer = writer.option("checkpointLocation", f"{folder}/{name}").option("batchSize", 100)
        queries.append((writer.trigger(availableNow=True) if once else writer).start())
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    for query in queries:
        query.awaitTermination()


main(*sys.argv[1:])
