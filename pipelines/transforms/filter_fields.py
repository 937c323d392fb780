"""filter_fields: keeps or drops fields by name and value. It drops fields, never records."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BooleanType, DataType, MapType, NumericType, StringType, StructType

from whippet.pipelines.keys import BOOLEAN, STRINGS, InvalidValue, Kind, key, tables_of
from whippet.pipelines.record_columns import data_columns, quoted, require_field
from whippet.pipelines.transforms.computed import BatchContext
from whippet.pipelines.transforms.fields import literal

BY_NAME: Mapping[str, Callable[[str, str], bool]] = {
    "exact": lambda name, operand: name == operand,
    "starts_with": lambda name, operand: name.startswith(operand),
    "ends_with": lambda name, operand: name.endswith(operand),
    "contains": lambda name, operand: operand in name,
    "regex": lambda name, operand: re.search(operand, name) is not None,
}
BY_TYPE: Mapping[str, Callable[[DataType], bool]] = {
    "is_string": lambda kind: isinstance(kind, StringType),
    "is_number": lambda kind: isinstance(kind, NumericType),
    "is_boolean": lambda kind: isinstance(kind, BooleanType),
    "is_object": lambda kind: isinstance(kind, StructType | MapType),
    "is_array": lambda kind: isinstance(kind, ArrayType),
}
BY_VALUE: Mapping[str, Callable[[Column, Any], Column]] = {
    "equals": lambda column, operand: column.eqNullSafe(literal(operand)),
    "contains": lambda column, operand: column.contains(operand),
    "regex": lambda column, operand: column.rlike(operand),
    "greater_than": lambda column, operand: column > operand,
    "less_than": lambda column, operand: column < operand,
    "between": lambda column, operand: column.between(*operand),
}
TEXTUAL, NUMERIC = ("contains", "regex"), ("greater_than", "less_than", "between")
Condition = tuple[str, Any]


def _key_pattern(raw: Any) -> Condition:
    if not isinstance(raw, dict) or len(raw) != 1 or next(iter(raw)) not in BY_NAME:
        raise InvalidValue(
            f'{_near(raw, BY_NAME)}one of {", ".join(BY_NAME)} is needed, such as {{starts_with = "user_"}}'
        )
    ((how, text),) = raw.items()
    if not isinstance(text, str):
        raise InvalidValue(f"{how}: a string is needed")
    return how, _regular(text) if how == "regex" else text


def _value_pattern(raw: Any) -> Condition:
    if isinstance(raw, str) and (raw in BY_TYPE or raw in ("is_null", "is_not_null")):
        return raw, None
    if not isinstance(raw, dict) or len(raw) != 1 or next(iter(raw)) not in BY_VALUE:
        words = (*BY_VALUE, "is_null", "is_not_null", *BY_TYPE)
        raise InvalidValue(
            f'{_near(raw, words)}one of {", ".join(words)} is needed, such as "is_null" or {{less_than = 5}}'
        )
    ((how, value),) = raw.items()
    if how in TEXTUAL and not isinstance(value, str):
        raise InvalidValue(f"{how}: a string is needed")
    if how == "between" and not (isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))):
        raise InvalidValue("between: two numbers are needed; both are included")
    if how in ("greater_than", "less_than") and not _is_number(value):
        raise InvalidValue(f"{how}: a number is needed")
    return how, _regular(value) if how == "regex" else value


def _near(raw: Any, words: Iterable[str]) -> str:
    name = next(iter(raw), "") if isinstance(raw, dict) else raw
    near = difflib.get_close_matches(str(name), [*words], n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'? " if near and near[0] != name else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _regular(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidValue(f"it is not a regular expression: {error}") from None
    return text


@dataclass(frozen=True, kw_only=True)
class Pattern:
    key_pattern: Condition | None = key(
        Kind("a pattern", _key_pattern), f"a condition on the name: {', '.join(BY_NAME)}", None
    )
    value_pattern: Condition | None = key(
        Kind("a pattern", _value_pattern),
        f"a condition on the value: {', '.join((*BY_VALUE, 'is_null', 'is_not_null', *BY_TYPE))}",
        None,
    )

    def __post_init__(self) -> None:
        if self.key_pattern is None and self.value_pattern is None:
            raise InvalidValue("a pattern needs key_pattern, value_pattern or both")

    def matches(self, name: str, kind: DataType) -> Column | bool:
        """Whether the pattern matches a field: always, never, or depending on the row."""
        if self.key_pattern is not None and not BY_NAME[self.key_pattern[0]](name, self.key_pattern[1]):
            return False
        if self.value_pattern is None:
            return True
        how, operand = self.value_pattern
        if how in BY_TYPE:
            return BY_TYPE[how](kind)
        if how in ("is_null", "is_not_null"):
            return quoted(name).isNull() if how == "is_null" else quoted(name).isNotNull()
        if (how in TEXTUAL and not isinstance(kind, StringType)) or (
            how in NUMERIC and not isinstance(kind, NumericType)
        ):
            return False
        if how == "equals" and not _comparable(kind, operand):
            return False
        return BY_VALUE[how](quoted(name), operand)


def _comparable(kind: DataType, operand: Any) -> bool:
    if isinstance(operand, bool):
        return isinstance(kind, BooleanType)
    if _is_number(operand):
        return isinstance(kind, NumericType)
    return isinstance(kind, StringType) if isinstance(operand, str) else False


@dataclass(frozen=True, kw_only=True)
class FilterFields:
    """Keeps some fields and drops the others. Metadata are kept. A field that is dropped because of its value
    becomes null."""

    TYPE: ClassVar[str] = "filter_fields"
    enabled: bool = key(BOOLEAN, "false: skip this transform", True)
    keep_fields: tuple[str, ...] = key(STRINGS, "fields that are always kept", (), shown="none")
    patterns: tuple[Pattern, ...] = key(
        tables_of(Pattern), "patterns that the other fields are compared with", (), shown="none"
    )
    include_matching: bool = key(BOOLEAN, "true: keep fields that match a pattern; false: drop them", True)

    def apply(self, frame: DataFrame, context: BatchContext, place: str) -> DataFrame:
        for name in self.keep_fields:
            require_field(frame.schema, name, place)
        if not self.keep_fields and not self.patterns:
            return frame
        stays = {name: self._stays(name, frame.schema[name].dataType) for name in data_columns(frame)}
        return frame.select(
            *(self._column(name, stays.get(name, True)) for name in frame.columns if stays.get(name, True) is not False)
        )

    def _stays(self, name: str, kind: DataType) -> Column | bool:
        if name in self.keep_fields:
            return True
        matching = [pattern.matches(name, kind) for pattern in self.patterns]
        conditions = [each for each in matching if not isinstance(each, bool)]
        if True in [each for each in matching if isinstance(each, bool)]:
            return self.include_matching
        if not conditions:
            return not self.include_matching
        any_matches = F.coalesce(conditions[0], F.lit(False))
        for condition in conditions[1:]:
            any_matches = any_matches | F.coalesce(condition, F.lit(False))
        return any_matches if self.include_matching else ~any_matches

    @staticmethod
    def _column(name: str, stays: Column | bool) -> Column:
        return quoted(name) if isinstance(stays, bool) else F.when(stays, quoted(name)).alias(name)
