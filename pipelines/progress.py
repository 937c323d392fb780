"""Progress lines of a pipeline: rows, rate, lag, and the last error."""

from __future__ import annotations

import json
import textwrap
import time
from dataclasses import dataclass
from typing import Any

from pyspark_whippet import offsets
from whippet.pipelines.batch_processor import RunStatus
from whippet.pipelines.user_text import pluralize

ERROR_CHARACTERS_MAX = 160


@dataclass
class Progress:
    """Formats progress lines; each rate is measured since the last line."""

    key: str
    _rows: int = 0
    _at: float = 0.0

    def begin(self) -> None:
        self._at = time.monotonic()

    def line(self, status: RunStatus, lag: int | None) -> str:
        now = time.monotonic()
        rate = (status.rows - self._rows) / max(now - self._at, 0.001)
        self._rows, self._at = status.rows, now
        parts = [pluralize(status.rows, status.noun), f"{rate:,.0f} {status.noun}s/s"]
        if lag is not None:
            parts.append(f"{lag:,} behind")
        if status.last_batch >= 0:
            parts.append(f"batch {status.last_batch} took {status.last_batch_s:.1f} s")
        if status.bad_records:
            parts.append(pluralize(status.bad_records, "bad record"))
        if status.last_error is not None:
            parts.append(f"last error: {textwrap.shorten(status.last_error, ERROR_CHARACTERS_MAX, placeholder=' ...')}")
        return f"{time.strftime('%H:%M:%S')} {self.key}: {', '.join(parts)}"


def total_lag(progress: Any) -> int | None:
    """Returns the lag of all topics together from Spark's report of a batch, or None if no source is a topic."""
    if progress is None:
        return None
    found = [_lag(source) for source in json.loads(progress.json).get("sources", ())]
    known = [each for each in found if each is not None]
    return sum(known) if known else None


def _lag(source: dict[str, Any]) -> int | None:
    ends = [_offsets(source.get(name)) for name in ("endOffset", "latestOffset")]
    if ends[0] is None or ends[1] is None:
        return None
    return sum(offsets.lags(ends[0], ends[1]))


def _offsets(value: Any) -> Any:
    found = json.loads(value) if isinstance(value, str) else value
    is_ours = isinstance(found, dict) and found and all(isinstance(each, dict) for each in found.values())
    return found if is_ours else None
