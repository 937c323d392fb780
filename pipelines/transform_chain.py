"""Analyses and applies the chain of transforms. An empty table shows which columns come out, and whether each batch can
be processed on its own.

1. Row-wise transforms are applied to each batch, so that a row on which one fails can be found.
2. If one of them combines rows (windows, deduplication, GROUP BY), all of them become part of Spark's stream, which
   keeps its state in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from whippet.pipelines.errors import FileError
from whippet.pipelines.record_columns import COORDINATES, CORRUPT, HIDDEN, NOW, ORIGIN, empty_like
from whippet.pipelines.spark_plans import KEEPS_STATE, MAKES_ROWS, ROW_WISE, SUBQUERY, nodes
from whippet.pipelines.transforms import Transform
from whippet.pipelines.transforms.computed import BatchContext
from whippet.pipelines.transforms.fields import UpdateFields
from whippet.pipelines.transforms.sql import Sql
from whippet.pipelines.user_text import error_text

CAN_FAIL = (Sql, UpdateFields)
"""Transforms with expressions that may fail for a row."""


@dataclass(frozen=True)
class Analysis:
    schema: StructType
    """The columns that sinks get."""
    keeps_state: bool
    is_one_to_one: bool
    can_fail: bool


def analyse(source: DataFrame, transforms: Sequence[Transform]) -> Analysis:
    """Raises FileError, which names the invalid transform."""
    _check_watermarks(transforms)
    frame = empty_like(source).drop(*HIDDEN)
    context, late = BatchContext(F.current_timestamp(), F.lit("")), False
    for number, transform in enumerate(transforms, start=1):
        frame = _applied(frame, transform, context, place(number, transform))
        late = late or getattr(transform, "watermark", None) is not None
        _check(frame, place(number, transform), late)
    found = nodes(frame)
    return Analysis(
        schema=frame.schema,
        keeps_state=bool(found & KEEPS_STATE),
        is_one_to_one=not found & (MAKES_ROWS | KEEPS_STATE),
        can_fail=any(isinstance(each, CAN_FAIL) for each in transforms),
    )


def apply(frame: DataFrame, transforms: Sequence[Transform], context: BatchContext) -> DataFrame:
    for number, transform in enumerate(transforms, start=1):
        frame = _applied(frame, transform, context, place(number, transform))
    return frame


def apply_to_stream(source: DataFrame, transforms: Sequence[Transform]) -> DataFrame:
    """For a chain that keeps state. Returns its results, and with them the records that could not be parsed."""
    unique = F.concat_ws("|", *COORDINATES) if set(COORDINATES) <= set(source.columns) else F.expr("uuid()")
    good = source.where(F.col(CORRUPT).isNull()).drop(*HIDDEN)
    result = apply(good, transforms, BatchContext(F.current_timestamp(), unique))
    broken = source.where(F.col(CORRUPT).isNotNull()).select(CORRUPT, ORIGIN, NOW)
    return result.unionByName(broken, allowMissingColumns=True)


def _check_watermarks(transforms: Sequence[Transform]) -> None:
    """A stream has only one watermark, and Spark reports a conflict only after the start."""
    found = [(place(number, each), each) for number, each in enumerate(transforms, start=1) if _watermark(each)]
    for where, each in found[1:]:
        if _watermark(each) != _watermark(found[0][1]):
            raise FileError(
                f"{where}: a pipeline has one 'time_field' and one 'watermark': use those of {found[0][0]}, "
                "or make two pipelines with a topic between them"
            )


def _watermark(transform: Transform) -> tuple[str, int] | None:
    late = getattr(transform, "watermark", None)
    return None if late is None else (getattr(transform, "time_field"), late)  # noqa: B009


def place(number: int, transform: Transform) -> str:
    return f"[[transforms]] {number} ({transform.TYPE})"


def _applied(frame: DataFrame, transform: Transform, context: BatchContext, where: str) -> DataFrame:
    try:
        found = transform.apply(frame, context, where)
        names = found.columns
    except PySparkException as error:
        raise FileError(f"{where}: {error_text(error)}") from None
    for name in names:
        if names.count(name) > 1:
            raise FileError(f"{where}: two fields are named '{name}'; rename one of them")
        if name in HIDDEN:
            raise FileError(f"{where}: '{name}' is a reserved name; choose another")
    return found


def _check(frame: DataFrame, where: str, has_watermark: bool) -> None:
    found = nodes(frame)
    if SUBQUERY in found:
        raise FileError(f"{where}: a subquery would see only one batch, not all records; use a window")
    strange = sorted(found - ROW_WISE - MAKES_ROWS - KEEPS_STATE)
    if strange:
        raise FileError(f"{where}: {', '.join(strange)} is not possible on a stream of records")
    if found & KEEPS_STATE and not has_watermark:
        raise FileError(
            f"{where}: it combines records, which never ends in a stream: set 'time_field' and 'watermark', "
            "and group by window(<time_field>, '1 minute')"
        )
