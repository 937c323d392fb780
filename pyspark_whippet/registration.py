"""How a session of Spark learns of a data source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Also where another session has it already: Spark looks for the name in the session that is the active one of the
    thread, whichever that is, and nothing else makes this one that. So does it when something is written."""
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(source)
