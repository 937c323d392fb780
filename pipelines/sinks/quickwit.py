"""The sink `quickwit`: writes documents to an index with `_bulk` of Quickwit's Elasticsearch API. Quickwit has no
document ids; it only appends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from whippet.pipelines.errors import FileError
from whippet.pipelines.gateway_settings import GatewaySettings
from whippet.pipelines.keys import BOOLEAN, DURATION, STRING, integer, key
from whippet.pipelines.record_columns import Batch, json_document
from whippet.pipelines.sinks import bulk
from whippet.pipelines.sinks.elasticsearch import URL

_INDEX_ID = re.compile(r"^index_id:\s*[\"']?([A-Za-z][A-Za-z0-9_-]*)[\"']?\s*(?:#.*)?$", re.MULTILINE)
YAML = "application/yaml"


@dataclass(frozen=True, kw_only=True)
class QuickwitSink:
    """An index of Quickwit."""

    TYPE: ClassVar[str] = "quickwit"
    DELIVERY: ClassVar[str] = "at least once: a replay adds the documents of a batch again"
    url: str = key(URL, "its address, such as 'http://localhost:7280'")
    index: str = key(STRING, "definition of the index, in YAML with `index_id`; a missing index is created from it")
    batch_size: int = key(integer(1), "largest number of documents in a request", 1000)
    timeout_seconds: int = key(integer(1), "longest time to wait for a response", 30)
    include_metadata: bool = key(BOOLEAN, "also write metadata, such as `iggy_offset`", True)
    max_retries: int = key(integer(0), "how often requests and documents are sent again after a temporary failure", 5)
    retry_delay: int = key(
        DURATION,
        "pause before the first retry, unless the response sets one; it doubles with each retry",
        1000,
        shown='"1 s"',
    )

    def __post_init__(self) -> None:
        if _INDEX_ID.search(self.index) is None:
            raise ValueError("key 'index': the definition of an index is needed, in YAML with a line 'index_id: ...'")

    @property
    def name(self) -> str:
        found = _INDEX_ID.search(self.index)
        assert found is not None
        return found[1]

    @property
    def _target(self) -> bulk.Target:
        return bulk.Target(
            url=self.url,
            path=f"/api/v1/_elastic/{quote(self.name, safe='')}/_bulk",
            # The only action that Quickwit supports.
            action="create",
            index=self.name,
            timeout_s=self.timeout_seconds,
            documents_max=self.batch_size,
            retries=self.max_retries,
            delay_ms=self.retry_delay,
        )

    def _is_there(self) -> bool:
        path = f"/api/v1/indexes/{quote(self.name, safe='')}"
        return bulk.once(self._target, "GET", path, None, YAML, also=(404,)).status != 404

    def inspect(self, gateway: GatewaySettings) -> Iterator[str]:
        yield f"index {self.name} at {self.url}: {'exists' if self._is_there() else 'will be created'}"

    def check_schema(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        """Only Quickwit knows what an index accepts, and it reports that per document."""

    def prepare(self, schema: StructType, gateway: GatewaySettings, place: str) -> None:
        if not self._is_there():
            answer = bulk.once(self._target, "POST", "/api/v1/indexes", self.index.encode(), YAML, also=(400,))
            if answer.status == 400 and not self._is_there():
                raise FileError(f"{place}: Quickwit refuses the definition of the index: {answer.reason}")

    def write(self, batch: Batch, gateway: GatewaySettings, place: str) -> DataFrame | None:
        return bulk.write(batch, self._target, json_document(batch.frame, self.include_metadata), (), with_ids=False)
