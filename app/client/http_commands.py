"""Commands as requests of the HTTP API, and its responses as results: pure functions over values and bytes.

A command that the API does not have is refused, by its name. Batches travel as they are, in Whippet's binary format.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from whippet.app.access import permissions as granted
from whippet.app.client import http_results as results
from whippet.app.client.connection import Disconnected
from whippet.app.client.http_results import COMPRESSIONS
from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Consumer, ConsumerKind, Identifier, PartitioningKind, StrategyKind
from whippet.app.errors import TABLE, Code, CommandError
from whippet.app.model.options import Option, ValueKind
from whippet.storage.batch import HEADER, HEADER_BYTES, Readable
from whippet.storage.options import Durability

BATCH = "application/vnd.iggy.batch"
JSON = "application/json"
NAME_BYTES_MAX = 255
GZIP_LEVEL, ZSTD_LEVEL = 1, 3
SNAPSHOT_COMPRESSIONS = {1: "Stored", 2: "Deflated", 3: "Bzip2", 4: "Zstd", 5: "Lzma", 6: "Xz"}
SNAPSHOT_PARTS = {
    1: "FilesystemOverview",
    2: "ProcessList",
    3: "ResourceUsage",
    4: "Test",
    5: "ServerLogs",
    6: "ServerConfig",
    100: "All",
}
OF_STATUS = {
    400: Code.INVALID_COMMAND,
    401: Code.UNAUTHENTICATED,
    403: Code.UNAUTHORIZED,
    404: Code.RESOURCE_NOT_FOUND,
    413: Code.INVALID_COMMAND,
    422: Code.INVALID_COMMAND,
}
"""What an error of HTTP itself is as an error of a command."""
NOT_FOUND, UNAVAILABLE = 404, 503
_NO_STATUS_IS_LESS_THAN = 400


class Answer(NamedTuple):
    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Exchange(NamedTuple):
    """A request, and what its response means."""

    method: str
    path: str
    decode: Callable[[Answer], Any]
    body: tuple[Readable, ...] = ()
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    changes_session: bool = False
    """No other request is sent before the response has arrived."""
    handles_refusals: bool = False
    """`decode` gets refusals as well."""

    def head(self, host: str, token: str | None) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", f"host: {host}"]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        if self.content_type:
            lines.append(f"content-type: {self.content_type}")
        if self.content_type or self.method in ("POST", "PUT"):
            lines.append(f"content-length: {sum(map(len, self.body))}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")


def compressed(exchange: Exchange, coding: str) -> Exchange:
    """Returns a send with a compressed body."""
    body = compress(b"".join(exchange.body), coding)
    return exchange._replace(body=(body,), headers=(*exchange.headers, ("content-encoding", coding)))


def compress(content: bytes, coding: str) -> bytes:
    if coding == "gzip":
        return gzip.compress(content, GZIP_LEVEL, mtime=0)
    import zstandard  # noqa: PLC0415 -- seldom needed

    return zstandard.compress(content, ZSTD_LEVEL)


def prepare(request: requests.Request) -> Exchange:
    """Raises a CommandError for what HTTP does not have."""
    found = _COMMANDS.get(type(request))
    if found is None:
        raise not_over_http(type(request).__name__)
    return found(request)


def not_over_http(what: str) -> CommandError:
    return CommandError(Code.FEATURE_UNAVAILABLE, f"{what} is not in the HTTP API: connect over TCP, QUIC or WebSocket")


def refusal(answer: Answer) -> CommandError:
    """Returns the error in a response."""
    try:
        body = answer.json
        number, name, reason = body["id"], body["code"], str(body["reason"])
    except (msgspec.DecodeError, KeyError, TypeError):
        sentence = (
            f"HTTP status {answer.status} without an explanation: is this the address of a Whippet's HTTP API? With an "
            "Iggy server, connect over TCP"
        )
        if answer.status == UNAVAILABLE:
            return Disconnected(detail=sentence)
        return CommandError(Code.ERROR, sentence)
    try:
        code = Code(number)
    except ValueError:
        code = None
    if code is not None and TABLE[code].name == name:
        # A session without a token is one that has not logged in.
        return CommandError(Code.UNAUTHENTICATED if code is Code.ACCESS_TOKEN_MISSING else code, reason)
    if answer.status == UNAVAILABLE:
        # It starts or stops: the same as a connection that cannot be established, or is lost.
        return Disconnected(detail=reason)
    found = OF_STATUS.get(answer.status, Code.ERROR)
    return CommandError(found, reason if found is not Code.ERROR else f"{reason} (HTTP status {answer.status})")


def is_refusal(answer: Answer) -> bool:
    return answer.status >= _NO_STATUS_IS_LESS_THAN


# -------------------------------------------------------------------------------------------------------------- paths


def segment(identifier: Identifier) -> str:
    """A stream, a topic, a user or a group as a part of a path."""
    if isinstance(identifier, int):
        return str(identifier)
    return quote(_checked(identifier, may_be_number=False), safe="")


def _checked(name: str, *, may_be_number: bool = True) -> str:
    size = len(name.encode())
    if not 0 < size <= NAME_BYTES_MAX:
        raise CommandError(Code.INVALID_FORMAT, f"a name has 1 to {NAME_BYTES_MAX} bytes, not {size}")
    if not may_be_number and name.isascii() and name.isdigit():
        raise CommandError(Code.INVALID_IDENTIFIER, f"over HTTP, {name!r} is an id: use a connection over TCP")
    return name


def _topic(request: Any) -> str:
    return f"/streams/{segment(request.stream)}/topics/{segment(request.topic)}"


def group_path(stream: Identifier, topic: Identifier, group: Identifier) -> str:
    return f"/streams/{segment(stream)}/topics/{segment(topic)}/consumer-groups/{segment(group)}"


def _with_query(path: str, **parameters: object) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given, quote_via=quote)}" if given else path


def with_body(method: str, path: str, body: object, decode: Callable[[Answer], Any], **options: Any) -> Exchange:
    return Exchange(method, path, decode, (msgspec.json.encode(body),), JSON, **options)


# ------------------------------------------------------------------------------------------------------------ results


def nothing(answer: Answer) -> None:
    return None


def _one(of: Callable[[Any], Any]) -> Callable[[Answer], Any]:
    return lambda answer: of(answer.json)


def _found(of: Callable[[Any], Any]) -> Callable[[Answer], Any]:
    """For queries: what does not exist is None."""
    return lambda answer: None if answer.status == NOT_FOUND else of(answer.json)


def _each(of: Callable[[Any], Any]) -> Callable[[Answer], tuple[Any, ...]]:
    return lambda answer: () if answer.status == NOT_FOUND else tuple(map(of, answer.json))


QUERIES = frozenset(
    {
        requests.GetClient,
        requests.GetUser,
        requests.GetStream,
        requests.GetTopic,
        requests.GetTopics,
        requests.GetConsumerGroup,
        requests.GetConsumerGroups,
        requests.GetConsumerOffset,
    }
)
"""Their result says that something does not exist: it is no error."""


# ----------------------------------------------------------------------------------------------------------- messages


def _send(request: requests.SendMessages) -> Exchange:
    to = request.partitioning
    partition = to.partition_id if to.kind is PartitioningKind.PARTITION_ID else None
    key = None
    if to.kind is PartitioningKind.MESSAGES_KEY:
        try:
            key = to.key.decode()
        except UnicodeDecodeError:
            raise CommandError(
                Code.INVALID_KEY_VALUE_LENGTH, "over HTTP a key is a text in UTF-8: use a connection over TCP"
            ) from None
    level = None if request.durability is None else request.durability.name.lower()
    path = _with_query(f"{_topic(request)}/messages", partition_id=partition, key=key, durability=level)
    headers: tuple[tuple[str, str], ...] = ()
    if (producer := request.producer) is not None:
        name = producer.id.decode(errors="surrogateescape")
        if not name.isprintable() or name != name.strip():
            raise CommandError(Code.INVALID_PRODUCER, "over HTTP the id of a producer is printable text")
        headers = (
            ("producer-id", name),
            ("producer-epoch", str(producer.epoch)),
            ("producer-seq", str(producer.sequence)),
        )
    count = sum(HEADER.unpack_from(batch)[6] for batch in request.batches)

    def sent(answer: Answer) -> responses.Sent:
        (place,) = answer.json["confirmations"]
        reached = Durability[answer.headers[b"whippet-durability"].decode().upper()]
        where = place["stream_id"], place["topic_id"], place["partition_id"], place["base_offset"]
        return responses.Sent(*where, count, reached, repeated=b"whippet-repeated" in answer.headers)

    return Exchange("POST", path, sent, request.batches, BATCH, headers)


def start(request: requests.PollMessages) -> dict[str, object]:
    kind = request.strategy.kind
    takes_value = kind in (StrategyKind.OFFSET, StrategyKind.TIMESTAMP)
    return {
        "partition_id": request.partition_id,
        "kind": kind.name.lower(),
        "value": request.strategy.value if takes_value else None,
        "count": request.count,
        "auto_commit": "true" if request.auto_commit else None,
    }


def _poll(request: requests.PollMessages) -> Exchange:
    path = _with_query(f"{_topic(request)}/messages", consumer_id=consumer_id(request.consumer), **start(request))
    return Exchange("GET", path, polled, headers=(("accept", BATCH),))


def poll_with_lease(lease: str, request: requests.PollMessages, decode: Callable[[Answer], Any]) -> Exchange:
    path = _with_query(f"{lease}/messages", **start(request))
    return Exchange("GET", path, decode, headers=(("accept", BATCH),), handles_refusals=True)


def polled(answer: Answer) -> responses.Polled:
    headers = answer.headers
    batches = tuple(_batches(memoryview(answer.body)))
    return responses.Polled(
        int(headers[b"iggy-partition"]),
        int(headers[b"iggy-current-offset"]),
        int(headers[b"iggy-count"]),
        batches,
        next_offset=int(headers[b"iggy-next-offset"]),
        epoch=int(headers.get(b"iggy-epoch", 0)),
    )


def _batches(octets: memoryview) -> Iterator[memoryview]:
    position = 0
    while position < len(octets):
        length = HEADER.unpack_from(octets, position)[4] if len(octets) - position >= HEADER_BYTES else 0
        if not HEADER_BYTES < length <= len(octets) - position:
            raise CommandError(Code.INVALID_FORMAT, "the batches do not fill the response")
        yield octets[position : position + length]
        position += length


def consumer_id(consumer: Consumer) -> Identifier:
    name = consumer.id
    return name if isinstance(name, int) else _checked(name, may_be_number=False)


_KINDS = {ConsumerKind.CONSUMER: None, ConsumerKind.GROUP: "consumer_group"}


def _kind(consumer: Consumer) -> str | None:
    if consumer.kind not in _KINDS:
        raise not_over_http(f"a consumer of the kind {consumer.kind.name.lower()}")
    return _KINDS[consumer.kind]


def _get_offset(request: requests.GetConsumerOffset) -> Exchange:
    path = _with_query(
        f"{_topic(request)}/consumer-offsets",
        consumer_id=consumer_id(request.consumer),
        partition_id=request.partition_id,
        consumer_kind=_kind(request.consumer),
    )
    return Exchange("GET", path, _found(lambda body: msgspec.convert(body, responses.ConsumerOffset)))


def _store_offset(request: requests.StoreConsumerOffset) -> Exchange:
    body = {
        "consumer_id": consumer_id(request.consumer),
        "partition_id": request.partition_id,
        "offset": request.offset,
    }
    kind = _kind(request.consumer)
    return with_body(
        "PUT", f"{_topic(request)}/consumer-offsets", body | ({"consumer_kind": kind} if kind else {}), nothing
    )


def _delete_offset(request: requests.DeleteConsumerOffset) -> Exchange:
    path = f"{_topic(request)}/consumer-offsets/{segment(request.consumer.id)}"
    kind = _kind(request.consumer)
    return Exchange("DELETE", _with_query(path, partition_id=request.partition_id, consumer_kind=kind), nothing)


# ----------------------------------------------------------------------------------------------------------- commands


def _option_texts(options: tuple[Option, ...]) -> dict[str, str]:
    texts = {}
    for option in options:
        if option.kind in (ValueKind.STRING, ValueKind.RAW):
            texts[option.key] = option.value.decode()
        elif option.kind is ValueKind.BOOL:
            texts[option.key] = "true" if any(option.value) else "false"
        else:
            texts[option.key] = str(int.from_bytes(option.value, "little"))
    return texts


def _permissions_body(permissions: granted.Permissions | None) -> Any:
    if permissions is None:
        return None
    body = msgspec.to_builtins(permissions, str_keys=True)
    return {"global": body["everywhere"], "streams": body["streams"] or None}


def _get_client(request: requests.GetClient) -> Exchange:
    if not request.client_id:
        raise CommandError(Code.INVALID_CLIENT_ID)
    return Exchange("GET", f"/clients/{request.client_id}", _found(results.client))


def _snapshot(request: requests.GetSnapshot) -> Exchange:
    try:
        compression = SNAPSHOT_COMPRESSIONS[request.compression]
        parts = [SNAPSHOT_PARTS[number] for number in request.types]
    except KeyError as unknown:
        raise CommandError(Code.INVALID_COMMAND, f"{unknown} is no compression, or no part, of a snapshot") from None
    body = {"compression": compression, "snapshot_types": parts}
    return with_body("POST", "/snapshot", body, lambda answer: responses.Snapshot(answer.body))


def _create_topic(request: requests.CreateTopic) -> Exchange:
    body = {
        "name": _checked(request.name),
        "partitions_count": request.partitions_count,
        "compression_algorithm": _compression(request.compression_algorithm),
        "message_expiry": request.message_expiry,
        "max_topic_size": request.max_topic_size,
        "replication_factor": request.replication_factor or None,
        "options": _option_texts(request.options) or None,
    }
    return with_body("POST", f"/streams/{segment(request.stream)}/topics", body, _one(results.topic_details))


def _update_topic(request: requests.UpdateTopic) -> Exchange:
    body = {
        "name": _checked(request.name),
        "compression_algorithm": _compression(request.compression_algorithm),
        "message_expiry": request.message_expiry or None,
        "max_topic_size": request.max_topic_size or None,
        "replication_factor": request.replication_factor or None,
        "options": _option_texts(request.options) or None,
    }
    return with_body("PUT", _topic(request), body, nothing)


def _compression(number: int | None) -> str | None:
    """1 is the default of the server, or what the topic has, as in the binary protocol."""
    if not number or number == 1:
        return None
    if number not in COMPRESSIONS:
        raise CommandError(Code.INVALID_COMMAND, f"the compression {number} is unknown")
    return COMPRESSIONS[number]


def _create_user(request: requests.CreateUser) -> Exchange:
    body = {
        "username": _checked(request.username),
        "password": request.password,
        "status": request.status.name.lower(),
        "permissions": _permissions_body(request.permissions),
    }
    return with_body("POST", "/users", body, _one(results.user_details))


def _update_user(request: requests.UpdateUser) -> Exchange:
    body = {
        "username": None if request.username is None else _checked(request.username),
        "status": None if request.status is None else request.status.name.lower(),
    }
    return with_body("PUT", f"/users/{segment(request.user)}", body, nothing)


def _change_password(request: requests.ChangePassword) -> Exchange:
    body = {"current_password": request.current_password, "new_password": request.new_password}
    return with_body("PUT", f"/users/{segment(request.user)}/password", body, nothing)


def log_in(request: requests.LoginUser, decode: Callable[[Answer], Any]) -> Exchange:
    body = {"username": request.username, "password": request.password, "version": request.version}
    # With an empty context it would be taken for an old client.
    body |= {"context": request.context or "whippet"}
    return with_body("POST", "/users/login", body, decode, changes_session=True)


def log_in_with_token(request: requests.LoginWithPersonalAccessToken, decode: Callable[[Answer], Any]) -> Exchange:
    body = {"token": request.token}
    return with_body("POST", "/personal-access-tokens/login", body, decode, changes_session=True)


def refresh(token: str, decode: Callable[[Answer], Any]) -> Exchange:
    return with_body("POST", "/users/refresh-token", {"token": token}, decode, changes_session=True)


def lifetime(token: str) -> float | None:
    """Returns how many seconds an access token is valid, whatever this machine's clock shows; None: it does not say."""
    parts = token.split(".")
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"] - claims["iat"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None


_COMMANDS: dict[type[requests.Request], Callable[[Any], Exchange]] = {
    requests.Ping: lambda _: Exchange("GET", "/ping", nothing),
    requests.GetStats: lambda _: Exchange("GET", "/stats", _one(results.stats)),
    requests.GetSnapshot: _snapshot,
    requests.GetClusterMetadata: lambda _: Exchange("GET", "/cluster/metadata", _one(results.cluster)),
    requests.DescribeOptions: lambda asked: Exchange(
        "GET", f"/options/{asked.scope.name.lower()}", _each(results.option_description)
    ),
    requests.GetClient: _get_client,
    requests.GetClients: lambda _: Exchange("GET", "/clients", _each(results.client)),
    requests.GetUser: lambda asked: Exchange("GET", f"/users/{segment(asked.user)}", _found(results.user_details)),
    requests.GetUsers: lambda _: Exchange("GET", "/users", _each(results.user)),
    requests.CreateUser: _create_user,
    requests.DeleteUser: lambda asked: Exchange("DELETE", f"/users/{segment(asked.user)}", nothing),
    requests.UpdateUser: _update_user,
    requests.UpdatePermissions: lambda asked: with_body(
        "PUT",
        f"/users/{segment(asked.user)}/permissions",
        {"permissions": _permissions_body(asked.permissions)},
        nothing,
    ),
    requests.ChangePassword: _change_password,
    requests.GetPersonalAccessTokens: lambda _: Exchange(
        "GET",
        "/personal-access-tokens",
        _each(lambda each: responses.TokenInfo(each["name"], each["expiry_at"] or 0)),
    ),
    requests.CreatePersonalAccessToken: lambda asked: with_body(
        "POST",
        "/personal-access-tokens",
        {"name": _checked(asked.name), "expiry": asked.expiry},
        _one(lambda body: responses.RawToken(body["token"])),
    ),
    requests.DeletePersonalAccessToken: lambda asked: Exchange(
        "DELETE", f"/personal-access-tokens/{quote(_checked(asked.name), safe='')}", nothing
    ),
    requests.SendMessages: _send,
    requests.PollMessages: _poll,
    requests.FlushUnsavedBuffer: lambda asked: Exchange(
        "GET", f"{_topic(asked)}/messages/flush/{asked.partition_id}/{'true' if asked.fsync else 'false'}", nothing
    ),
    requests.GetConsumerOffset: _get_offset,
    requests.StoreConsumerOffset: _store_offset,
    requests.DeleteConsumerOffset: _delete_offset,
    requests.GetStream: lambda asked: Exchange(
        "GET", f"/streams/{segment(asked.stream)}", _found(results.stream_details)
    ),
    requests.GetStreams: lambda _: Exchange("GET", "/streams", _each(results.stream)),
    requests.CreateStream: lambda asked: with_body(
        "POST", "/streams", {"name": _checked(asked.name)}, _one(results.stream_details)
    ),
    requests.DeleteStream: lambda asked: Exchange("DELETE", f"/streams/{segment(asked.stream)}", nothing),
    requests.UpdateStream: lambda asked: with_body(
        "PUT", f"/streams/{segment(asked.stream)}", {"name": _checked(asked.name)}, nothing
    ),
    requests.PurgeStream: lambda asked: Exchange("DELETE", f"/streams/{segment(asked.stream)}/purge", nothing),
    requests.GetTopic: lambda asked: Exchange("GET", _topic(asked), _found(results.topic_details)),
    requests.GetTopics: lambda asked: Exchange("GET", f"/streams/{segment(asked.stream)}/topics", _each(results.topic)),
    requests.CreateTopic: _create_topic,
    requests.UpdateTopic: _update_topic,
    requests.DeleteTopic: lambda asked: Exchange("DELETE", _topic(asked), nothing),
    requests.PurgeTopic: lambda asked: Exchange("DELETE", f"{_topic(asked)}/purge", nothing),
    requests.CreatePartitions: lambda asked: with_body(
        "POST", f"{_topic(asked)}/partitions", {"partitions_count": asked.count}, nothing
    ),
    requests.DeletePartitions: lambda asked: Exchange(
        "DELETE", _with_query(f"{_topic(asked)}/partitions", partitions_count=asked.count), nothing
    ),
    requests.DeleteSegments: lambda asked: Exchange(
        "DELETE",
        _with_query(f"{_topic(asked)}/partitions/{asked.partition_id}", segments_count=asked.count),
        nothing,
    ),
    requests.GetConsumerGroup: lambda asked: Exchange(
        "GET", group_path(asked.stream, asked.topic, asked.group), _found(results.group_details)
    ),
    requests.GetConsumerGroups: lambda asked: Exchange("GET", f"{_topic(asked)}/consumer-groups", _each(results.group)),
    requests.CreateConsumerGroup: lambda asked: with_body(
        "POST", f"{_topic(asked)}/consumer-groups", {"name": _checked(asked.name)}, _one(results.group_details)
    ),
    requests.DeleteConsumerGroup: lambda asked: Exchange(
        "DELETE", group_path(asked.stream, asked.topic, asked.group), nothing
    ),
}
