"""The transforms, applied between source and sinks in the order of the file. Each module has one or a few that
belong together; names and keys are those of the connectors' reference where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from pyspark.sql import DataFrame

from whippet.pipelines.transforms.computed import BatchContext
from whippet.pipelines.transforms.deduplicate import Deduplicate
from whippet.pipelines.transforms.fields import AddFields, DeleteFields, UpdateFields
from whippet.pipelines.transforms.filter_fields import FilterFields
from whippet.pipelines.transforms.flatten import Flatten
from whippet.pipelines.transforms.sql import Sql
from whippet.pipelines.transforms.window import Window


class Transform(Protocol):
    TYPE: ClassVar[str]

    @property
    def enabled(self) -> bool: ...

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        """`place` is the transform's place in the file, for errors."""


_ALL: tuple[Any, ...] = (AddFields, UpdateFields, DeleteFields, FilterFields, Flatten, Sql, Window, Deduplicate)
TRANSFORMS: Mapping[str, type[Any]] = {each.TYPE: each for each in _ALL}
