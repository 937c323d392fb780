"""Topics as tables and streams of Apache Spark; it needs the extra `spark` of whippet-gateway.

    from whippet.spark import register

    register(spark)
    spark.read.format("whippet").option("subscribe", "orders/eu").load()

If Whippet is installed in Spark's Python, Spark finds the data source by itself, and `register` is not needed. The
names in `__all__` are public; docs/spark.md describes them and every option.
"""

from pyspark_whippet import log_sink, register
from pyspark_whippet.listener import Lag, LagListener

__all__ = ["Lag", "LagListener", "log_sink", "register"]
