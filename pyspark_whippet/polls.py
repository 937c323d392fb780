"""Polls: the request, and how the response is decoded. It asks for batches; other Iggy servers answer with JSON."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from pyspark_whippet import batches, user_headers
from pyspark_whippet.batches import BadBatch, Messages
from pyspark_whippet.errors import GatewayError
from pyspark_whippet.session import Pending, Reply, Session, topic_path


def begin(
    session: Session,
    topic: str,
    partition: int,
    kind: str,
    value: int,
    count: int,
    wait: str | None = None,
    epoch: int | None = None,
) -> Pending:
    """`wait` is how long the gateway may wait for messages, such as 2s. Servers that do not know it respond at once.
    In another epoch than this one, the response is 409."""
    query = f"partition_id={partition}&kind={kind}&value={value}&count={count}&auto_commit=false"
    if wait is not None:
        query += f"&wait={wait}"
    if epoch is not None:
        query += f"&epoch={epoch}"
    return session.begin("GET", f"{topic_path(topic)}/messages?{query}")


def finish(pending: Pending) -> Messages:
    return decode(pending.finish())


def decode(reply: Reply) -> Messages:
    if reply.has_batches:
        try:
            return batches.decode(reply.body)
        except BadBatch as error:
            raise GatewayError(f"the response to a poll is invalid: {error}") from None
    try:
        messages = reply.json["messages"]
        heads = [message["header"] for message in messages]
        return batches.messages_from_lists(
            [head["offset"] for head in heads],
            [head["timestamp"] for head in heads],
            [head["origin_timestamp"] for head in heads],
            [int(head["id"]).to_bytes(16, "big") for head in heads],
            [binascii.a2b_base64(message["payload"]) for message in messages],
            [_block(message.get("user_headers")) for message in messages],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise GatewayError(f"the response to a poll is invalid: {type(error).__name__}: {error}") from None


def _block(headers: Any) -> bytes:
    """Encodes user headers from JSON: a list of typed entries, a map from names, or base64 of the encoded headers."""
    if not headers:
        return b""
    if isinstance(headers, str):
        return base64.b64decode(headers)
    if isinstance(headers, dict):
        headers = [{"key": {"kind": "string", "value": _base64(key)}, "value": value} for key, value in headers.items()]
    entries = []
    for entry in headers:
        key, value = entry["key"], entry["value"]
        octets = base64.b64decode(key["value"])
        shown = octets.decode() if key["kind"] == "string" else f"{key['kind']}:{octets.hex()}"
        entries.append((shown, base64.b64decode(value["value"]), value["kind"]))
    return user_headers.encode(entries)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
