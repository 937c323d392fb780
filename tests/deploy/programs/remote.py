"""A client of a Connect server, which has no Java: python remote.py ADDRESS ZIP URL FROM TO FOLDER"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

ROWS = 2_000


def main(address: str, zipped: str, url: str, source: str, target: str, folder: str) -> None:
    sys.path.insert(0, zipped)
    from pyspark_whippet import log_sink, register  # noqa: PLC0415 -- it has come with the zip

    spark = SparkSession.builder.remote(address).getOrCreate()
    spark.addArtifacts(zipped, pyfile=True)
    register(spark)
    options = {"url": url, "username": os.environ["WHIPPET_USERNAME"], "password": os.environ["WHIPPET_PASSWORD"]}

    def stored(topic: str) -> DataFrame:
        return spark.read.format("whippet").options(**options).option("subscribe", topic).load()

    values = spark.range(ROWS).selectExpr("cast(id as string) as value")
    values.write.format("whippet").mode("append").options(**options).option("topic", source).save()

    def copied(folder: str) -> DataStreamWriter:
        stream = spark.readStream.format("whippet").options(**options).option("subscribe", source)
        values = stream.option("startingOffsets", "earliest").load().select("value")
        return values.writeStream.option("checkpointLocation", folder)

    sink = copied(folder + "/sink").format("whippet").options(**options).option("topic", target)
    sink.trigger(availableNow=True).start().awaitTermination()
    # What foreachBatch starts here has no properties of a query: log_sink passes them itself. It runs twice from the
    # start, as after the loss of a checkpoint.
    for attempt in "12":
        each = copied(f"{folder}/each{attempt}").foreachBatch(log_sink("copied", topic=target + "2", **options))
        each.trigger(availableNow=True).start().awaitTermination()
    said = stored(source).count(), stored(target).count(), stored(target + "2").count()
    sys.stdout.write(f"found {' '.join(map(str, said))}\n")
    spark.stop()


main(*sys.argv[1:])
