"""The options of the data source: one table, decoded to one frozen value. Every mistake is an error that says what to
do.

Names are those of Kafka's source where it has them. Spark passes them in lower case; errors show them as documented.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pyspark_whippet import option_parsers as parsers
from pyspark_whippet.errors import OptionError
from pyspark_whippet.settings import Access, Point, Secret, Settings

SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark itself adds."""
UNSUPPORTED = {"maxbytespertrigger": "maxBytesPerTrigger"}
KAFKA_OPTIONS = {
    "kafka.bootstrap.servers": "url",
    "kafka.group.id": "consumerName",
    "fetchoffset.numretries": "http.retries",
    "fetchoffset.retryintervalms": "http.retryForMs",
    "kafkaconsumer.polltimeoutms": "http.timeoutMs",
}
"""What to use instead of options of Kafka's source that have another name here."""
IN_FLIGHT_MAX = 64


class Option(NamedTuple):
    field: str
    parse: Callable[[str], Any]


ACCESS: Mapping[str, Option] = {
    "url": Option("urls", parsers.urls),
    "token": Option("token", lambda text: Secret(parsers.token(text))),
    "username": Option("username", parsers.not_empty),
    "password": Option("password", lambda text: Secret(parsers.not_empty(text))),
    "http.timeoutMs": Option("timeout_ms", parsers.integer(1)),
    "http.retryForMs": Option("retry_for_ms", parsers.integer(0)),
    "http.retries": Option("retries", parsers.integer(0)),
    "http.verify": Option("verify", parsers.boolean),
    "http.caFile": Option("ca_file", parsers.not_empty),
}
SOURCE: Mapping[str, Option] = {
    "from": Option("backend", parsers.one_of("gateway", "files", "all", "archive")),
    "path": Option("path", parsers.folder),
    "archive": Option("archive", parsers.archive),
    "s3.region": Option("s3_region", parsers.not_empty),
    "s3.endpoint": Option("s3_endpoint", parsers.endpoint),
    "s3.accessKeyId": Option("s3_access_key_id", parsers.secret),
    "s3.secretAccessKey": Option("s3_secret_access_key", parsers.secret),
    "s3.sessionToken": Option("s3_session_token", parsers.secret),
    "encryption.secretKey": Option("keys", parsers.keys),
    "encryption.keyFile": Option("keys", parsers.keys_in_file),
    "subscribe": Option("subscribe", parsers.subscribe),
    "subscribePattern": Option("subscribe_pattern", parsers.pattern),
    "assign": Option("assign", parsers.assign),
    "startingOffsets": Option("starting_offsets", parsers.starting_offsets),
    "endingOffsets": Option("ending_offsets", parsers.ending_offsets),
    "startingTimestamp": Option("starting_timestamp", parsers.timestamp),
    "endingTimestamp": Option("ending_timestamp", parsers.timestamp),
    "startingOffsetsByTimestamp": Option("starting_timestamps", parsers.timestamps),
    "endingOffsetsByTimestamp": Option("ending_timestamps", parsers.timestamps),
    "startingOffsetsByTimestampStrategy": Option("timestamps_without_match", parsers.one_of("error", "latest")),
    "failOnDataLoss": Option("fail_on_data_loss", parsers.boolean),
    "maxOffsetsPerTrigger": Option("max_offsets_per_trigger", parsers.integer(1)),
    "minOffsetsPerTrigger": Option("min_offsets_per_trigger", parsers.integer(1)),
    "maxTriggerDelay": Option("max_trigger_delay_ms", parsers.duration),
    "minPartitions": Option("min_partitions", parsers.integer(1)),
    "maxRecordsPerPartition": Option("max_records_per_partition", parsers.integer(1)),
    "includeHeaders": Option("include_headers", parsers.boolean),
    "consumerName": Option("consumer_name", parsers.not_empty),
    "groupIdPrefix": Option("group_id_prefix", parsers.not_empty),
    "pageSize": Option("page_size", parsers.integer(1, 2**32 - 1)),
    "pollIntervalMs": Option("poll_interval_ms", parsers.integer(0)),
    "valueFormat": Option("value_format", parsers.one_of("binary", "string", "json", "avro")),
    "valueSchema": Option("value_schema", parsers.not_empty),
}
SINK: Mapping[str, Option] = {
    "batchSize": Option("batch_size", parsers.integer(1, 1_000_000)),
    "maxBatchBytes": Option("max_batch_bytes", parsers.integer(1_000, 268_435_456)),
    "inFlight": Option("in_flight", parsers.integer(1, IN_FLIGHT_MAX)),
    "idColumns": Option("id_columns", parsers.column_names),
    "idNamespace": Option("id_namespace", parsers.not_empty),
    "idBatch": Option("id_batch", parsers.not_empty),
    "idMode": Option("id_mode", parsers.one_of("auto", "none")),
    "partitioning": Option("partitioning", parsers.one_of("auto", "id", "key", "partition", "balanced")),
    "createTopic": Option("create_topic", parsers.create_topic),
    "marker": Option("marker", parsers.boolean),
}
BOTH: Mapping[str, Option] = {
    "stream": Option("stream", parsers.not_empty),
    "topic": Option("topic", parsers.not_empty),
}
TABLE: Mapping[str, Option] = {**ACCESS, **BOTH, **SOURCE, **SINK}
_SHOWN = {name.lower(): name for name in TABLE}
ENVIRONMENT = {"token": "WHIPPET_TOKEN", "username": "WHIPPET_USERNAME", "password": "WHIPPET_PASSWORD"}
SECRET_KEY, KEY_FILE, KEY_VARIABLE = "encryption.secretKey", "encryption.keyFile", "WHIPPET_ENCRYPTION_KEY"
NOT_SHOWN = {*ENVIRONMENT, "url", SECRET_KEY}
"""Options whose values are in no error."""
S3_OPTIONS = ("s3.region", "s3.endpoint", "s3.accessKeyId", "s3.secretAccessKey", "s3.sessionToken")
HTTP_OPTIONS = ("http.timeoutMs", "http.retryForMs", "http.retries", "http.verify", "http.caFile")
OF_GATEWAY = ("url", "token", "username", "password", "consumerName", "groupIdPrefix", "pageSize")
OF_STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "pollIntervalMs")
DEFAULT_URL = "http://127.0.0.1:3000"


def decode(given: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Decodes the options that Spark passes, or raises OptionError."""
    found: dict[str, Any] = {}
    _check_sparks_options({key.lower(): text for key, text in given.items()})
    for key, text in given.items():
        shown = _SHOWN.get(key.lower())
        if shown is not None:
            found[shown] = _parse(shown, text)
        elif key.lower() not in SPARK_OPTIONS:
            raise _unknown(key)
    names = frozenset(found)
    fields = {TABLE[name].field: value for name, value in found.items() if name not in ACCESS}
    starting = _point("starting", fields)
    ending = _point("ending", fields)
    checkpoint = {key.lower(): text for key, text in given.items()}.get("checkpointlocation")
    access = _access(found, environ)
    if keys := _keys(found, environ):
        fields["keys"] = keys
    _check_ids(fields)
    if fields.get("value_format") == "avro" and "value_schema" in fields:
        fields["value_schema"] = _avro_schema(fields["value_schema"])
    return Settings(access=access, names=names, starting=starting, ending=ending, checkpoint=checkpoint, **fields)


def _check_sparks_options(given: Mapping[str, str]) -> None:
    """Spark adds options of its own for arguments of `load`, `save` and CREATE TABLE."""
    if "provider" in given:
        raise OptionError(
            "CREATE TABLE is not supported: it would write the options, secrets included, into the catalog; "
            "use CREATE TEMPORARY VIEW ... USING whippet OPTIONS (...)"
        )
    if "path" in given and given.get("from", "gateway").strip().lower() in ("gateway", "archive"):
        raise OptionError(
            "option 'path', which load(...) and save(...) set as well, is for from=files and from=all; leave it out: "
            "name a topic with .option('subscribe', 'stream/topic'), or with 'topic' to write to it"
        )


def _parse(name: str, text: str) -> Any:
    try:
        return TABLE[name].parse(text)
    except ValueError as error:
        shown = "" if name in NOT_SHOWN else f" {text!r}:"
        raise OptionError(f"option '{name}':{shown} {error}") from None


def _unknown(key: str) -> OptionError:
    if key.lower() in UNSUPPORTED:
        return OptionError(f"option '{UNSUPPORTED[key.lower()]}' is not supported yet; leave it out")
    if key.lower() in KAFKA_OPTIONS:
        return OptionError(f"option '{key}' belongs to Kafka's source; use '{KAFKA_OPTIONS[key.lower()]}'")
    near = difflib.get_close_matches(key.lower(), _SHOWN, n=1, cutoff=0.6)
    hint = f"did you mean '{_SHOWN[near[0]]}'?" if near else f"the options are: {', '.join(TABLE)}"
    return OptionError(f"option '{key}' is unknown; {hint}")


def _access(found: Mapping[str, Any], environ: Mapping[str, str]) -> Access:
    fields = {ACCESS[name].field: value for name, value in found.items() if name in ACCESS}
    if not {"token", "username", "password"} & fields.keys():
        for name, variable in ENVIRONMENT.items():
            if environ.get(variable):
                fields[name] = _parse(name, environ[variable])
    fields.setdefault("urls", parsers.urls(DEFAULT_URL))
    if "token" in fields and "username" in found:
        raise OptionError("options 'token' and 'username': set only one of them")
    if "token" in fields:
        fields.pop("username", None)
        fields.pop("password", None)
    if ("username" in fields) != ("password" in fields):
        missing = "password" if "username" in fields else "username"
        raise OptionError(f"option '{missing}' is required: set both 'username' and 'password', or use 'token'")
    return Access(**fields)


def _keys(found: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Secret, ...]:
    given: list[tuple[Secret, ...]] = [found[name] for name in (SECRET_KEY, KEY_FILE) if name in found]
    if not given and environ.get(KEY_VARIABLE) and found.get("from", "gateway") != "gateway":
        try:
            given.append(parsers.keys(environ[KEY_VARIABLE]))
        except ValueError as error:
            raise OptionError(f"the variable {KEY_VARIABLE}: {error}") from None
    return tuple(key for keys in given for key in keys)


def _point(which: str, fields: dict[str, Any]) -> Point | None:
    """A time takes precedence over times of partitions, and those over offsets, as in Kafka's source."""
    timestamp = fields.pop(f"{which}_timestamp", None)
    timestamps = fields.pop(f"{which}_timestamps", None)
    offsets = fields.pop(f"{which}_offsets", None)
    if timestamp is not None:
        return Point(timestamp_us=timestamp)
    if timestamps is not None:
        return Point(timestamps_us=timestamps)
    return None if offsets is None else Point(offsets=offsets)


def _check_ids(fields: Mapping[str, Any]) -> None:
    if fields.get("id_mode") == "none" and fields.keys() & {"id_columns", "id_namespace", "id_batch"}:
        raise OptionError("option 'idMode': 'none' derives no ids; leave out 'idColumns', 'idNamespace' and 'idBatch'")
    if "id_batch" in fields and "id_namespace" not in fields:
        raise OptionError("option 'idNamespace' is required with 'idBatch': it says which query the batch belongs to")


def _avro_schema(text: str) -> str:
    """Returns the text itself, or the content of the file that it names."""
    if text.lstrip()[:1] in ("{", "[", '"'):
        return text
    try:
        with open(text, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise OptionError(f"option 'valueSchema': {text!r} is neither JSON nor a readable file: {error}") from None


def check_source(settings: Settings) -> None:
    """Checks what only matters when reading."""
    _refuse_options(settings, SINK, "writing, and this reads")
    ways: list[str] = [name for name in ("subscribe", "subscribePattern", "assign") if name in settings.names]
    if {"stream", "topic"} & settings.names:
        if not settings.topic:
            raise OptionError("option 'topic' is required: .option('topic', ...)")
        if not settings.stream:
            raise OptionError("option 'stream' is required with 'topic', or use .option('subscribe', 'stream/topic')")
        ways.append("stream and topic")
    if not ways:
        raise OptionError("option 'subscribe' is required: .option('subscribe', 'stream/topic')")
    if len(ways) > 1:
        raise OptionError(f"options {' and '.join(map(repr, ways))}: set only one of them")
    _check_backend(settings)
    if settings.value_schema is not None and settings.value_format not in ("json", "avro"):
        raise OptionError("option 'valueSchema' is for valueFormat=json and valueFormat=avro")


def _check_backend(settings: Settings) -> None:
    backend, archive = settings.backend, settings.archive
    if backend == "archive":
        if archive is None:
            raise OptionError("option 'archive' is required with from=archive: s3://bucket/prefix, or file:///folder")
        _refuse_options(settings, OF_GATEWAY, "the gateway, which from=archive never uses")
        _refuse_options(settings, OF_STREAMS, "streams, and from=archive reads tables")
        if archive.folder is not None:
            _refuse_options(settings, (*S3_OPTIONS, *HTTP_OPTIONS), "archives in a bucket, and this is a folder")
        for one, other in (("s3.accessKeyId", "s3.secretAccessKey"), ("s3.secretAccessKey", "s3.accessKeyId")):
            if one in settings.names and other not in settings.names:
                raise OptionError(f"option '{other}' is required with '{one}'")
        if "s3.sessionToken" in settings.names and "s3.accessKeyId" not in settings.names:
            raise OptionError("option 's3.accessKeyId' is required with 's3.sessionToken'")
        return
    _refuse_options(settings, ("archive", *S3_OPTIONS), f"from=archive, and this is from={backend}")
    if backend == "gateway":
        _refuse_options(settings, (SECRET_KEY, KEY_FILE), "from=archive and from=files: the gateway has its own keys")
    elif settings.path is None:
        raise OptionError(f"option 'path' is required with from={backend}: the folder with the files")
    if backend == "files":
        _refuse_options(settings, ("consumerName", "groupIdPrefix"), "the gateway, which from=files never uses")


def check_sink(settings: Settings) -> None:
    """Checks what only matters when writing."""
    _refuse_options(settings, SOURCE, "reading, and this writes")
    if settings.topic is not None and settings.stream is None:
        _parse("subscribe", settings.topic)
    if settings.create_topic and settings.topic is None:
        raise OptionError("option 'createTopic' needs .option('topic', 'stream/topic'): the topic to create")


def _refuse_options(settings: Settings, names: Iterable[str], why: str) -> None:
    for name in sorted(settings.names.intersection(names)):
        raise OptionError(f"option '{name}' is for {why}; leave it out")
