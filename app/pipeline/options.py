"""The options of the data source: one table, one frozen value made of it, every mistake an error that says the way out.

Names are Kafka's where Kafka has them. Spark hands them over in small letters; they are shown as they are documented.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from app.pipeline.errors import OptionError

SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark itself puts among the options."""
NOT_YET = {
    "minoffsetspertrigger": "minOffsetsPerTrigger",
    "maxtriggerdelay": "maxTriggerDelay",
    "maxbytespertrigger": "maxBytesPerTrigger",
    "inflight": "inFlight",
}
EARLIEST, LATEST = -2, -1
"""In the place of an offset, as Kafka has them."""

Offsets = dict[str, dict[str, int]]
"""Of partitions, by topic (`stream/topic`) and by their numbers as texts: the form that checkpoints keep."""


class Secret:
    """A text that is not shown by accident."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "******"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self.text,)


@dataclass(frozen=True)
class Access:
    """How the gateway is reached, and as whom."""

    urls: tuple[str, ...]
    token: Secret | None = None
    username: str | None = None
    password: Secret | None = None
    timeout_ms: int = 30_000
    retries: int = 5
    verify: bool = True
    ca_file: str | None = None


@dataclass(frozen=True)
class Point:
    """A position in all partitions: a time, a time for each, or offsets; exactly one is not None."""

    timestamp_us: int | None = None
    timestamps_us: Offsets | None = None
    offsets: str | Offsets | None = None
    """`earliest`, `latest`, or for each partition an offset, EARLIEST or LATEST."""


@dataclass(frozen=True)
class Settings:
    """All options, decoded. None is what was not said."""

    access: Access
    names: frozenset[str] = frozenset()
    """The options that were given, as they are documented."""
    stream: str | None = None
    topic: str | None = None
    subscribe: tuple[str, ...] | None = None
    subscribe_pattern: str | None = None
    assign: dict[str, list[int]] | None = None
    starting: Point | None = None
    ending: Point | None = None
    timestamps_without_match: str = "error"
    fail_on_data_loss: bool = True
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    consumer_name: str | None = None
    page_size: int = 5_000
    poll_interval_ms: int = 250
    value_format: str = "binary"
    value_schema: str | None = None
    batch_size: int = 5_000
    max_batch_bytes: int = 1_000_000
    id_columns: tuple[str, ...] = ()
    id_namespace: str | None = None
    id_batch: str | None = None
    id_mode: str = "auto"
    partitioning: str = "auto"
    create_topic: int = 0
    marker: bool = True
    checkpoint: str | None = field(default=None, repr=False)

    @property
    def topics(self) -> tuple[str, ...] | None:
        """The topics that are named one by one, as `stream/topic`; None for a pattern."""
        if self.assign is not None:
            return tuple(sorted(self.assign))
        if self.subscribe is not None:
            return self.subscribe
        return None if self.subscribe_pattern is not None else (f"{self.stream}/{self.topic}",)


# ------------------------------------------------------------------------------------------------------ reading values


def _whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*\d{1,19}\s*", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} on is needed")
        return int(text)

    return parse


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false is needed")
    return word == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return word

    return parse


def _text(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def topic_name(text: str) -> str:
    """A topic as `stream/topic`: the first slash is the one that parts them."""
    stream, slash, topic = text.strip().partition("/")
    if not (stream and slash and topic):
        raise ValueError(f"{text.strip()!r} is no topic: stream/topic is needed")
    return f"{stream}/{topic}"


def _subscribe(text: str) -> tuple[str, ...]:
    return tuple(sorted({topic_name(each) for each in text.split(",")}))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    return _text(text)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise ValueError('an object is needed, such as {"stream/topic": ...}')
    return {topic_name(topic): value for topic, value in found.items()}


def _assign(text: str) -> dict[str, list[int]]:
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


def _offsets(text: str) -> str | Offsets:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    return _by_partition(text, EARLIEST, '{"stream/topic": {"0": 23, "1": -2}}, or earliest, or latest')


def _timestamps(text: str) -> Offsets:
    found = _by_partition(text, 0, '{"stream/topic": {"0": 1700000000000}}, in milliseconds')
    return {topic: {key: value * 1000 for key, value in each.items()} for topic, each in found.items()}


def _timestamp(text: str) -> int:
    """Milliseconds as a number, or ISO 8601; without a zone it is UTC. Answers microseconds."""
    if re.fullmatch(r"\s*\d{1,16}\s*", text, re.ASCII):
        return int(text) * 1000
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("milliseconds since 1970 are needed, or a time such as 2026-01-31T12:00:00Z") from None
    delta = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError("names of columns are needed, with commas between them")
    return names


def _urls(text: str) -> tuple[str, ...]:
    urls = []
    for each in text.split(","):
        parts = urlsplit(each.strip())
        if parts.username or parts.password:
            # The address is shown in errors and plans.
            raise ValueError("credentials do not belong into it: use token, or username and password")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
            raise ValueError("http://host:port is needed, several with commas between them")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ValueError("the port is no number from 1 to 65535") from None
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        urls.append(f"{parts.scheme}://{host}:{port}")
    return tuple(urls)


def _create_topic(text: str) -> int:
    return 0 if text.strip().lower() == "false" else _whole(1)(text)


# ----------------------------------------------------------------------------------------------------------- the table


class Option(NamedTuple):
    field: str
    parse: Callable[[str], Any]


ACCESS: Mapping[str, Option] = {
    "url": Option("urls", _urls),
    "token": Option("token", lambda text: Secret(_text(text))),
    "username": Option("username", _text),
    "password": Option("password", lambda text: Secret(_text(text))),
    "http.timeoutMs": Option("timeout_ms", _whole(1)),
    "http.retries": Option("retries", _whole(0)),
    "http.verify": Option("verify", _truth),
    "http.caFile": Option("ca_file", _text),
}
SOURCE: Mapping[str, Option] = {
    "subscribe": Option("subscribe", _subscribe),
    "subscribePattern": Option("subscribe_pattern", _pattern),
    "assign": Option("assign", _assign),
    "startingOffsets": Option("starting_offsets", _offsets),
    "endingOffsets": Option("ending_offsets", _offsets),
    "startingTimestamp": Option("starting_timestamp", _timestamp),
    "endingTimestamp": Option("ending_timestamp", _timestamp),
    "startingOffsetsByTimestamp": Option("starting_timestamps", _timestamps),
    "endingOffsetsByTimestamp": Option("ending_timestamps", _timestamps),
    "startingOffsetsByTimestampStrategy": Option("timestamps_without_match", _one_of("error", "latest")),
    "failOnDataLoss": Option("fail_on_data_loss", _truth),
    "maxOffsetsPerTrigger": Option("max_offsets_per_trigger", _whole(1)),
    "minPartitions": Option("min_partitions", _whole(1)),
    "maxRecordsPerPartition": Option("max_records_per_partition", _whole(1)),
    "includeHeaders": Option("include_headers", _truth),
    "consumerName": Option("consumer_name", _text),
    "pageSize": Option("page_size", _whole(1, 2**32 - 1)),
    "pollIntervalMs": Option("poll_interval_ms", _whole(0)),
    "valueFormat": Option("value_format", _one_of("binary", "string", "json")),
    "valueSchema": Option("value_schema", _text),
}
SINK: Mapping[str, Option] = {
    "batchSize": Option("batch_size", _whole(1, 1_000_000)),
    "maxBatchBytes": Option("max_batch_bytes", _whole(1_000, 268_435_456)),
    "idColumns": Option("id_columns", _names),
    "idNamespace": Option("id_namespace", _text),
    "idBatch": Option("id_batch", _text),
    "idMode": Option("id_mode", _one_of("auto", "none")),
    "partitioning": Option("partitioning", _one_of("auto", "id", "key", "partition", "balanced")),
    "createTopic": Option("create_topic", _create_topic),
    "marker": Option("marker", _truth),
}
BOTH: Mapping[str, Option] = {"stream": Option("stream", _text), "topic": Option("topic", _text)}
TABLE: Mapping[str, Option] = {**ACCESS, **BOTH, **SOURCE, **SINK}
_SHOWN = {name.lower(): name for name in TABLE}
ENVIRONMENT = {"token": "WHIPPET_TOKEN", "username": "WHIPPET_USERNAME", "password": "WHIPPET_PASSWORD"}
DEFAULT_URL = "http://127.0.0.1:3000"


def decode(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Settings:
    """The options as Spark hands them over, or OptionError."""
    found: dict[str, Any] = {}
    for key, text in given.items():
        shown = _SHOWN.get(key.lower())
        if shown is not None:
            found[shown] = _parse(shown, text)
        elif key.lower() not in SPARKS_OWN:
            raise _unknown(key)
    names = frozenset(found)
    said = {TABLE[name].field: value for name, value in found.items() if name not in ACCESS}
    starting = _point("starting", said)
    ending = _point("ending", said)
    checkpoint = {key.lower(): text for key, text in given.items()}.get("checkpointlocation")
    access = _access(found, environ)
    _check_ids(said)
    return Settings(access=access, names=names, starting=starting, ending=ending, checkpoint=checkpoint, **said)


def _parse(name: str, text: str) -> Any:
    try:
        return TABLE[name].parse(text)
    except ValueError as error:
        said = "" if name in ENVIRONMENT or name == "url" else f" {text!r}:"
        raise OptionError(f"option '{name}':{said} {error}") from None


def _unknown(key: str) -> OptionError:
    if key.lower() in NOT_YET:
        return OptionError(f"option '{NOT_YET[key.lower()]}' is not supported yet; leave it out")
    near = difflib.get_close_matches(key.lower(), _SHOWN, n=1, cutoff=0.6)
    hint = f"did you mean '{_SHOWN[near[0]]}'?" if near else f"there are: {', '.join(TABLE)}"
    return OptionError(f"option '{key}' is not known; {hint}")


def _access(found: Mapping[str, Any], environ: Mapping[str, str]) -> Access:
    said = {ACCESS[name].field: value for name, value in found.items() if name in ACCESS}
    if not {"token", "username", "password"} & said.keys():
        for name, variable in ENVIRONMENT.items():
            if environ.get(variable):
                said[name] = _parse(name, environ[variable])
    said.setdefault("urls", _urls(DEFAULT_URL))
    if "token" in said and "username" in found:
        raise OptionError("options 'token' and 'username': one of them says who asks")
    if "token" in said:
        said.pop("username", None)
        said.pop("password", None)
    if ("username" in said) != ("password" in said):
        missing = "password" if "username" in said else "username"
        raise OptionError(f"option '{missing}' is required: a name and a password belong together, or use 'token'")
    return Access(**said)


def _point(which: str, said: dict[str, Any]) -> Point | None:
    """A time comes before times of partitions, which come before offsets, as in Kafka's source."""
    timestamp = said.pop(f"{which}_timestamp", None)
    timestamps = said.pop(f"{which}_timestamps", None)
    offsets = said.pop(f"{which}_offsets", None)
    if timestamp is not None:
        return Point(timestamp_us=timestamp)
    if timestamps is not None:
        return Point(timestamps_us=timestamps)
    return None if offsets is None else Point(offsets=offsets)


def _check_ids(said: Mapping[str, Any]) -> None:
    if said.get("id_mode") == "none" and said.keys() & {"id_columns", "id_namespace", "id_batch"}:
        raise OptionError("option 'idMode': 'none' makes no ids; leave out 'idColumns', 'idNamespace' and 'idBatch'")
    if "id_batch" in said and "id_namespace" not in said:
        raise OptionError("option 'idNamespace' is required with 'idBatch': the number of a batch is one of something")


def check_source(settings: Settings) -> None:
    """What only somebody who reads can have said wrong."""
    _refuse(settings, SINK, "writing, and this reads")
    ways: list[str] = [name for name in ("subscribe", "subscribePattern", "assign") if name in settings.names]
    if {"stream", "topic"} & settings.names:
        if not settings.topic:
            raise OptionError("option 'topic' is required: .option('topic', ...)")
        if not settings.stream:
            raise OptionError("option 'stream' is required beside 'topic', or use .option('subscribe', 'stream/topic')")
        ways.append("stream and topic")
    if not ways:
        raise OptionError("option 'subscribe' is required: .option('subscribe', 'stream/topic')")
    if len(ways) > 1:
        raise OptionError(f"options {' and '.join(map(repr, ways))}: one of them says what is read")
    if settings.value_schema is not None and settings.value_format != "json":
        raise OptionError("option 'valueSchema' is for valueFormat=json")


def check_sink(settings: Settings) -> None:
    """What only somebody who writes can have said wrong."""
    _refuse(settings, SOURCE, "reading, and this writes")
    if settings.topic is not None and settings.stream is None:
        _parse("subscribe", settings.topic)
    if settings.create_topic and settings.topic is None:
        raise OptionError("option 'createTopic' needs to know which: .option('topic', 'stream/topic')")


def _refuse(settings: Settings, table: Mapping[str, Option], why: str) -> None:
    for name in sorted(settings.names & table.keys()):
        raise OptionError(f"option '{name}' is for {why}; leave it out")
