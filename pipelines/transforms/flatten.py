"""flatten: turns the members of structs into fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from whippet.pipelines.errors import FileError
from whippet.pipelines.keys import BOOLEAN, STRING, STRINGS, key
from whippet.pipelines.record_columns import data_columns, quoted, require_field
from whippet.pipelines.transforms.computed import BatchContext


@dataclass(frozen=True, kw_only=True)
class Flatten:
    """Turns the members of structs, nested ones included, into fields: `address.city` becomes `address_city`."""

    TYPE: ClassVar[str] = "flatten"
    enabled: bool = key(BOOLEAN, "false: skip this transform", True)
    fields: tuple[str, ...] = key(STRINGS, "the structs to flatten", (), shown="all")
    separator: str = key(STRING, "separator between the names", "_")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for name in self.fields:
            require_field(frame.schema, name, place)
        chosen = self.fields or tuple(data_columns(frame))
        columns: list[tuple[str, Column]] = []
        for field in frame.schema:
            if field.name in chosen and isinstance(field.dataType, StructType):
                columns += self._members(field.name, quoted(field.name), field.dataType)
            else:
                columns.append((field.name, quoted(field.name)))
        names = [name for name, _ in columns]
        for name in names:
            if names.count(name) > 1:
                raise FileError(f"{place}: two fields would be named '{name}'; choose another separator")
        return frame.select(*(column.alias(name) for name, column in columns))

    def _members(self, prefix: str, parent: Column, kind: StructType) -> list[tuple[str, Column]]:
        found: list[tuple[str, Column]] = []
        for member in kind:
            name, column = f"{prefix}{self.separator}{member.name}", parent.getField(member.name)
            if isinstance(member.dataType, StructType):
                found += self._members(name, column, member.dataType)
            else:
                found.append((name, column))
        return found
