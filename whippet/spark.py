"""Topics as tables and streams of Apache Spark; it needs `pip install 'whippet-gateway[spark]'`.

    from whippet.spark import register

    register(spark)
    spark.read.format("whippet").option("subscribe", "orders/eu").load()

Where Whippet is installed for the Python that Spark runs, Spark finds the data source by itself, and `register` is not
needed. What can be set is described in docs/spark.md.
"""

from pyspark_whippet import log_sink, register

__all__ = ["log_sink", "register"]
