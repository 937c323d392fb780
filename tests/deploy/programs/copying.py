"""A job for a cluster: fills a topic, copies it as a stream, and prints how many rows each has.

spark-submit --py-files whippet-spark.zip copying.py URL FROM TO FOLDER
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession

from pyspark_whippet import register

ROWS = 5_000


def main(url: str, source: str, target: str, folder: str) -> None:
    spark = SparkSession.builder.appName("copying").getOrCreate()
    register(spark)
    # The password comes from the environment, so it is not in the plan.
    options = {"url": url, "username": os.environ["WHIPPET_USERNAME"], "password": os.environ["WHIPPET_PASSWORD"]}

    def stored(topic: str) -> DataFrame:
        return spark.read.format("whippet").options(**options).option("subscribe", topic).load()

    values = spark.range(ROWS).selectExpr("cast(id as string) as value").repartition(4)
    values.write.format("whippet").mode("append").options(**options).option("topic", source).save()
    stream = spark.readStream.format("whippet").options(**options).option("subscribe", source)
    query = (
        stream.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "2000")
        .load()
        .select("id", "value")
        .writeStream.format("whippet")
        .options(**options)
        .option("topic", target)
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    said = stored(source).count(), stored(target).select("value").distinct().count(), len(executors) - 1
    sys.stdout.write(f"found {' '.join(map(str, said))}\n")
    spark.stop()


main(*sys.argv[1:])
