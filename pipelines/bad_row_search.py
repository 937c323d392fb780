"""Finds the rows on which an operation fails when it only fails as a whole. The operation is tried on halves, down to
single rows, which takes about 2 log2(n) tries for each bad row.

A transform fails in this way if an expression cannot be evaluated, such as a cast of a text that is not a number. It is
tried on a small table on the driver, which Spark evaluates during planning, without a job, in some 20 ms. Too many such
rows in one batch are an error: then the transform is wrong, not the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from whippet.pipelines import spark_plans
from whippet.pipelines.errors import BadRecordError
from whippet.pipelines.record_columns import ROW
from whippet.pipelines.user_text import error_text

BAD_ROWS_MAX = 100
DATA_ERRORS = ("22", "P0001")
"""SQLSTATEs of failures caused by data: data exceptions, and errors that a statement raises itself."""


def find_failures(count: int, why: Callable[[int, int], str | None]) -> Iterator[tuple[int, str]]:
    """Yields the places below `count` that fail, in order, with the reason.

    `why` tries the places from a start to an end. It succeeds exactly once for each good place, so it may do its work
    for real.
    """
    waiting = [(0, count)] if count else []
    while waiting:
        start, end = waiting.pop()
        reason = why(start, end)
        if reason is None:
            continue
        if end - start == 1:
            yield start, reason
            continue
        middle = (start + end) // 2
        waiting += [(middle, end), (start, middle)]


def is_about_data(error: BaseException) -> bool:
    return isinstance(error, PySparkException) and (error.getSqlState() or "").startswith(DATA_ERRORS)


def failing_rows(rows: DataFrame, apply: Callable[[DataFrame], DataFrame]) -> dict[int, str]:
    """Returns the numbers of the rows on which `apply` fails, and why. The column `_row` of `rows` has the numbers."""
    here = rows.sparkSession.createDataFrame(rows.toArrow(), rows.schema)
    numbers = sorted(row[0] for row in here.select(ROW).collect())

    def why_not(start: int, end: int) -> str | None:
        return _failure(here.where(F.col(ROW).between(numbers[start], numbers[end - 1])), apply)

    found: dict[int, str] = {}
    for place, why in find_failures(len(numbers), why_not):
        found[numbers[place]] = why
        if len(found) > BAD_ROWS_MAX:
            raise BadRecordError(
                f"more than {BAD_ROWS_MAX} rows of one batch cannot be transformed: {why}; "
                "functions such as try_cast and try_divide return null instead of failing"
            )
    return found


def _failure(rows: DataFrame, apply: Callable[[DataFrame], DataFrame]) -> str | None:
    try:
        result = apply(rows)
        if not spark_plans.is_computed(result):
            # This needs a job, for example because arrays are turned into rows.
            result.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        if not is_about_data(error):
            raise
        return error_text(error)
    return None
