"""The sink `iceberg`: a table in an Iceberg catalogue, by pyiceberg. The snapshot that adds the rows of a batch has its
number, and so have the properties of the table, in one commit; the latter outlive snapshots that expire.

What is done about small files and old snapshots is in iceberg_upkeep.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from app.pipeline.jobs.errors import FileError, MissingError
from app.pipeline.jobs.frames import Batch, chosen, need_column
from app.pipeline.jobs.gateway import Gateway
from app.pipeline.jobs.keys import DURATION, PATH, TEXT, TEXTS, TRUTH, Kind, Unfit, key, one_of, whole

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_PARTITION = re.compile(r"(?:(year|month|day|hour)\(\s*(.+?)\s*\)|(.+))")
STORE = ("store_url", "store_access_key_id", "store_secret_access_key", "store_region", "store_class")
CATALOG = "default"
"""Its name, by which tables are found in a database that several catalogues share."""
BATCH, PIPELINE = "whippet.batch", "whippet.pipeline"


def _partitions(value: Any) -> tuple[tuple[str, str], ...]:
    """(how, field) of texts such as `day(at)`."""
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
        raise Unfit
    matches = [_PARTITION.fullmatch(each.strip()) for each in value]
    return tuple((match[1] or "identity", match[2] or match[3]) for match in matches if match is not None)


@dataclass(frozen=True, kw_only=True)
class IcebergSink:
    """An Iceberg table, which is made if it is not there. A batch passes through the driver."""

    TYPE: ClassVar[str] = "iceberg"
    PROMISE: ClassVar[str] = "exactly once: the number of the batch is in the commit that adds its rows"
    NOT_HERE: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("dynamic_routing", "dynamic_route_field"), "the table is named in 'tables'"),
        **dict.fromkeys(STORE, "the warehouse is a folder of a mounted file system"),
    }
    tables: tuple[str, ...] = key(TEXTS, 'one table, with its namespace, such as ["lake.orders"]')
    warehouse: str = key(PATH, "the folder of the tables")
    catalog_type: str = key(one_of("sql"), "the catalogue is a database", "sql")
    uri: str | None = key(
        TEXT, "the database, such as 'sqlite:////srv/lake/catalog.db'", None, shown="catalog.db in the warehouse"
    )
    partition_by: tuple[tuple[str, str], ...] = key(
        Kind('a list of fields, such as ["country", "day(at)"],', _partitions),
        "how a new table is parted: by fields, or by `year`, `month`, `day` or `hour` of a time",
        (),
        shown="not at all",
    )
    include_metadata: bool = key(TRUTH, "also what records were made of, such as `iggy_offset`", True)
    compact_after: int = key(whole(0), "after how many batches small files are put together; 0: never", 100)
    keep_snapshots: int | None = key(
        DURATION,
        "then forget snapshots that are older, and delete the files that only they need",
        None,
        shown="keep all",
    )

    def __post_init__(self) -> None:
        if len(self.tables) != 1 or "." not in self.tables[0]:
            raise ValueError("key 'tables': one table is needed, with its namespace, such as [\"lake.orders\"]")
        if "://" in self.warehouse:
            raise ValueError("key 'warehouse': a folder of a mounted file system is needed")

    def look(self, gateway: Gateway) -> Iterator[str]:
        library()
        if self.uri is None and not (Path(self.warehouse) / "catalog.db").exists():
            yield f"table {self.tables[0]}: will be made in {self.warehouse}"
            return
        catalog = self._catalog()
        is_there = catalog.table_exists(self.tables[0])
        yield f"table {self.tables[0]} in {self.warehouse}: {'is there' if is_there else 'will be made'}"

    def prepare(self, schema: StructType, gateway: Gateway, place: str) -> None:
        for _, name in self.partition_by:
            need_column(schema, name, place)
        Path(self.warehouse).mkdir(parents=True, exist_ok=True)
        catalog = self._catalog()
        if not catalog.table_exists(self.tables[0]):
            self._create(catalog, schema)
        there = catalog.load_table(self.tables[0]).schema().column_names
        missing = [name for name in schema.names if name not in there]
        if missing:
            raise FileError(f"{place}: table {self.tables[0]} has no column '{missing[0]}'; it has {', '.join(there)}")

    def _create(self, catalog: Catalog, schema: StructType) -> None:
        from pyiceberg.transforms import parse_transform  # noqa: PLC0415 -- an extra

        catalog.create_namespace_if_not_exists(self.tables[0].rpartition(".")[0])
        columns = to_arrow_schema(schema, timezone="UTC")
        with catalog.create_table_transaction(self.tables[0], columns) as creation, creation.update_spec() as parts:
            for how, name in self.partition_by:
                parts.add_field(name, parse_transform(how), name if how == "identity" else f"{name}_{how}")

    def write(self, batch: Batch, gateway: Gateway, place: str) -> DataFrame | None:
        from app.pipeline.jobs.sinks import iceberg_upkeep  # noqa: PLC0415 -- an extra

        table = self._catalog().load_table(self.tables[0])
        mark = f"{BATCH}.{batch.writer}"
        if int(table.properties.get(mark, -1)) >= batch.number:
            return None
        rows = chosen(batch.frame, self.include_metadata).toArrow()
        if not rows.num_rows:
            return None
        with table.transaction() as transaction:
            transaction.append(rows, snapshot_properties={PIPELINE: batch.pipeline, mark: str(batch.number)})
            transaction.set_properties({mark: str(batch.number)})
        if self.compact_after and (batch.number + 1) % self.compact_after == 0:
            iceberg_upkeep.compact(table)
            if self.keep_snapshots is not None:
                iceberg_upkeep.expire(table, self.keep_snapshots)
        return None

    def _catalog(self) -> Catalog:
        uri, warehouse = self.uri or f"sqlite:///{self.warehouse}/catalog.db", f"file://{self.warehouse}"
        found: Catalog = library().load_catalog(CATALOG, type=self.catalog_type, uri=uri, warehouse=warehouse)
        return found


def library() -> Any:
    try:
        import pyiceberg.catalog  # noqa: PLC0415 -- an extra
        import pyiceberg_core  # noqa: F401, PLC0415
        import sqlalchemy  # noqa: F401, PLC0415
    except ImportError:
        raise MissingError("Iceberg needs pyiceberg: pip install 'whippet[iceberg]'") from None
    return pyiceberg.catalog
