"""The sink `delta`: appends to a Delta table with delta-rs. The commit that adds the rows of a batch records its
number.

Delta stores such numbers but does not compare them, so they are checked first. Two pipelines never write under one
name, because they never share a state.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from whippet.pipelines.errors import MissingError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, PATH, STRINGS, integer, key
from whippet.pipelines.record_columns import Batch, require_field, selected_schema
from whippet.pipelines.sinks import delta_constraints, lake_tables
from whippet.pipelines.user_text import first_line

if TYPE_CHECKING:
    import deltalake

_log = logging.getLogger(__name__)
HOUR_MS = 3_600_000
WIDER = (("byte", "short", "integer", "long"), ("float", "double"))
"""Types of Delta, each of which accepts those before it."""
_NEVER_NULL = re.compile(r'("(?:nullable|containsNull|valueContainsNull)"):false')


@dataclass(frozen=True, kw_only=True)
class DeltaSink:
    """A Delta table, which is created if it does not exist. A batch passes through the driver."""

    TYPE: ClassVar[str] = "delta"
    DELIVERY: ClassVar[str] = "exactly once: the number of the batch is in the commit that adds its rows"
    path: str = key(PATH, "the folder of the table")
    partition_by: tuple[str, ...] = key(STRINGS, "fields to partition by", (), shown="none")
    include_metadata: bool = key(BOOLEAN, "also write metadata, such as `iggy_offset`", True)
    compact_after: int = key(integer(0), "number of batches after which small files are compacted; 0: never", 100)
    keep_versions: int | None = key(
        DURATION,
        "after a compaction, delete the files that only older versions need; at least '1 h'",
        None,
        shown="keep all",
    )

    def __post_init__(self) -> None:
        if self.keep_versions is not None and self.keep_versions < HOUR_MS:
            raise ValueError("key 'keep_versions': at least '1 h' is needed, so that readers do not lose their files")

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        delta = _library()
        with lake_tables.as_sink_errors(f"table {self.path}"):
            table = self._table(delta)
        yield f"table {self.path}: {'will be created' if table is None else f'version {table.version()}'}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        delta, wanted = _library(), selected_schema(schema, self.include_metadata)
        for name in self.partition_by:
            require_field(wanted, name, place)
        with lake_tables.as_sink_errors(place):
            fields = delta.Schema.from_arrow(to_arrow_schema(wanted, timezone="UTC")).fields
            table = self._table(delta)
        if table is not None:
            ours = {each.name: _kind(each) for each in fields}
            there = {each.name: lake_tables.Column(_kind(each), not each.nullable) for each in table.schema().fields}
            lake_tables.compare(ours, there, _takes, self.path, place)

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        delta = _library()
        with lake_tables.as_sink_errors(place):
            table = self._table(delta)
            last = None if table is None else table.transaction_version(batch.writer)
            wanted = to_arrow_schema(selected_schema(batch.frame.schema, self.include_metadata), timezone="UTC")
            if table is not None:
                wanted = pa.schema(table.schema().to_arrow())
        if last is not None and last >= batch.number:
            return batch.refused_rows.recorded()
        lake_tables.require_columns(
            wanted, selected_schema(batch.frame.schema, self.include_metadata).names, self.path, place
        )
        taken = lake_tables.acceptable_rows(
            batch, self.include_metadata, lambda rows: lake_tables.null_in(rows, wanted)
        )
        has_checks = table is not None and bool(delta_constraints.checks_of(table))
        if not self._append(delta, batch, taken.rows, wanted, place, may_fail=has_checks):
            with lake_tables.as_sink_errors(place), delta_constraints.violations(table) as fails:
                taken = lake_tables.acceptable_rows(
                    batch,
                    self.include_metadata,
                    lambda rows: lake_tables.null_in(rows, wanted) or fails(lake_tables.cast(rows, wanted)),
                )
            self._append(delta, batch, taken.rows, wanted, place)
        if not taken.rows.num_rows:
            return taken.refused
        if self.compact_after and (batch.number + 1) % self.compact_after == 0:
            self._compact(delta.DeltaTable(self.path), place)
        return taken.refused

    def _append(
        self, delta: Any, batch: Batch, rows: pa.Table, columns: pa.Schema, place: str, *, may_fail: bool = False
    ) -> bool:
        """Appends in one commit. With `may_fail`, returns False if a row violates a constraint of the table;
        otherwise that is an error."""
        if not rows.num_rows:
            return True
        mark = delta.CommitProperties(app_transactions=[delta.Transaction(batch.writer, batch.number)])
        with lake_tables.as_sink_errors(place):
            try:
                delta.write_deltalake(
                    self.path,
                    lake_tables.cast(rows, columns),
                    mode="append",
                    # Columns that only the table has become null.
                    schema_mode="merge",
                    partition_by=list(self.partition_by) or None,
                    commit_properties=mark,
                )
            except delta.exceptions.DeltaError as error:
                if not (may_fail and delta_constraints.is_about_rows(error)):
                    raise
                return False
        return True

    def _table(self, delta: Any) -> Any:
        """Returns None if the table does not exist yet."""
        return delta.DeltaTable(self.path) if delta.DeltaTable.is_deltatable(self.path) else None

    def _compact(self, table: deltalake.DeltaTable, place: str) -> None:
        try:
            table.optimize.compact()
            if self.keep_versions is not None:
                table.vacuum(self.keep_versions // HOUR_MS, dry_run=False, enforce_retention_duration=False)
        except Exception as error:  # noqa: BLE001 -- whatever it is: the rows are there, and it comes round again
            _log.warning("%s: could not compact small files: %s", place, first_line(error))


def _kind(field: Any) -> str:
    """Returns the type as Delta writes it, regardless of whether nested fields may be null."""
    return _NEVER_NULL.sub(r"\1:true", field.type.to_json()).strip('"')


def _takes(column: str, field: str) -> bool:
    return column == field or any(column in kinds and field in kinds[: kinds.index(column)] for kinds in WIDER)


def _library() -> Any:
    try:
        import deltalake  # noqa: PLC0415 -- an extra
    except ImportError:
        raise MissingError("Delta needs deltalake: install whippet-gateway[delta] (docs/install.md)") from None
    return deltalake
