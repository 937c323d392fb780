"""The sink `delta`: a Delta table, by delta-rs. The number of the batch is in the commit that adds its rows.

Delta writes such numbers down and refuses none, so they are looked at first; two pipelines never write under one name,
because a pipeline has its state to itself.
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
from whippet.pipelines.frames import Batch, chosen_schema, need_column
from whippet.pipelines.gateway import Gateway
from whippet.pipelines.keys import DURATION, PATH, TEXTS, TRUTH, key, whole
from whippet.pipelines.sentences import first_line
from whippet.pipelines.sinks import delta_checks, tables

if TYPE_CHECKING:
    import deltalake

_log = logging.getLogger(__name__)
HOUR_MS = 3_600_000
WIDER = (("byte", "short", "integer", "long"), ("float", "double"))
"""Types of Delta, each of which takes those before it."""
_NEVER_NULL = re.compile(r'("(?:nullable|containsNull|valueContainsNull)"):false')


@dataclass(frozen=True, kw_only=True)
class DeltaSink:
    """A Delta table, which is made if it is not there. A batch passes through the driver."""

    TYPE: ClassVar[str] = "delta"
    PROMISE: ClassVar[str] = "exactly once: the number of the batch is in the commit that adds its rows"
    path: str = key(PATH, "the folder of the table")
    partition_by: tuple[str, ...] = key(TEXTS, "fields whose values become folders", (), shown="none")
    include_metadata: bool = key(TRUTH, "also what records were made of, such as `iggy_offset`", True)
    compact_after: int = key(whole(0), "after how many batches small files are put together; 0: never", 100)
    keep_versions: int | None = key(
        DURATION,
        "then delete files that no version of this time needs any more; at least '1 h'",
        None,
        shown="keep all",
    )

    def __post_init__(self) -> None:
        if self.keep_versions is not None and self.keep_versions < HOUR_MS:
            raise ValueError("key 'keep_versions': at least '1 h', so that nobody loses what he is reading")

    def look(self, gateway: Gateway) -> Iterator[str]:
        delta = _library()
        with tables.failures(f"table {self.path}"):
            table = self._table(delta)
        yield f"table {self.path}: {'will be made' if table is None else f'version {table.version()}'}"

    def fit(self, schema: StructType, gateway: Gateway, place: str) -> None:
        delta, wanted = _library(), chosen_schema(schema, self.include_metadata)
        for name in self.partition_by:
            need_column(wanted, name, place)
        with tables.failures(place):
            fields = delta.Schema.from_arrow(to_arrow_schema(wanted, timezone="UTC")).fields
            table = self._table(delta)
        if table is not None:
            ours = {each.name: _kind(each) for each in fields}
            there = {each.name: tables.Column(_kind(each), not each.nullable) for each in table.schema().fields}
            tables.compare(ours, there, _takes, self.path, place)

    def prepare(self, schema: StructType, gateway: Gateway, place: str) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)

    def write(self, batch: Batch, gateway: Gateway, place: str) -> DataFrame | None:
        delta = _library()
        with tables.failures(place):
            table = self._table(delta)
            last = None if table is None else table.transaction_version(batch.writer)
            wanted = to_arrow_schema(chosen_schema(batch.frame.schema, self.include_metadata), timezone="UTC")
            if table is not None:
                wanted = pa.schema(table.schema().to_arrow())
        if last is not None and last >= batch.number:
            return batch.refusals.kept()
        tables.need(wanted, chosen_schema(batch.frame.schema, self.include_metadata).names, self.path, place)
        taken = tables.taken(batch, self.include_metadata, lambda rows: tables.null_in(rows, wanted))
        has_checks = table is not None and bool(delta_checks.checks_of(table))
        if not self._append(delta, batch, taken.rows, wanted, place, may_fail=has_checks):
            with tables.failures(place), delta_checks.trial(table) as fails:
                taken = tables.taken(
                    batch,
                    self.include_metadata,
                    lambda rows: tables.null_in(rows, wanted) or fails(tables.cast(rows, wanted)),
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
        """In one commit. False if one of them fails a check of the table; without `may_fail` that is an error."""
        if not rows.num_rows:
            return True
        mark = delta.CommitProperties(app_transactions=[delta.Transaction(batch.writer, batch.number)])
        with tables.failures(place):
            try:
                delta.write_deltalake(
                    self.path,
                    tables.cast(rows, columns),
                    mode="append",
                    # Columns that the table has besides become null.
                    schema_mode="merge",
                    partition_by=list(self.partition_by) or None,
                    commit_properties=mark,
                )
            except delta.exceptions.DeltaError as error:
                if not (may_fail and delta_checks.is_about_rows(error)):
                    raise
                return False
        return True

    def _table(self, delta: Any) -> Any:
        """None where there is none yet."""
        return delta.DeltaTable(self.path) if delta.DeltaTable.is_deltatable(self.path) else None

    def _compact(self, table: deltalake.DeltaTable, place: str) -> None:
        try:
            table.optimize.compact()
            if self.keep_versions is not None:
                table.vacuum(self.keep_versions // HOUR_MS, dry_run=False, enforce_retention_duration=False)
        except Exception as error:  # noqa: BLE001 -- whatever it is: the rows are there, and it comes round again
            _log.warning("%s: small files were not put together: %s", place, first_line(error))


def _kind(field: Any) -> str:
    """As Delta writes it; whether something inside may be null is another matter."""
    return _NEVER_NULL.sub(r"\1:true", field.type.to_json()).strip('"')


def _takes(column: str, field: str) -> bool:
    return column == field or any(column in kinds and field in kinds[: kinds.index(column)] for kinds in WIDER)


def _library() -> Any:
    try:
        import deltalake  # noqa: PLC0415 -- an extra
    except ImportError:
        raise MissingError("Delta needs deltalake: install whippet-gateway[delta] (docs/install.md)") from None
    return deltalake
