"""The sink `iceberg`: appends to a table in an Iceberg catalogue with pyiceberg. One commit adds the rows of a batch
and records its number in the snapshot and in the table's properties; the properties outlive snapshots that expire.

Compaction and the expiry of snapshots are in iceberg_maintenance.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, DateType, StructType, TimestampNTZType, TimestampType

from whippet.pipelines.errors import FileError, MissingError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, PATH, STRING, STRINGS, InvalidValue, Kind, integer, key, one_of
from whippet.pipelines.record_columns import Batch, require_field, selected_schema
from whippet.pipelines.sinks import lake_tables
from whippet.pipelines.user_text import first_line

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_log = logging.getLogger(__name__)

_PARTITION = re.compile(r"(?:(year|month|day|hour)\(\s*(.+?)\s*\)|(.+))")
_REQUIRED = re.compile(r'("(?:required|element-required|value-required)"):true')
STORE = ("store_url", "store_access_key_id", "store_secret_access_key", "store_region", "store_class")
CATALOG = "default"
"""The catalogue's name, by which tables are found in a database that several catalogues share."""
PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true"}
"""Properties of tables that the sink creates: each commit rewrites all of the metadata, and the last hundred versions
are kept for readers."""
BATCH, PIPELINE = "whippet.batch", "whippet.pipeline"


def _partitions(value: Any) -> tuple[tuple[str, str], ...]:
    """Parses strings such as `day(at)` to (transform, field)."""
    if not isinstance(value, list) or not all(isinstance(each, str) and each.strip() for each in value):
        raise InvalidValue
    matches = [_PARTITION.fullmatch(each.strip()) for each in value]
    return tuple((match[1] or "identity", match[2] or match[3]) for match in matches if match is not None)


@dataclass(frozen=True, kw_only=True)
class IcebergSink:
    """An Iceberg table, which is created if it does not exist. A batch passes through the driver."""

    TYPE: ClassVar[str] = "iceberg"
    DELIVERY: ClassVar[str] = "exactly once: the number of the batch is in the commit that adds its rows"
    UNSUPPORTED: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("dynamic_routing", "dynamic_route_field"), "name the table in 'tables'"),
        **dict.fromkeys(STORE, "the warehouse is a folder of a mounted file system"),
    }
    tables: tuple[str, ...] = key(STRINGS, 'one table, with its namespace, such as ["lake.orders"]')
    warehouse: str = key(PATH, "the folder of the tables")
    catalog_type: str = key(one_of("sql"), "type of the catalogue: a database", "sql")
    uri: str | None = key(
        STRING, "the database, such as 'sqlite:////srv/lake/catalog.db'", None, shown="catalog.db in the warehouse"
    )
    partition_by: tuple[tuple[str, str], ...] = key(
        Kind('a list of fields, such as ["country", "day(at)"],', _partitions),
        "how a new table is partitioned: by fields, or by `year`, `month`, `day` or `hour` of a time",
        (),
        shown="none",
    )
    include_metadata: bool = key(BOOLEAN, "also write metadata, such as `iggy_offset`", True)
    compact_after: int = key(integer(0), "number of batches after which small files are compacted; 0: never", 100)
    keep_snapshots: int | None = key(
        DURATION,
        "after a compaction, expire older snapshots and delete the files that only they need",
        None,
        shown="keep all",
    )

    def __post_init__(self) -> None:
        if len(self.tables) != 1 or "." not in self.tables[0]:
            raise ValueError("key 'tables': one table is needed, with its namespace, such as [\"lake.orders\"]")
        if "://" in self.warehouse:
            raise ValueError("key 'warehouse': a folder of a mounted file system is needed")

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        library()
        with lake_tables.as_sink_errors(f"table {self.tables[0]}"):
            is_there = self._table() is not None
        yield f"table {self.tables[0]} in {self.warehouse}: {'exists' if is_there else 'will be created'}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        library()
        wanted = selected_schema(schema, self.include_metadata)
        for how, name in self.partition_by:
            require_field(wanted, name, place)
            _need_time(how, wanted[name].dataType, name, place)
        with lake_tables.as_sink_errors(place):
            table = self._table()
        if table is not None:
            self._compare(table, wanted, place)

    def _compare(self, table: Table, wanted: StructType, place: str) -> None:
        from pyiceberg.io.pyarrow import pyarrow_to_schema  # noqa: PLC0415 -- an extra

        there = {each.name: lake_tables.Column(each.field_type, each.required) for each in table.schema().fields}
        known = StructType([each for each in wanted if each.name in there])
        try:
            ours = pyarrow_to_schema(to_arrow_schema(known, timezone="UTC"), name_mapping=table.schema().name_mapping)
        except ValueError as error:
            raise FileError(f"{place}: table {self.tables[0]}: {first_line(error)}") from None
        kinds = {each.name: each.field_type for each in ours.fields}
        fields = {each.name: kinds.get(each.name, each.dataType.simpleString()) for each in wanted}
        lake_tables.compare(fields, there, _takes, self.tables[0], place)

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        Path(self.warehouse).mkdir(parents=True, exist_ok=True)
        with lake_tables.as_sink_errors(place):
            if self._table() is None:
                self._create(self._catalog(), selected_schema(schema, self.include_metadata))

    def _create(self, catalog: Catalog, schema: StructType) -> None:
        from pyiceberg.transforms import parse_transform  # noqa: PLC0415 -- an extra

        catalog.create_namespace_if_not_exists(self.tables[0].rpartition(".")[0])
        columns = to_arrow_schema(schema, timezone="UTC")
        making = catalog.create_table_transaction(self.tables[0], columns, properties=PROPERTIES)
        with making as creation, creation.update_spec() as parts:
            for how, name in self.partition_by:
                parts.add_field(name, parse_transform(how), name if how == "identity" else f"{name}_{how}")

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        with lake_tables.as_sink_errors(place):
            table = self._catalog().load_table(self.tables[0])
        mark = f"{BATCH}.{batch.writer}"
        if int(table.properties.get(mark, -1)) >= batch.number:
            return batch.refused_rows.recorded()
        there = table.schema().as_arrow()
        lake_tables.require_columns(
            there, selected_schema(batch.frame.schema, self.include_metadata).names, self.tables[0], place
        )
        rows, refused = lake_tables.acceptable_rows(
            batch, self.include_metadata, lambda some: lake_tables.null_in(some, there)
        )
        if not rows.num_rows:
            return refused
        with lake_tables.as_sink_errors(place):
            rows = lake_tables.cast(rows, there)
            with table.transaction() as transaction:
                transaction.append(rows, snapshot_properties={PIPELINE: batch.pipeline, mark: str(batch.number)})
                transaction.set_properties({mark: str(batch.number)})
        if self.compact_after and (batch.number + 1) % self.compact_after == 0:
            self._maintain(table, place)
        return refused

    def _maintain(self, table: Table, place: str) -> None:
        from whippet.pipelines.sinks import iceberg_maintenance  # noqa: PLC0415 -- an extra

        try:
            iceberg_maintenance.compact(table)
            if self.keep_snapshots is not None:
                iceberg_maintenance.expire(table, self.keep_snapshots)
        except Exception as error:  # noqa: BLE001 -- whatever it is: the rows are there, and it comes round again
            _log.warning("%s: could not compact small files: %s", place, first_line(error))

    def _table(self) -> Table | None:
        """Returns None if the table does not exist yet."""
        if self.uri is None and not (Path(self.warehouse) / "catalog.db").exists():
            return None
        catalog = self._catalog()
        return catalog.load_table(self.tables[0]) if catalog.table_exists(self.tables[0]) else None

    def _catalog(self) -> Catalog:
        uri, warehouse = self.uri or f"sqlite:///{self.warehouse}/catalog.db", f"file://{self.warehouse}"
        found: Catalog = library().load_catalog(CATALOG, type=self.catalog_type, uri=uri, warehouse=warehouse)
        return found


def _need_time(how: str, kind: DataType, name: str, place: str) -> None:
    fits = TimestampType | TimestampNTZType if how == "hour" else DateType | TimestampType | TimestampNTZType
    if how != "identity" and not isinstance(kind, fits):
        raise FileError(
            f"{place}: key 'partition_by': {how}({name}) needs a time, but field '{name}' is {kind.simpleString()}"
        )


def _takes(column: Any, field: Any) -> bool:
    """Follows Iceberg's rules for promotion, regardless of whether nested fields may be null."""
    from pyiceberg.exceptions import ResolveError  # noqa: PLC0415 -- an extra
    from pyiceberg.schema import promote  # noqa: PLC0415

    loose = [_REQUIRED.sub(r"\1:false", str(each.model_dump_json())) for each in (column, field)]
    try:
        return bool(loose[0] == loose[1] or promote(field, column))
    except ResolveError:
        return False


def library() -> Any:
    try:
        import pyiceberg.catalog  # noqa: PLC0415 -- an extra
        import pyiceberg_core  # noqa: F401, PLC0415
        import sqlalchemy  # noqa: F401, PLC0415
    except ImportError:
        raise MissingError("Iceberg needs pyiceberg: install whippet-gateway[iceberg] (docs/install.md)") from None
    return pyiceberg.catalog
