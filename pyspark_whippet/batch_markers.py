"""Batch markers: for each streaming query, the gateway stores the number of the last batch that was written completely.

A batch that is replayed after the deduplication window has forgotten its ids (a long outage, a restart of the gateway)
would be written twice; the marker tells that it can be skipped. Each query has a topic of its own in the stream
`spark-markers`, with one small message per batch. Only the last one counts: older segments are deleted when the next
one is full. A new checkpoint means a new query, and so a new marker.
"""

from __future__ import annotations

import base64
import json
from urllib.parse import quote
from uuid import UUID

from pyspark_whippet import ids, polls
from pyspark_whippet.batches import Messages
from pyspark_whippet.session import Session, topic_path

STREAM = "spark-markers"
SEGMENT = "1 MiB"
TOPIC_BYTES_MAX = 4 * 1024 * 1024
NEVER = 2**64 - 1


def last_batch(session: Session, query: str) -> int | None:
    """Returns the last batch that was written completely, or None."""
    reply = session.find(f"{topic_path(f'{STREAM}/{query}')}/messages?partition_id=0&kind=last&value=0&count=1")
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
