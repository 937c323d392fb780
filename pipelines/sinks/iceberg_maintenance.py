"""Maintenance of an Iceberg table that is written in small batches: compacts small files and expires old snapshots.
Each step is one commit, which readers see as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

SMALL_BYTES = 32 * 1024 * 1024
TOGETHER_BYTES_MAX = 128 * 1024 * 1024
"""The size of files that are compacted together: they pass through memory."""


def compact(table: Table) -> None:
    """Compacts the small files of each partition; the rows stay the same."""
    for together in list(_groups(table)):
        table.refresh()
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        rows = scan.to_table(together)
        with table.transaction() as transaction:
            with transaction.update_snapshot().overwrite() as snapshot:
                for task in together:
                    snapshot.delete_data_file(task.file)
            transaction.append(rows)


def _groups(table: Table) -> Iterator[list[FileScanTask]]:
    by_partition: dict[str, list[FileScanTask]] = {}
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < SMALL_BYTES and not task.delete_files:
            by_partition.setdefault(f"{task.file.spec_id} {task.file.partition!r}", []).append(task)
    for tasks in by_partition.values():
        together, size = list[FileScanTask](), 0
        for task in tasks:
            if size + task.file.file_size_in_bytes > TOGETHER_BYTES_MAX:
                yield together
                together, size = [], 0
            together.append(task)
            size += task.file.file_size_in_bytes
        if len(together) > 1:
            yield together


def expire(table: Table, age_ms: int) -> None:
    """Expires snapshots, and deletes the files that were known before and are in none of the remaining snapshots."""
    before = _files(table)
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - timedelta(milliseconds=age_ms)).commit()
    table.refresh()
    for path in before - _files(table):
        table.io.delete(path)


def _files(table: Table) -> set[str]:
    """Returns data files, manifests and manifest lists: all of them grow with each batch."""
    data = table.inspect.all_data_files().column("file_path").to_pylist()
    manifests = table.inspect.all_manifests().column("path").to_pylist()
    return {*data, *manifests, *(snapshot.manifest_list for snapshot in table.snapshots())}
