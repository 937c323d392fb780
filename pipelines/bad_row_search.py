"""Finds the rows on which something fails that fails as a whole, and does not say where. It is tried in halves, down to
single rows, which takes about 2 log2(n) tries for each such row.

A transform fails so, where an expression cannot be worked out, such as a cast of a text that is no number. It is tried
as a small table on the driver, which Spark works out while it plans, without a job, in some 20 ms. A batch with more
such rows than is sensible is an error: then the transform is wrong, and not the rows.
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
"""SQLSTATEs of failures that are about the data: exceptions of data, and those that a statement raises itself."""


def find_failures(count: int, why: Callable[[int, int], str | None]) -> Iterator[tuple[int, str]]:
    """The places below `count` that fail, and why. `why` tries those from a start to an end, and each place that it
    finds nothing wrong with just once: it may do for good what it tries. They come in their order."""
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
    """The numbers of the rows on which `apply` fails, and why. `rows` has them as `_row`."""
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
                "try_cast, try_divide and the like make null of what they cannot do"
            )
    return found


def _failure(rows: DataFrame, apply: Callable[[DataFrame], DataFrame]) -> str | None:
    try:
        result = apply(rows)
        if not spark_plans.is_computed(result):
            # Something that takes a job, such as rows made of arrays.
            result.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        if not is_about_data(error):
            raise
        return error_text(error)
    return None
