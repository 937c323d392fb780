"""The text of a plan leads to the same conclusions as the plan itself."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark.sql import DataFrame, SparkSession

from whippet.pipelines import spark_plans
from whippet.pipelines.spark_plans import nodes

STATEMENTS = {
    "fields": "SELECT a, b + 1 AS c FROM input WHERE a > 'x'",
    "a text with lines": "SELECT 'one\ntwo +- Join [a]\n== Optimized ==\n\nJoin' AS t, a FROM input",
    "rows of a list": "SELECT explode(array(1, 2)) AS n FROM input",
    "sums": "SELECT a, sum(b) AS s FROM input GROUP BY a",
    "distinct": "SELECT DISTINCT a FROM input",
    "a join": "SELECT l.a FROM input l JOIN input r ON l.a = r.a",
    "an order": "SELECT a FROM input ORDER BY b",
    "with": "WITH some AS (SELECT a FROM input) SELECT x.a FROM some x UNION ALL SELECT y.a FROM some y",
    "a subquery": "SELECT a, (SELECT max(b) FROM input) AS m FROM input",
    "in": "SELECT a FROM input WHERE b IN (SELECT b FROM input)",
    "exists": "SELECT a FROM input i WHERE EXISTS (SELECT 1 FROM input j WHERE j.b > i.b)",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_nodes_are_read_from_the_text_of_a_plan_if_nothing_else_is_available(
    spark: SparkSession, statement: str
) -> None:
    spark.createDataFrame([], "a string, b int").createOrReplaceTempView("input")
    frame = spark.sql(statement)
    read = spark_plans._nodes_of(spark_plans._section(Remote(frame), "Analyzed"))
    assert _judged(read) == _judged(nodes(frame))


class Remote:
    """What the DataFrames of Connect offer."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def _explain_string(self, *, extended: bool) -> str:
        assert extended
        return str(self._frame._jdf.queryExecution().toString())


def _judged(found: set[str]) -> list[bool]:
    """The conclusions from a plan. A subquery is always refused, whatever else is in the plan."""
    if spark_plans.SUBQUERY in found:
        return [True]
    known = spark_plans.ROW_WISE | spark_plans.MAKES_ROWS | spark_plans.KEEPS_STATE
    return [False, bool(found - known), bool(found & spark_plans.KEEPS_STATE), bool(found & spark_plans.MAKES_ROWS)]


def test_rows_computed_by_planning_need_no_job(spark: SparkSession) -> None:
    rows = spark.createDataFrame(pa.table({"a": [1, 2]}))
    assert spark_plans.is_computed(rows.where("a > 1"))
    assert not spark_plans.is_computed(rows.selectExpr("explode(array(a, a)) AS b"))
