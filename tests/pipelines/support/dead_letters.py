"""Reads a dead-letter topic over the plain HTTP API."""

from __future__ import annotations

import base64
from typing import Any

from tests.support.lake import Lake


def letters(lake: Lake, topic: str) -> list[tuple[str, dict[str, str]]]:
    """Returns payloads and headers."""
    query = {"partition_id": 0, "count": 1000}
    answer = lake.http.get(f"{lake.path(topic)}/messages", params=query).raise_for_status().json()
    return [(_text(each["payload"]), _headers(each)) for each in answer["messages"]]


def _headers(message: dict[str, Any]) -> dict[str, str]:
    return {_text(each["key"]["value"]): _text(each["value"]["value"]) for each in message["user_headers"]}


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
