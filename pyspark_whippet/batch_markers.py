"""What a streaming query has written, kept by the gateway: the number of its last batch that is there as a whole.

A batch that is replayed after the window of de-duplication has forgotten it (a long outage, a restart of the gateway)
would be written twice; with the marker it is left out. Each query has a topic of its own in the stream `spark-markers`
with one small message a batch, of which only the last one counts: older segments go when the next is full. A checkpoint
that is begun anew is another query, so its marker is another one too.
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
    """The last batch that is there; None if there is none."""
    reply = session.find(f"{topic_path(f'{STREAM}/{query}')}/messages?partition_id=0&kind=last&value=0&count=1")
    found = None if reply is None else polls.decode(reply)
    return None if not found else _batch_of(found, query)


def _batch_of(found: Messages, query: str) -> int | None:
    said = json.loads(bytes(found.payloads))
    return int(said["batch"]) if said.get("query") == query else None


def store(session: Session, query: str, batch: int) -> None:
    """All of this batch is there."""
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
    # Somebody else may be quicker (400, 409); whether they are there shows when the marker is stored.
    stream = f"/streams/{quote(STREAM, safe='')}"
    if session.find(stream) is None:
        session.call("POST", "/streams", json.dumps({"name": STREAM}).encode(), also=(400, 409))
    topic = {"name": query, "partitions_count": 1, "message_expiry": NEVER, "max_topic_size": TOPIC_BYTES_MAX}
    made = {**topic, "options": {"segment_size": SEGMENT}}
    if session.call("POST", f"{stream}/topics", json.dumps(made).encode(), also=(400, 409)).status in (400, 409):
        # Servers that know no options.
        session.call("POST", f"{stream}/topics", json.dumps({**topic, "max_topic_size": 0}).encode(), also=(400, 409))
