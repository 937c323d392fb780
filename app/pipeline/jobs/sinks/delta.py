"""The sink `delta`: a Delta table, by delta-rs. The number of the batch is in the commit that adds its rows.

Delta writes such numbers down and refuses none, so they are looked at first; two pipelines never write under one name,
because a pipeline has its state to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from app.pipeline.jobs.errors import MissingError
from app.pipeline.jobs.frames import Batch, chosen, need_column
from app.pipeline.jobs.gateway import Gateway
from app.pipeline.jobs.keys import DURATION, PATH, TEXTS, TRUTH, key, whole

if TYPE_CHECKING:
    import deltalake

HOUR_MS = 3_600_000


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
        is_there = delta.DeltaTable.is_deltatable(self.path)
        version = f"version {delta.DeltaTable(self.path).version()}" if is_there else "will be made"
        yield f"table {self.path}: {version}"

    def prepare(self, schema: StructType, gateway: Gateway, place: str) -> None:
        _library()
        for name in self.partition_by:
            need_column(schema, name, place)

    def write(self, batch: Batch, gateway: Gateway, place: str) -> DataFrame | None:
        delta = _library()
        if self._last(delta, batch.writer) >= batch.number:
            return None
        rows = chosen(batch.frame, self.include_metadata).toArrow()
        if not rows.num_rows:
            return None
        mark = delta.CommitProperties(app_transactions=[delta.Transaction(batch.writer, batch.number)])
        partition_by = list(self.partition_by) or None
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        delta.write_deltalake(self.path, rows, mode="append", partition_by=partition_by, commit_properties=mark)
        if self.compact_after and (batch.number + 1) % self.compact_after == 0:
            self._compact(delta.DeltaTable(self.path))
        return None

    def _last(self, delta: Any, query: str) -> int:
        """The last batch that is there, or -1."""
        if not delta.DeltaTable.is_deltatable(self.path):
            return -1
        found = delta.DeltaTable(self.path).transaction_version(query)
        return -1 if found is None else int(found)

    def _compact(self, table: deltalake.DeltaTable) -> None:
        table.optimize.compact()
        if self.keep_versions is not None:
            table.vacuum(self.keep_versions // HOUR_MS, dry_run=False, enforce_retention_duration=False)


def _library() -> Any:
    try:
        import deltalake  # noqa: PLC0415 -- an extra
    except ImportError:
        raise MissingError("Delta needs deltalake: pip install 'whippet[delta]'") from None
    return deltalake
