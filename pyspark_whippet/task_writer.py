"""Writes rows: what one task of a table or a stream does.

1. Every row gets its id (ids.py) and its partition: from its `partition` column, else its `key`, else its id. A
   replayed row finds its earlier copy only in the same partition, so neither the task number nor a round robin decides.
2. Rows are gathered per partition until they fill a request, by bytes or by number. While the gateway stores it, the
   next one is built. A partition has one request in flight at a time, which keeps its rows in order; with `inFlight`,
   several partitions have one each.
3. A request without a response is sent again, byte for byte. The gateway recognises by the ids what it has already
   stored, and drops it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from pyspark_whippet import batch_encoder, hashes, ids, rows, topics, user_headers
from pyspark_whippet.batches import HEADER_BYTES, Array
from pyspark_whippet.deduplication import Window, window_of
from pyspark_whippet.errors import OptionError, RowError
from pyspark_whippet.option_parsers import topic_name
from pyspark_whippet.rows import Rows
from pyspark_whippet.session import BATCH, JSON, Pending, Session, topic_path
from pyspark_whippet.settings import Settings

TOO_LARGE = 413
JSON_OVERHEAD_BYTES = 80
"""The overhead of a message as JSON."""


@dataclass(frozen=True)
class Target:
    """A topic to write to."""

    topic: str
    partitions: int
    takes_batches: bool
    """Whether messages are sent in the format of the log."""
    window: Window | None = None
    """The ids that it remembers; None if that is unknown."""


@dataclass(frozen=True)
class IdScope:
    """Identifies the writer, so that ids are the same when the same rows are written again."""

    namespace: str
    batch: str
    task: int


@dataclass
class SendTotals:
    rows: int = 0
    requests: int = 0
    by_partition: dict[tuple[str, int], int] = field(default_factory=dict)
    lacks_xxhash: bool = False
    """Messages were sent as JSON although the server takes batches."""


def target(session: Session, topic: str) -> Target:
    found = topics.details(session, topic)
    if found is None:
        raise OptionError(f"topic {topic!r} does not exist; create it, or use .option('createTopic', <partitions>)")
    if not found["partitions"]:
        raise OptionError(f"topic {topic!r} has no partitions")
    takes = topics.reports_bounds(found)
    return Target(topic, len(found["partitions"]), takes, window_of(found))


class InFlight(NamedTuple):
    """A request that has not been answered yet."""

    pending: Pending
    target: Target
    partition: int | None
    rows: Rows


class TaskWriter:
    """Writes the rows of one task."""

    def __init__(
        self, sessions: Sequence[Session], settings: Settings, scope: IdScope, targets: dict[str, Target]
    ) -> None:
        """Each session has at most one request in flight. A partition is assigned to a session when it is first
        seen."""
        self._sessions = sessions
        self._settings = settings
        self._derived = ids.DerivedIds(ids.scope(scope.namespace, scope.batch, str(scope.task)))
        self._targets = dict(targets)
        self._gathered: dict[tuple[str, int | None], Rows] = {}
        self._lanes: dict[tuple[str, int | None], int] = {}
        self._in_flight: dict[int, InFlight] = {}
        self.sent = SendTotals()

    def write(self, record_batches: Iterable[Any]) -> SendTotals:
        for batch in record_batches:
            if batch.num_rows:
                self._add(batch)
        for (topic, partition), found in self._gathered.items():
            self._send_all(self._targets[topic], partition, found, whole=True)
        for lane in list(self._in_flight):
            self._finish(lane)
        return self.sent

    def _add(self, batch: Any) -> None:
        keys = rows.keys(batch)
        values, tombstones = rows.values(batch)
        headers = user_headers.marked(rows.headers(batch), None, tombstones, len(values))
        found = Rows(values, np.zeros((len(values), 16), dtype=np.uint8), headers)
        # The key is part of the id in its own right, as it was before it was stored.
        identities = self._ids(batch, found, keys)
        found = Rows(values, identities, user_headers.marked(headers, keys, None, len(values)))
        for topic, places in self._by_topic(batch):
            target = self._target(topic)
            some = found if places is None else found.take(places)
            to = self._partitions(batch, some, keys, places, target)
            if to is None:
                self._gather(target, None, some)
                continue
            for partition in np.unique(to).tolist():
                mine = np.flatnonzero(to == partition)
                self._gather(target, partition, some if len(mine) == len(some) else some.take(mine))

    # ------------------------------------------------------------------------------------------------------------ ids

    def _ids(self, batch: Any, found: Rows, keys: list[bytes | None] | None) -> Array:
        settings = self._settings
        if settings.id_mode == "none":
            return ids.random(len(found))
        given = rows.column(batch, "id")
        if given is not None and "id" not in settings.id_columns:
            return _given_ids(given)
        if settings.id_columns:
            columns = [batch.column(name).to_pylist() for name in settings.id_columns]
            return ids.from_columns(settings.id_namespace or "", columns)
        return self._derived.for_rows(batch_encoder.split_payloads(found.bounds, found.octets), found.headers, keys)

    # -------------------------------------------------------------------------------------------------------- routing

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Array | None]]:
        """Yields topics and the places of their rows; None means all rows."""
        settings = self._settings
        if settings.topic is not None:
            yield topic_of(settings), None
            return
        names = batch.column("topic").to_pylist()
        if settings.stream is None and rows.column(batch, "stream") is None:
            wanted = [_topic_named(name) for name in names]
        else:
            streams = [settings.stream] * len(names) if settings.stream else batch.column("stream").to_pylist()
            if not all(streams) or not all(names):
                raise RowError("columns 'stream' and 'topic': a row has null or '' in one of them")
            wanted = [f"{stream}/{name}" for stream, name in zip(streams, names, strict=True)]
        places: dict[str, list[int]] = {}
        for place, topic in enumerate(wanted):
            places.setdefault(topic, []).append(place)
        for topic, mine in places.items():
            yield topic, None if len(mine) == len(names) else np.array(mine, dtype=np.int64)

    def _target(self, topic: str) -> Target:
        found = self._targets.get(topic)
        if found is None:
            self._finish(0)
            found = self._targets[topic] = target(self._sessions[0], topic)
        return found

    def _partitions(
        self, batch: Any, some: Rows, keys: list[bytes | None] | None, places: Array | None, target: Target
    ) -> Array | None:
        """Returns the partition of each row, or None if the gateway is to choose."""
        how, many = self._settings.partitioning, target.partitions
        if how == "balanced":
            return None
        to = ids.modulo(some.ids, many).astype(np.int64)
        if how in ("auto", "key") and keys is not None:
            mine = keys if places is None else [keys[place] for place in places.tolist()]
            given = [place for place, key in enumerate(mine) if key is not None]
            to[given] = [hashes.xxh32(key) % many for key in mine if key is not None]
        column = rows.column(batch, "partition")
        if how in ("auto", "partition") and column is not None:
            mine_too = column if places is None else column.take(pa.array(places))
            is_given = np.asarray(mine_too.is_valid())
            wanted = np.asarray(mine_too.fill_null(0)).astype(np.int64)
            if rows.is_copied(batch):
                wanted %= many
            wrong = is_given & ((wanted < 0) | (wanted >= many))
            if wrong.any():
                none = wanted[wrong][0]
                raise RowError(f"column 'partition': {target.topic} has {many} partitions, and none is {none}")
            to[is_given] = wanted[is_given]
        return to

    # -------------------------------------------------------------------------------------------------------- sending

    def _gather(self, target: Target, partition: int | None, some: Rows) -> None:
        place = (target.topic, partition)
        before = self._gathered.pop(place, None)
        rest = self._send_all(target, partition, some if before is None else before.concat(some), whole=False)
        if len(rest):
            self._gathered[place] = rest

    def _send_all(self, target: Target, partition: int | None, found: Rows, *, whole: bool) -> Rows:
        """Sends full requests, and with `whole` also the last one. Returns the rest."""
        while len(found):
            count, is_full = self._count_that_fits(target, found)
            if not is_full and not whole:
                break
            self._send(target, partition, found.part(0, count))
            found = found.part(count, len(found))
        return found

    def _count_that_fits(self, target: Target, found: Rows) -> tuple[int, bool]:
        """Returns how many rows fit into a request, at least one, and whether they fill it."""
        settings = self._settings
        sizes = batch_encoder.frame_sizes(found.bounds, found.headers)
        if not _is_sent_as_batch(target):
            sizes = sizes * 4 // 3 + JSON_OVERHEAD_BYTES
        room = settings.max_batch_bytes - HEADER_BYTES
        by_bytes = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
        count = max(1, min(by_bytes, settings.batch_size, len(found)))
        return count, count < len(found) or count >= settings.batch_size

    def _send(self, target: Target, partition: int | None, some: Rows) -> None:
        now_us = time.time_ns() // 1000
        media, query = JSON, ""
        body: bytes | bytearray
        if _is_sent_as_batch(target):
            assert hashes.xxh3 is not None
            body = batch_encoder.encode(some.bounds, some.octets, some.ids, some.headers, now_us, hashes.xxh3)
            media, query = BATCH, "" if partition is None else f"?partition={partition}"
        else:
            self.sent.lacks_xxhash = target.takes_batches
            body = _json(some, partition)
        place = (target.topic, partition)
        lane = self._lanes.setdefault(place, len(self._lanes) % len(self._sessions))
        self._finish(lane)
        path = f"{topic_path(target.topic)}/messages{query}"
        pending = self._sessions[lane].begin("POST", path, body, media, also=(TOO_LARGE,))
        self._in_flight[lane] = InFlight(pending, target, partition, some)

    def _finish(self, lane: int) -> None:
        """Waits for the request in flight on this lane. If it was too large, its two halves are sent."""
        in_flight = self._in_flight.pop(lane, None)
        if in_flight is None:
            return
        pending, target, partition, some = in_flight
        reply = pending.finish()
        self.sent.requests += 1
        if reply.status != TOO_LARGE:
            place = (target.topic, -1 if partition is None else partition)
            self.sent.rows += len(some)
            self.sent.by_partition[place] = self.sent.by_partition.get(place, 0) + len(some)
            return
        if len(some) == 1:
            size = int(batch_encoder.frame_sizes(some.bounds, some.headers)[0])
            raise RowError(
                f"a message of {size} bytes is too large for the server (413); raise http.max_request_size there"
            )
        half = len(some) // 2
        for part in (some.part(0, half), some.part(half, len(some))):
            self._send(target, partition, part)
            self._finish(lane)


def _is_sent_as_batch(target: Target) -> bool:
    """The driver may have xxhash where an executor has not."""
    return target.takes_batches and hashes.xxh3 is not None


def _topic_named(name: str | None) -> str:
    try:
        return topic_name(name or "")
    except ValueError as error:
        raise RowError(f"column 'topic': {error}; or add a column 'stream'") from None


def topic_of(settings: Settings) -> str:
    """Returns the topic that the options name."""
    assert settings.topic is not None
    return settings.topic if settings.stream is None else f"{settings.stream}/{settings.topic}"


def _given_ids(column: Any) -> Array:
    if column.null_count:
        raise RowError("column 'id' has a null; leave the column out, or fill it")
    found = column.to_pylist()
    if found and isinstance(found[0], str):
        return ids.from_strings(found)
    for each in found:
        if len(each) != ids.ID_BYTES or each == ids.NO_ID:
            raise RowError(
                f"column 'id': {each.hex()!r} is not a valid id; use {ids.ID_BYTES} bytes that are not all 0"
            )
    return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, ids.ID_BYTES)


def _json(some: Rows, partition: int | None) -> bytes:
    to = {"kind": "balanced", "value": ""}
    if partition is not None:
        to = {"kind": "partition_id", "value": base64.b64encode(partition.to_bytes(4, "little")).decode()}
    messages = []
    for i, payload in enumerate(batch_encoder.split_payloads(some.bounds, some.octets)):
        message = {"id": str(UUID(bytes=some.ids[i].tobytes())), "payload": base64.b64encode(payload).decode()}
        if some.headers and some.headers[i]:
            message["user_headers"] = base64.b64encode(some.headers[i]).decode()
        messages.append(message)
    return json.dumps({"partitioning": to, "messages": messages}).encode()
