"""The sink `elasticsearch`: writes documents to an index with `_bulk`. A replayed document has the same id, and
replaces itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from pyspark_whippet.settings import Secret
from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, SECRET, STRING, STRINGS, InvalidValue, Kind, integer, key
from whippet.pipelines.record_columns import TIMES, Batch, data_columns, metadata_columns, quoted, require_field
from whippet.pipelines.sinks import bulk

JSON = "application/json"
NAMES = {"iggy_partition_id": "_iggy_partition"}
"""Metadata that documents do not name with just an underscore in front."""


def http_url(value: Any) -> str:
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidValue
    if parts.username or parts.password:
        raise ValueError("it must not contain credentials; use 'username' and 'password'")
    return str(value).rstrip("/")


URL = Kind("http://host:port", http_url)


def _table(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise InvalidValue
    return raw


@dataclass(frozen=True, kw_only=True)
class ElasticsearchSink:
    """An index of Elasticsearch or OpenSearch."""

    TYPE: ClassVar[str] = "elasticsearch"
    DELIVERY: ClassVar[str] = "exactly once: a replayed document replaces itself"
    url: str = key(URL, "its address")
    index: str = key(STRING, "the index")
    username: str | None = key(STRING, "the user", None)
    password: Secret | None = key(SECRET, "the user's password", None)
    batch_size: int = key(integer(1), "largest number of documents in a request", 1000)
    timeout_seconds: int = key(integer(1), "longest time to wait for a response", 30)
    create_index_if_not_exists: bool = key(BOOLEAN, "create the index if it does not exist", True)
    index_mapping: dict[str, Any] | None = key(
        Kind("a table", _table),
        "mappings of a new index",
        None,
        shown="Elasticsearch's",
    )
    id_columns: tuple[str, ...] = key(
        STRINGS, "fields that identify a record: of equal ones the last is kept", (), shown="derived from the message"
    )
    include_metadata: bool = key(BOOLEAN, "also write metadata, such as `_iggy_offset`", True)
    max_retries: int = key(integer(0), "how often requests and documents are sent again after a temporary failure", 5)
    retry_delay: int = key(
        DURATION,
        "pause before the first retry, unless the response sets one; it doubles with each retry",
        1000,
        shown='"1 s"',
    )

    def __post_init__(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("keys 'username' and 'password': set both or neither")

    @property
    def _target(self) -> bulk.Target:
        return bulk.Target(
            url=self.url,
            path="/_bulk",
            action="index",
            index=self.index,
            username=self.username,
            password=self.password,
            timeout_s=self.timeout_seconds,
            documents_max=self.batch_size,
            retries=self.max_retries,
            delay_ms=self.retry_delay,
        )

    @property
    def _path(self) -> str:
        return "/" + quote(self.index, safe="")

    def _is_there(self) -> bool:
        return bulk.once(self._target, "HEAD", self._path, None, JSON, also=(404,)).status != 404

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        is_there = self._is_there()
        if not is_there and not self.create_index_if_not_exists:
            raise FileError(f"index '{self.index}' does not exist; create it, or leave out create_index_if_not_exists")
        yield f"index {self.index} at {self.url}: {'exists' if is_there else 'will be created'}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        for name in self.id_columns:
            require_field(schema, name, place)

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        if self.create_index_if_not_exists and not self._is_there():
            body = {} if self.index_mapping is None else {"mappings": self.index_mapping}
            # 400: another process was faster. If it still does not exist, sending documents will fail.
            bulk.once(self._target, "PUT", self._path, json.dumps(body).encode(), JSON, also=(400,))

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        document = _document(batch.frame, self.include_metadata)
        return bulk.write(batch, self._target, document, self.id_columns, with_ids=True)


def _document(frame: DataFrame, include_metadata: bool) -> Column:
    columns = [quoted(name) for name in data_columns(frame)]
    for name in metadata_columns(frame) if include_metadata else ():
        value = F.unix_millis(name) if name.endswith("timestamp") else quoted(name)
        columns.append(value.alias(NAMES.get(name, f"_{name}")))
    return F.to_json(F.struct(*columns), TIMES)
