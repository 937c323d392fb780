"""Messages: sending, polling, flushing. Their formats are in forms/."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from whippet.app.commands import direct_sends, requests, responses
from whippet.app.commands.registry import Destination, admit
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.app.telemetry import trace_context
from whippet.app.telemetry.trace_context import CONTEXT_BYTES, TraceContext
from whippet.storage.batch import check as check_batch
from whippet.storage.errors import StorageError
from whippet.storage.options import Durability
from whippet.storage.producers import Producer
from whippet.transports import offload
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import parameters, partition_context, poll_formats, send_formats
from whippet.transports.http.forms.batch_encoder import (
    NewMessages,
    PartitioningBody,
    encode_message,
    encode_messages,
)
from whippet.transports.http.forms.field_types import U32, U64, Key, Name, Period, check_u64
from whippet.transports.http.forms.parameters import alias_of, refuse_both
from whippet.transports.http.forms.responses import JSON, VIEW, HttpResponse
from whippet.transports.http.forms.send_formats import EncodedBatches
from whippet.transports.http.handlers import long_polls
from whippet.transports.http.operation import Call
from whippet.transports.reservations import Reservation

_log = logging.getLogger(__name__)
_encode_json = msgspec.json.Encoder().encode

KEY_BYTES_MAX = 255
UNACKNOWLEDGED_BYTES = 4096
"""Memory of a send without acknowledgement besides its batches."""
PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
PRODUCER_KEYS = tuple([name.lower().encode() for name in PRODUCER_HEADERS])
NOT_NUMBERED = [None] * len(PRODUCER_HEADERS)
FRAME_JSON_BYTES = 256
"""The approximate size of a message as JSON without its payload."""
DURABILITIES = {Durability.MEMORY: b"replicated", Durability.WRITTEN: b"replicated", Durability.SYNCED: b"persisted"}
"""The names of 0.9, for its clients. A single node does not replicate, so `Whippet-Durability` has the level that a
send has really reached."""
LEVELS = {level.name.lower(): level for level in Durability}
LEVEL_NAMES = {level: name.encode() for name, level in LEVELS.items()}

PARTITIONING_KINDS = {
    "balanced": PartitioningKind.BALANCED,
    "partition_id": PartitioningKind.PARTITION_ID,
    "messages_key": PartitioningKind.MESSAGES_KEY,
}
BALANCED = Partitioning(PartitioningKind.BALANCED)
STRATEGIES = {kind.name.lower(): kind for kind in StrategyKind}
STRATEGIES |= {name[0]: kind for name, kind in STRATEGIES.items()}


class Confirmation(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


class Confirmations(msgspec.Struct, frozen=True):
    confirmations: list[Confirmation]


NOT_WITH_JSON = "Not with a JSON body, which names its own destination"


class SendQuery(msgspec.Struct, frozen=True):
    """`partition_id` (or `partition`) and `key` are for bodies that do not name their own destination; without them
    the partitions take turns. `durability` is the level that the batch must reach before the response, if it is
    higher than that of the topic."""

    ack: Literal["replicated", "none"] = "replicated"
    durability: Literal["memory", "written", "synced"] | UnsetType = UNSET
    partition_id: Annotated[U32, Meta(description=NOT_WITH_JSON)] | UnsetType = UNSET
    partition: Annotated[U32, alias_of("partition_id")] | UnsetType = UNSET
    key: Annotated[Key, Meta(description=f"{NOT_WITH_JSON}, and not with `partition_id`")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        refuse_both("partition_id", self.partition_id, "partition", self.partition)

    @property
    def number(self) -> int | UnsetType:
        return self.partition if self.partition_id is UNSET else self.partition_id


Kind = Literal["offset", "timestamp", "first", "last", "next", "o", "t", "f", "l", "n"]
Start = Literal["first", "last", "next"]


class StartQuery(msgspec.Struct, frozen=True):
    """Which messages of which partition to poll."""

    partition_id: U32 | UnsetType = UNSET
    partition: Annotated[U32, alias_of("partition_id")] | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    """Where to start; the operation has a default."""
    value: U64 | UnsetType = UNSET
    """The offset, or the timestamp in microseconds, that `kind` needs; 0 if absent."""
    start: Annotated[Start, alias_of("kind")] | UnsetType = msgspec.field(default=UNSET, name="from")
    """Another name of `kind`, for the kinds that need no value."""
    count: U32 = 10
    auto_commit: Literal["true", "false"] = "false"

    def __post_init__(self) -> None:
        check_u64(None if self.value is UNSET else self.value)
        refuse_both("partition_id", self.partition_id, "partition", self.partition)
        check_start(self.kind, self.value, self.start)

    @property
    def number(self) -> int | None:
        given = self.partition if self.partition_id is UNSET else self.partition_id
        return None if given is UNSET else given


class PollQuery(StartQuery, frozen=True):
    """Polls partition 0, from `kind=offset`, if these are absent."""

    consumer_id: Name = "1"
    wait: Period = ""
    """How long to wait for messages if there are none, such as `20s`; then the response is empty."""
    epoch: U64 | UnsetType = UNSET
    """The `Iggy-Epoch` of the response with the offset to continue from. If the topic was purged or created again
    since, the response is 409 and not messages that do not continue it."""


def check_start(kind: Kind | UnsetType, value: int | UnsetType, start: Start | UnsetType) -> None:
    """Refuses two starting positions in the same query."""
    refuse_both("kind", kind, "from", start)
    if start is not UNSET and value is not UNSET:
        raise ValueError(f"`value` has no meaning with `from={start}`")


def strategy_of(kind: Kind | UnsetType, value: int | UnsetType, start: Start | UnsetType, default: Kind) -> Strategy:
    name = start if start is not UNSET else default if kind is UNSET else kind
    return Strategy(STRATEGIES[name], 0 if value is UNSET else value)


# ----------------------------------------------------------------------------------------------------------- sending


async def send_messages(call: Call) -> HttpResponse:
    query: SendQuery = call.query
    body: NewMessages | EncodedBatches = call.body
    if isinstance(body, EncodedBatches):
        to, encoded = _destination(query), body
    else:
        to, encoded = partitioning_of(body.partitioning), await _encode(call, body)
    if call.session.trace is not None:
        encoded = await _with_trace(call, encoded, call.session.trace)
    level = None if query.durability is UNSET else LEVELS[query.durability]
    request = requests.SendMessages(
        call.stream, call.topic, to, encoded.batches, encoded.checked, durability=level, producer=_producer(call)
    )
    if isinstance(body, NewMessages):
        partition_context.check(call, request, body.context)
    if query.ack == "none":
        # The client does not learn of a refusal after this.
        admit(call.api.gateway, call.session, requests.SendMessages, Destination(call.stream, call.topic))
        # Otherwise the log would grow with each send, on a disk that has no room for it.
        disk_full = call.api.gateway.store.room.disk_full
        if disk_full is not None:
            raise CommandError(Code.DISK_FULL, disk_full)
        reservation = Reservation(call.api.budgets.bodies_of(call.session), free_bytes=0)
        size = sum(map(len, request.batches)) + UNACKNOWLEDGED_BYTES
        try:
            await reservation.reserve(size, size)
        except BaseException:
            reservation.close()
            raise
        call.api.run_in_background(_send_unacknowledged(call, request, reservation))
        return HttpResponse(HTTPStatus.ACCEPTED, b"", ((b"iggy-durability", b"none"), VIEW))
    try:
        return confirmation(await direct_sends.send(call.api.gateway, call.session, request))
    except CommandError:
        raise
    except Exception as error:
        # Not a 500, which makes clients send again: the batch may be stored.
        _log.exception("%s: a send failed because of a defect", call.session.address)
        raise CommandError(Code.ERROR) from error


def _producer(call: Call) -> Producer | None:
    """Three headers number a send. If it is repeated, it gets the same response, and is stored once."""
    given = [call.headers.get(name) for name in PRODUCER_KEYS]
    if given == NOT_NUMBERED:
        return None
    missing = [name for name, each in zip(PRODUCER_HEADERS, given, strict=True) if each is None]
    if missing:
        sentence = f"{', '.join(PRODUCER_HEADERS)} belong together: {' and '.join(missing)} missing"
        raise CommandError(Code.INVALID_PRODUCER, sentence)
    return requests.producer(*[(each or b"").decode(errors="surrogateescape") for each in given])


async def _encode(call: Call, body: NewMessages) -> EncodedBatches:
    query: SendQuery = call.query
    for field, given in (("partition_id", query.partition_id), ("partition", query.partition), ("key", query.key)):
        if given is not UNSET:
            raise Refused(HTTPStatus.BAD_REQUEST, f"`{field}`: this body names its own destination", field)
    send_formats.refuse_headers(call)
    if not body.messages:
        raise CommandError(Code.INVALID_MESSAGES_COUNT)
    now, limits = call.api.gateway.clock(), call.api.batch_limits
    if len(body.messages) == 1:
        encoded = encode_message(body.messages[0], now, limits)
    else:
        encoded = await offload.call(0, len(body.messages), encode_messages, body.messages, now, limits)
    return EncodedBatches((encoded.batch,), (encoded.checked,))


async def _with_trace(call: Call, encoded: EncodedBatches, context: TraceContext) -> EncodedBatches:
    """The messages with the trace of their request in their headers, so that it gets to their consumers. They stay as
    they are where that would make them invalid: a trace is no reason to refuse a send."""
    limits, room = call.api.batch_limits, len(context.text) + CONTEXT_BYTES
    try:
        checked = encoded.checked or tuple(check_batch(batch, limits) for batch in encoded.batches)
    except StorageError:
        return encoded
    counts = [each.message_count for each in checked]
    sizes = [len(batch) + room * count for batch, count in zip(encoded.batches, counts, strict=True)]
    if max(sizes, default=0) > limits.batch_bytes:
        return encoded
    batches = await offload.call(
        sum(sizes), sum(counts), trace_context.carried, encoded.batches, context, limits.user_headers_bytes
    )
    return EncodedBatches(batches, ())


def _destination(query: SendQuery) -> Partitioning:
    if query.number is not UNSET:
        if query.key is not UNSET:
            raise Refused(HTTPStatus.BAD_REQUEST, "set a partition or a `key` as the destination, not both", "key")
        return Partitioning(PartitioningKind.PARTITION_ID, partition_id=query.number)
    if query.key is UNSET:
        return Partitioning(PartitioningKind.BALANCED)
    key = query.key.encode()
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
    return Partitioning(PartitioningKind.MESSAGES_KEY, key=key)


_CONFIRMED = {
    level: (JSON, (b"iggy-durability", DURABILITIES[level]), (b"whippet-durability", LEVEL_NAMES[level]), VIEW)
    for level in Durability
}
_REPEATED = {level: (*headers, (b"whippet-repeated", b"true")) for level, headers in _CONFIRMED.items()}
"""A numbered send that was made before has the same response."""


def confirmation(sent: responses.Sent) -> HttpResponse:
    found = Confirmation(sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)
    headers = (_REPEATED if sent.repeated else _CONFIRMED)[sent.durability]
    return HttpResponse(HTTPStatus.CREATED, _encode_json(Confirmations([found])), headers)


async def _send_unacknowledged(call: Call, request: requests.SendMessages, reservation: Reservation) -> None:
    """Keeps its memory reserved until it is done, so that clients cannot send faster than the disk writes."""
    try:
        await call.execute(request)
    except CommandError as refused:
        _log.info("%s: an unacknowledged send was refused: %s", call.session.address, refused)
    except Exception:  # noqa: BLE001 -- no client waits for the response
        _log.exception("%s: an unacknowledged send failed because of a defect", call.session.address)
    finally:
        reservation.close()


def partitioning_of(body: PartitioningBody) -> Partitioning:
    kind, value = PARTITIONING_KINDS[body.kind], body.value
    if kind is PartitioningKind.BALANCED:
        if len(value) > KEY_BYTES_MAX:
            raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
        return BALANCED
    if not 0 < len(value) <= KEY_BYTES_MAX:
        raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
    if kind is PartitioningKind.MESSAGES_KEY:
        return Partitioning(kind, key=value)
    if len(value) < 4:
        raise CommandError(Code.INVALID_COMMAND, "the number of a partition needs four bytes")
    return Partitioning(kind, partition_id=int.from_bytes(value[:4], "little"))


# ----------------------------------------------------------------------------------------------------------- polling


async def poll_messages(call: Call) -> HttpResponse:
    query: PollQuery = call.query
    form = poll_formats.choose_format(call.headers.get(b"accept"))
    poll_formats.check_count(form, query.count)
    answer_bytes = call.api.limits.answer_bytes
    is_json = form in (poll_formats.JSON, send_formats.NDJSON)
    request = requests.PollMessages(
        Consumer(ConsumerKind.CONSUMER, parameters.identifier(query.consumer_id)),
        call.stream,
        call.topic,
        query.number or 0,
        strategy_of(query.kind, query.value, query.start, "offset"),
        min(query.count, answer_bytes // FRAME_JSON_BYTES) if is_json else query.count,
        # A HEAD request reads no messages.
        query.auto_commit == "true" and not call.is_head,
        answer_bytes * 3 // 4 if is_json else answer_bytes,
        epoch=None if query.epoch is UNSET else query.epoch,
    )
    seconds = long_polls.seconds_of(query.wait, call.api.config.readers.wait_time) if query.wait else 0.0
    polled = await (long_polls.poll(call, request, seconds) if seconds and not call.is_head else call.poll(request))
    response = await poll_formats.encode_response(call, form, polled)
    call.response_reservation().hold(len(response.body))
    return response


class FlushQuery(msgspec.Struct, frozen=True):
    """Iggy's SDK for Rust repeats the path parameters in the query."""

    partition_id: Annotated[U32, alias_of("partition")] | UnsetType = UNSET
    fsync: Annotated[Literal["true", "false"], alias_of("fsync")] | UnsetType = UNSET


async def flush(call: Call) -> None:
    query: FlushQuery = call.query
    for name, given, in_path in (
        ("partition_id", query.partition_id, call.parameters["partition"]),
        ("fsync", query.fsync, str(call.parameters["fsync"]).lower()),
    ):
        if given not in (UNSET, in_path):
            sentence = f"`{name}` is {given} in the query and {in_path} in the path"
            raise Refused(HTTPStatus.BAD_REQUEST, sentence, name)
    await call.execute(
        requests.FlushUnsavedBuffer(call.stream, call.topic, call.parameters["partition"], call.parameters["fsync"])
    )
