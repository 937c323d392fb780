"""The source `files`: a folder to which files are added. It uses Spark's file source, which stores in the checkpoint
which files it has read. Each file is read once; later additions to a file are not seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pyspark_whippet import payloads as parsing
from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, PATH, STRING, integer, key, one_of
from whippet.pipelines.record_columns import CORRUPT, HIDDEN, METADATA, NOW, ORIGIN, quoted
from whippet.pipelines.user_text import error_text, pluralize

FORMATS = ("json", "csv", "parquet")
_FILE, _BROKEN = "_file", "_broken"


@dataclass(frozen=True, kw_only=True)
class FilesSource:
    """The files of a folder, including those added later: `json` has one object per line; `csv` has one record per
    line, or over several lines inside quotes."""

    TYPE: ClassVar[str] = "files"
    path: str = key(PATH, "a folder, or a pattern such as 'in/*.csv'; the executors have to see it as well")
    format: str = key(one_of(*FORMATS), "format of the files")
    fields: str | None = key(
        STRING, "names and types, such as 'id bigint, at timestamp'; not needed for parquet, which has its own", None
    )
    header: bool = key(BOOLEAN, "with csv: the first line has the names of the columns", True)
    delimiter: str = key(STRING, "with csv: the separator of fields", ",")
    multiline: bool = key(
        BOOLEAN,
        "with csv: quoted fields may contain line breaks, and a quote that is never closed swallows what follows; "
        "false: each line is a record, and several tasks can read one file",
        True,
    )
    files_per_batch: int = key(integer(1), "largest number of files in a batch", 100)
    poll_interval: int = key(DURATION, "how often to look for new files", 1000, shown='"1 s"')

    def __post_init__(self) -> None:
        if self.fields is None and self.format != "parquet":
            raise ValueError(
                f"key 'fields' is required with format = \"{self.format}\": names and types, such as 'id bigint'"
            )

    @property
    def why_unparsable(self) -> str:
        return f"it is not a {'JSON object' if self.format == 'json' else 'CSV record'} with these fields"

    @property
    def trigger_ms(self) -> int:
        return self.poll_interval

    def frame(self, spark: SparkSession, gateway: GatewaySettings) -> DataFrame:
        self._refuse_a_file()
        try:
            return self._frame(spark)
        except AnalysisException as error:
            raise FileError(f"[source]: {error_text(error)}") from None

    def _refuse_a_file(self) -> None:
        """Spark would accept a file, and then never read another one."""
        if Path(self.path).is_file():
            raise FileError(f"[source]: key 'path': {self.path!r} is a file; a folder or a pattern is needed")

    def _frame(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.option("maxFilesPerTrigger", str(self.files_per_batch))
        if self.format == "json":
            return _placed(self._json(reader.text(self.path)))
        if self.format == "csv":
            kind = StructType([*self._kind(spark), StructField(_BROKEN, StringType())])
            # Two quotes stand for one, as everywhere but in Spark.
            reader = (
                reader.option("escape", '"').option("columnNameOfCorruptRecord", _BROKEN).option("enforceSchema", False)
            )
            reader = reader.option("multiLine", self.multiline)
            frame = reader.schema(kind).option("header", self.header).option("sep", self.delimiter).csv(self.path)
            return _placed(frame.withColumn(CORRUPT, F.col(_BROKEN).cast("binary")).drop(_BROKEN))
        frame = reader.schema(self._parquet(spark)).parquet(self.path)
        return _placed(frame.withColumn(CORRUPT, F.lit(None).cast("binary")))

    def _json(self, lines: DataFrame) -> DataFrame:
        """Uses the strict parser of the data source: anything after an object makes the line a bad record."""
        kind = self._kind(lines.sparkSession)
        wanted = to_arrow_schema(kind, timezone="UTC")
        struct = pa.struct(list(wanted))
        full = StructType([*kind, StructField(CORRUPT, BinaryType()), StructField(_FILE, StringType())])

        def parse(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                payloads = batch.column(0).cast(pa.binary())
                found, where = parsing.parse_json(payloads, struct)
                columns = [*found.flatten(), parsing.corrupt_payloads(payloads, where), batch.column(1)]
                yield pa.RecordBatch.from_arrays(columns, names=full.names)

        with_place = lines.where("trim(value) <> ''").select("value", F.col("_metadata.file_path").alias(_FILE))
        return with_place.mapInArrow(parse, full)

    def _kind(self, spark: SparkSession) -> StructType:
        assert self.fields is not None
        kind = spark.createDataFrame([], self.fields).schema
        for name in kind.names:
            if name in METADATA or name in HIDDEN:
                raise FileError(f"[source]: key 'fields': '{name}' is a reserved name; leave it out, or rename it")
        return kind

    def _parquet(self, spark: SparkSession) -> StructType:
        if self.fields is not None:
            return self._kind(spark)
        try:
            return spark.read.parquet(self.path).schema
        except AnalysisException as error:
            if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
                raise
            raise FileError(
                f"[source]: there is no Parquet file in {self.path!r} yet to read the fields from; set 'fields'"
            ) from None

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        self._refuse_a_file()
        folder = Path(self.path)
        if any(sign in self.path for sign in "*?[{") or "://" in self.path:
            yield self.path
        elif not folder.is_dir():
            raise FileError(f"[source]: folder {self.path!r} does not exist")
        else:
            count = sum(1 for each in folder.iterdir() if each.is_file() and each.name[0] not in "._")
            yield f"{self.path}: {pluralize(count, 'file')}"


def _placed(frame: DataFrame) -> DataFrame:
    file = F.col(_FILE) if _FILE in frame.columns else F.col("_metadata.file_path")
    nothing = [F.lit(None).cast(kind).alias(name) for name, kind in _NO_MESSAGE.items()]
    origin = F.struct(*nothing, file.alias("file")).alias(ORIGIN)
    data = [quoted(name) for name in frame.columns if name not in (_FILE, CORRUPT)]
    return frame.select(*data, F.col(CORRUPT), origin, F.current_timestamp().alias(NOW))


_NO_MESSAGE = {"stream": "string", "topic": "string", "partition": "int", "offset": "bigint"}
