"""add_fields, update_fields, delete_fields: do to columns what the connectors do to the members of a JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from whippet.pipelines import keys
from whippet.pipelines.keys import ANYTHING, BOOLEAN, STRING, STRINGS, InvalidValue, Kind, one_of, table_of, tables_of
from whippet.pipelines.record_columns import METADATA, quoted, require_field
from whippet.pipelines.transforms.computed import COMPUTED, BatchContext, computed


def _name(value: Any) -> str:
    name = str(STRING.parse(value))
    if name in METADATA:
        # Ids are derived from them: a row would be taken for another one.
        raise InvalidValue(f"'{name}' is a metadata field; choose another name")
    return name


FIELD = Kind("a string", _name)
ALWAYS, KEY_EXISTS, KEY_NOT_EXISTS = "always", "key_exists", "key_not_exists"


@dataclass(frozen=True, kw_only=True)
class Value:
    """The new value of a field: one of these."""

    static: Any = keys.key(ANYTHING, "this value: a string, a number, true or false, a time, a list or a table", None)
    computed: str | None = keys.key(one_of(*COMPUTED), "a value computed for each row", None)

    def __post_init__(self) -> None:
        if (self.static is None) == (self.computed is None):
            raise ValueError("one of value.static and value.computed is needed")

    def column(self, name: str, context: BatchContext) -> Column:
        return literal(self.static) if self.computed is None else computed(self.computed, name, context)


@dataclass(frozen=True, kw_only=True)
class NewField:
    key: str = keys.key(FIELD, "the name of the field")
    value: Value = keys.key(table_of(Value), "value.static or value.computed")


@dataclass(frozen=True, kw_only=True)
class UpdatedField(NewField):
    condition: str = keys.key(
        one_of(ALWAYS, KEY_EXISTS, KEY_NOT_EXISTS),
        "when to set it: a field exists in a row if it is not null",
        ALWAYS,
    )


@dataclass(frozen=True, kw_only=True)
class AddFields:
    """Adds fields; an existing field gets the new value."""

    TYPE: ClassVar[str] = "add_fields"
    enabled: bool = keys.key(BOOLEAN, "false: skip this transform", True)
    fields: tuple[NewField, ...] = keys.key(
        tables_of(NewField),
        'such as [{key = "region", value.static = "eu"}, {key = "at", value.computed = "date_time"}]',
    )

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for field in self.fields:
            frame = frame.withColumn(field.key, field.value.column(field.key, context))
        return frame


@dataclass(frozen=True, kw_only=True)
class UpdateFields:
    """Sets fields under a condition. An existing field keeps its type."""

    TYPE: ClassVar[str] = "update_fields"
    enabled: bool = keys.key(BOOLEAN, "false: skip this transform", True)
    fields: tuple[UpdatedField, ...] = keys.key(
        tables_of(UpdatedField), 'such as [{key = "region", value.static = "eu", condition = "key_not_exists"}]'
    )

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for field in self.fields:
            new = field.value.column(field.key, context)
            if field.key not in frame.columns:
                if field.condition != KEY_EXISTS:
                    frame = frame.withColumn(field.key, new)
            else:
                frame = frame.withColumn(field.key, _updated(frame, field, new))
        return frame


def _updated(frame: DataFrame, field: UpdatedField, new: Column) -> Column:
    old = quoted(field.key)
    new = new.cast(frame.schema[field.key].dataType)
    if field.condition == ALWAYS:
        return new
    is_wanted = old.isNotNull() if field.condition == KEY_EXISTS else old.isNull()
    return F.when(is_wanted, new).otherwise(old)


@dataclass(frozen=True, kw_only=True)
class DeleteFields:
    """Removes fields, which may be metadata."""

    TYPE: ClassVar[str] = "delete_fields"
    enabled: bool = keys.key(BOOLEAN, "false: skip this transform", True)
    fields: tuple[str, ...] = keys.key(STRINGS, "their names")

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for name in self.fields:
            require_field(frame.schema, name, place)
        return frame.select(*(quoted(name) for name in frame.columns if name not in self.fields))


def literal(value: Any) -> Column:
    """Converts a value of TOML."""
    if isinstance(value, list):
        return F.array(*map(literal, value))
    if isinstance(value, dict):
        return F.struct(*(literal(each).alias(name) for name, each in value.items()))
    return F.lit(value)
