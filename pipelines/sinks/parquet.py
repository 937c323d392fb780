"""The sink `parquet`: a folder of Parquet files, optionally partitioned by fields.

Spark writes a batch to a folder next to the target, and its files are moved in under names that identify the batch.
Then the batch is recorded as done. All moves are written down before the first one, so that a replay after a crash
removes what is already there, and readers of the folder never find a row twice. Spark's own list of files
(`_spark_metadata`) would guarantee that to Spark only.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, PATH, STRINGS, key, one_of
from whippet.pipelines.record_columns import Batch, require_field, select_columns, selected_schema


@dataclass(frozen=True, kw_only=True)
class ParquetSink:
    """A folder of Parquet files, on a file system that driver and executors see."""

    TYPE: ClassVar[str] = "parquet"
    DELIVERY: ClassVar[str] = "exactly once: a replayed batch replaces what it has already written"
    path: str = key(PATH, "the folder")
    partition_by: tuple[str, ...] = key(STRINGS, "fields to partition by", (), shown="none")
    compression: str = key(one_of("snappy", "zstd", "gzip", "none"), "compression of the files", "zstd")
    include_metadata: bool = key(BOOLEAN, "also write metadata, such as `iggy_offset`", True)

    def __post_init__(self) -> None:
        if "://" in self.path:
            raise ValueError("key 'path': a folder of a mounted file system is needed")

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        yield f"folder {self.path}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        for name in self.partition_by:
            require_field(selected_schema(schema, self.include_metadata), name, place)

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            self._work_folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"{place}: key 'path': {error.filename}: {error.strerror}") from None

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        record, moves = self._work_folder / f"{batch.writer}.done", self._work_folder / f"{batch.writer}.moves"
        done = int(record.read_text()) if record.exists() else -1
        if batch.number <= done:
            return None
        self._remove_incomplete(moves, done)
        staged = self._work_folder / f"{batch.writer}.batch"
        # By default Spark writes times in a form that other readers take for local times. The session is that of the
        # query.
        batch.frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        writer = (
            select_columns(batch.frame, self.include_metadata)
            .write.mode("overwrite")
            .option("compression", self.compression)
        )
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.parquet(str(staged))
        self._move(batch, staged, moves)
        _replace(record, str(batch.number))
        shutil.rmtree(staged)
        return None

    def _move(self, batch: Batch, staged: Path, moves: Path) -> None:
        targets: dict[Path, str] = {}
        for number, file in enumerate(sorted(staged.rglob("*.parquet"))):
            name = f"{batch.writer.replace('-', '')}-{batch.number:08}-{number:04}.parquet"
            targets[file] = str(file.relative_to(staged).with_name(name))
        _replace(moves, json.dumps({"batch": batch.number, "files": list(targets.values())}))
        for file, name in targets.items():
            target = Path(self.path, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)

    def _remove_incomplete(self, moves: Path, done: int) -> None:
        """Removes the files of a batch that was not completed."""
        recorded = json.loads(moves.read_text()) if moves.exists() else None
        if recorded is not None and recorded["batch"] > done:
            for name in recorded["files"]:
                Path(self.path, name).unlink(missing_ok=True)

    @property
    def _work_folder(self) -> Path:
        """Next to the folder, not inside: readers take every file in the folder for data."""
        folder = Path(self.path)
        return folder.with_name(f".{folder.name}.whippet")


def _replace(path: Path, text: str) -> None:
    """Writes all of the file or nothing, whenever the process ends."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)
