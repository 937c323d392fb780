"""A program of a project with its own packages `app`, `storage` and `transports`: it sends orders and reads them with
Spark. tests/packaging/test_wheel.py runs it where Whippet was installed from the wheel.

It prints a JSON object: where the modules were found, Spark's error while pyarrow was missing, and what was read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from app.settings import TOPIC  # type: ignore[import-not-found]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pyspark_whippet
import whippet
from whippet.client import connect, producer


async def send(address: str, orders: list[bytes]) -> None:
    stream, topic = TOPIC.split("/")
    async with await connect(address) as client:
        await client.create_stream(stream)
        await client.create_topic(stream, topic)
        async with producer(client, stream, topic) as to_topic:
            for order in orders:
                await to_topic.send(order)


def table(spark: SparkSession, url: str) -> DataFrame:
    reader = spark.read.format("whippet").option("url", url).option("username", "iggy").option("password", "iggy")
    return reader.option("subscribe", TOPIC).load()


def values(frame: DataFrame) -> list[str]:
    return [row[0] for row in frame.selectExpr("string(value)").collect()]


def main(binary: str, http: str, without_pyarrow: Path) -> None:
    asyncio.run(send(f"iggy://iggy:iggy@{binary}", [b"the first order", b"the second order"]))
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    refusal = ""
    without_pyarrow.touch()
    try:
        table(spark, f"http://{http}").collect()
    except PySparkException as error:
        refusal = str(error)
    without_pyarrow.unlink()
    found = values(table(spark, f"http://{http}"))

    from whippet.spark import register  # noqa: PLC0415 -- what comes before does without

    register(spark)
    registered = values(table(spark, f"http://{http}"))
    spark.stop()
    modules = [each.__file__ for each in (sys.modules["app"], whippet, pyspark_whippet)]
    json.dump({"modules": modules, "refusal": refusal, "found": found, "registered": registered}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
