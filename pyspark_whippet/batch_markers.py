"""Batch markers: for each streaming query, the gateway stores the number of the last batch that was written completely.

A batch that is replayed after the deduplication window has forgotten its ids (a long outage, a restart of the gateway)
would be written twice; the marker tells that it can be skipped. Each query has a topic of its own in the stream
`spark-markers`, with one small message per batch. Only the last one counts: older segments are deleted when the next
one is full. A new checkpoint means a new query, and so a new marker; markers that nobody has written for a week are
deleted when one is added.
"""

from __future__ import annotations

import base64
import json
import logging
from urllib.parse import quote
from uuid import UUID

from pyspark_whippet import ids, polls
from pyspark_whippet.batches import Messages
from pyspark_whippet.errors import GatewayError
from pyspark_whippet.session import Session, topic_path

STREAM = "spark-markers"
SEGMENT = "1 MiB"
TOPIC_BYTES_MAX = 4 * 1024 * 1024
NEVER = 2**64 - 1
KEPT_US = 7 * 24 * 3600 * 1_000_000
"""A marker is needed until its query has recorded that the batch is done, which is the next thing that the query does.
A query that was killed in between must be restarted within this time."""
CHECKED_MAX = 100
LAST = "partition_id=0&kind=last&value=0&count=1"
_log = logging.getLogger(__name__)


def last_batch(session: Session, query: str) -> int | None:
    """Returns the last batch that was written completely, or None."""
    reply = session.find(f"{topic_path(f'{STREAM}/{query}')}/messages?{LAST}")
    found = None if reply is None else polls.decode(reply)
    return None if not found else _batch_of(found, query)


def _batch_of(found: Messages, query: str) -> int | None:
    marker = json.loads(bytes(found.payloads))
    return int(marker["batch"]) if marker.get("query") == query else None


def store(session: Session, query: str, batch: int) -> None:
    """Records that this batch was written completely."""
    identity = UUID(bytes=ids.digest((b"marker", query.encode(), b"%d" % batch)))
    payload = base64.b64encode(json.dumps({"query": query, "batch": batch}).encode()).decode()
    body = json.dumps(
        {
            "partitioning": {"kind": "partition_id", "value": "AAAAAA=="},
            "messages": [{"id": str(identity), "payload": payload}],
        }
    ).encode()
    path = f"{topic_path(f'{STREAM}/{query}')}/messages"
    if session.call("POST", path, body, also=(404,)).status == 404:
        _create(session, query)
        session.call("POST", path, body)
        try:
            # By the gateway's clock.
            own = session.find(f"{path}?{LAST}")
            if own is not None and len(written := polls.decode(own)):
                delete_old(session, int(written.timestamps[-1]) - KEPT_US)
        except GatewayError as error:
            _log.warning("old batch markers could not be deleted: %s", error)


def delete_old(session: Session, before_us: int) -> int:
    """Deletes markers that were last written before this time, as far as the user may. Returns how many."""
    topics = session.call("GET", f"/streams/{quote(STREAM, safe='')}/topics", also=(403, 404))
    found = topics.json if topics.status == 200 else []
    old = [str(topic["name"]) for topic in found if int(topic["created_at"]) < before_us][:CHECKED_MAX]
    deleted = 0
    for name in old:
        path = topic_path(f"{STREAM}/{name}")
        reply = session.find(f"{path}/messages?{LAST}")
        last = polls.decode(reply) if reply is not None else ()
        if len(last) and int(last.timestamps[-1]) >= before_us:  # type: ignore[union-attr]
            continue
        deleted += session.call("DELETE", path, also=(403, 404)).status in (200, 204)
    return deleted


def _create(session: Session, query: str) -> None:
    # Another task may create them first (400, 409). If they are still missing, storing the marker fails.
    stream = f"/streams/{quote(STREAM, safe='')}"
    if session.find(stream) is None:
        session.call("POST", "/streams", json.dumps({"name": STREAM}).encode(), also=(400, 409))
    topic = {"name": query, "partitions_count": 1, "message_expiry": NEVER, "max_topic_size": TOPIC_BYTES_MAX}
    made = {**topic, "options": {"segment_size": SEGMENT}}
    if session.call("POST", f"{stream}/topics", json.dumps(made).encode(), also=(400, 409)).status in (400, 409):
        # For servers that do not know topic options.
        session.call("POST", f"{stream}/topics", json.dumps({**topic, "max_topic_size": 0}).encode(), also=(400, 409))
