"""Parsers for the values of options: each returns the value, or raises a ValueError that says what is needed
instead."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark_whippet.settings import EARLIEST, LATEST, Location, Offsets, Secret

KEY_BYTES = 32


def integer(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*\d{1,19}\s*", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"an integer of at least {least} is needed")
        return int(text)

    return parse


def duration(text: str) -> int:
    """Accepts Spark's form, `90s`, `15m`; a number alone is milliseconds. Returns milliseconds."""
    match = re.fullmatch(r"\s*(\d{1,12})\s*(ms|s|min|m|h|d)?\s*", text.lower(), re.ASCII)
    if match is None:
        raise ValueError("a duration is needed, such as 90s, 15m or 1h")
    return int(match[1]) * {"s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}.get(match[2], 1)


def boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false is needed")
    return word == "true"


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return word

    return parse


def not_empty(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def token(text: str) -> str:
    """A token that can be sent in a header.

    A token read from a file ends in a line break, which is stripped. Other invalid characters are refused here, because
    the error of the HTTP library would show the whole token.
    """
    stripped = text.strip()
    if not re.fullmatch(r"[!-~]+", stripped):
        raise ValueError("it is empty, or has characters that are not allowed in a token")
    return stripped


def topic_name(text: str) -> str:
    """Normalises a topic to `stream/topic`; the first slash separates them."""
    stream, slash, topic = text.strip().partition("/")
    if not (stream and slash and topic):
        raise ValueError(f"{text.strip()!r} is not a topic; stream/topic is needed")
    return f"{stream}/{topic}"


def subscribe(text: str) -> tuple[str, ...]:
    return tuple(sorted({topic_name(each) for each in text.split(",")}))


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is not a regular expression: {error}") from None
    return not_empty(text)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise ValueError('an object is needed, such as {"stream/topic": ...}')
    return {topic_name(topic): value for topic, value in found.items()}


def assign(text: str) -> dict[str, list[int]]:
    found = _json(text)
    for numbers in found.values():
        if not isinstance(numbers, list) or not numbers or not all(_is_whole(n, 0) for n in numbers):
            raise ValueError('the partitions of each topic are needed, such as {"stream/topic": [0, 1]}')
    return {topic: sorted(set(numbers)) for topic, numbers in found.items()}


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _by_partition(text: str, least: int, example: str) -> Offsets:
    found = _json(text)
    for partitions in found.values():
        if not isinstance(partitions, dict) or not all(
            key.isascii() and key.isdigit() and _is_whole(value, least) for key, value in partitions.items()
        ):
            raise ValueError(f"numbers for the partitions of each topic are needed, such as {example}")
    return {topic: {str(int(key)): value for key, value in each.items()} for topic, each in found.items()}


def starting_offsets(text: str) -> str | Offsets:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    return _by_partition(text, EARLIEST, '{"stream/topic": {"0": 23, "1": -2}}, or earliest, or latest')


def ending_offsets(text: str) -> str | Offsets:
    word = text.strip().lower()
    if word == "latest":
        return word
    return _by_partition(text, LATEST, '{"stream/topic": {"0": 23, "1": -1}}, or latest')


def timestamps(text: str) -> Offsets:
    found = _by_partition(text, 0, '{"stream/topic": {"0": 1700000000000}}, in milliseconds')
    return {topic: {key: value * 1000 for key, value in each.items()} for topic, each in found.items()}


def timestamp(text: str) -> int:
    """Accepts milliseconds as a number, or ISO 8601 (UTC without a zone). Returns microseconds."""
    if re.fullmatch(r"\s*\d{1,16}\s*", text, re.ASCII):
        return int(text) * 1000
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("milliseconds since 1970 are needed, or a time such as 2026-01-31T12:00:00Z") from None
    delta = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def column_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("column names are needed, separated by commas")
    return names


def urls(text: str) -> tuple[str, ...]:
    urls = []
    for each in text.split(","):
        parts = urlsplit(each.strip())
        if parts.username or parts.password:
            # Errors and plans show the address.
            raise ValueError("it must not contain credentials; use token, or username and password")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise ValueError("http://host:port is needed, or several separated by commas")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ValueError("the port must be a number from 1 to 65535") from None
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        urls.append(f"{parts.scheme}://{host}:{port}")
    return tuple(urls)


def folder(text: str) -> str:
    """Accepts a path, or the URL of a file."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("", "file") or parts.netloc:
        raise ValueError("a folder is needed that driver and executors see under the same path, such as /mnt/whippet")
    if not parts.path.startswith("/"):
        raise ValueError("an absolute path is needed: tasks run in other working directories")
    return (unquote(parts.path) if parts.scheme else text.strip()).rstrip("/") or "/"


def archive(text: str) -> Location:
    parts = urlsplit(text.strip())
    if parts.scheme == "s3":
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError("s3://bucket/prefix is needed")
        return Location(None, parts.netloc, unquote(parts.path).strip("/"))
    if parts.scheme != "file":
        raise ValueError("s3://bucket/prefix is needed, or file:///folder")
    return Location(folder(text))


def endpoint(text: str) -> str:
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise ValueError("the URL of the service is needed, such as https://host:port, without credentials")
    return text.strip()


def keys(text: str) -> tuple[Secret, ...]:
    """Accepts several keys, separated by commas, or the lines of a key file, in which # begins a comment."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = tuple(Secret(each) for line in lines for each in line.replace(",", " ").split())
    if not found or not all(_is_key(each.text) for each in found):
        raise ValueError("keys of 32 bytes in base64 are needed")
    return found


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == KEY_BYTES
    except ValueError:
        return False


def keys_in_file(path: str) -> tuple[Secret, ...]:
    try:
        with open(path, encoding="ascii") as file:
            return keys(file.read())
    except OSError as error:
        raise ValueError(f"the driver cannot read it: {error.strerror}") from None


def secret(text: str) -> Secret:
    return Secret(not_empty(text.strip()))


def create_topic(text: str) -> int:
    return 0 if text.strip().lower() == "false" else integer(1)(text)
