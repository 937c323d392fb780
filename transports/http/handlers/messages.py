"""Messages: sending, polling, flushing. How they look as JSON is in packing and unpacking."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from whippet.app.commands import requests, responses
from whippet.app.commands.registry import Destination, admit
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.storage.options import Durability
from whippet.storage.producers import Producer
from whippet.transports import offload
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import parameters, partition_context, poll_formats, send_formats
from whippet.transports.http.forms.batch_encoder import NewMessages, PartitioningBody, encode_messages
from whippet.transports.http.forms.field_types import U32, U64, Key, Name, Period, check_u64
from whippet.transports.http.forms.parameters import another_spelling, one_spelling
from whippet.transports.http.forms.responses import JSON, VIEW, HttpResponse
from whippet.transports.http.forms.send_formats import Ready
from whippet.transports.http.handlers import long_polls
from whippet.transports.http.operation import Call
from whippet.transports.reservations import Reservation

_log = logging.getLogger(__name__)

KEY_BYTES_MAX = 255
UNHEARD_BYTES = 4096
"""What a send that nobody waits for takes besides its batches."""
PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
FRAME_JSON_BYTES = 256
"""About what a message takes as JSON besides its payload."""
DURABILITIES = {Durability.MEMORY: b"replicated", Durability.WRITTEN: b"replicated", Durability.SYNCED: b"persisted"}
"""In the words of 0.9, for its clients. `replicated` is not what a single node does, so `Whippet-Durability` says which
level a send has reached."""
LEVELS = {level.name.lower(): level for level in Durability}
LEVEL_NAMES = {level: name.encode() for name, level in LEVELS.items()}

KINDS = {
    "balanced": PartitioningKind.BALANCED,
    "partition_id": PartitioningKind.PARTITION_ID,
    "messages_key": PartitioningKind.MESSAGES_KEY,
}
STRATEGIES = {kind.name.lower(): kind for kind in StrategyKind}
STRATEGIES |= {name[0]: kind for name, kind in STRATEGIES.items()}


class Confirmation(msgspec.Struct, frozen=True):
    stream_id: int
    topic_id: int
    partition_id: int
    base_offset: int


class Confirmations(msgspec.Struct, frozen=True):
    confirmations: list[Confirmation]


NOT_WITH_JSON = "Not with a JSON body, which names its destination itself"


class SendQuery(msgspec.Struct, frozen=True):
    """`partition_id` (or `partition`) and `key` are for bodies that do not name a destination themselves; without them
    the partitions take turns. `durability` is the level that the batch must reach before the response, where that is
    more than the topic's own."""

    ack: Literal["replicated", "none"] = "replicated"
    durability: Literal["memory", "written", "synced"] | UnsetType = UNSET
    partition_id: Annotated[U32, Meta(description=NOT_WITH_JSON)] | UnsetType = UNSET
    partition: Annotated[U32, another_spelling("partition_id")] | UnsetType = UNSET
    key: Annotated[Key, Meta(description=f"{NOT_WITH_JSON}, and not with `partition_id`")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        one_spelling("partition_id", self.partition_id, "partition", self.partition)

    @property
    def number(self) -> int | UnsetType:
        return self.partition if self.partition_id is UNSET else self.partition_id


Kind = Literal["offset", "timestamp", "first", "last", "next", "o", "t", "f", "l", "n"]
Start = Literal["first", "last", "next"]


class PollQuery(msgspec.Struct, frozen=True):
    consumer_id: Name = "1"
    partition_id: U32 | UnsetType = UNSET
    """Partition 0 if absent."""
    partition: Annotated[U32, another_spelling("partition_id")] | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    """Where to begin; `offset` if absent."""
    value: U64 | UnsetType = UNSET
    """The offset, or the timestamp in microseconds, that `kind` asks for; 0 if absent."""
    start: Annotated[Start, another_spelling("kind")] | UnsetType = msgspec.field(default=UNSET, name="from")
    """For the beginnings that need no value."""
    count: U32 = 10
    auto_commit: Literal["true", "false"] = "false"
    wait: Period = ""
    """How long to wait for messages if there are none, such as `20s`; after that the response has none."""

    def __post_init__(self) -> None:
        check_u64(None if self.value is UNSET else self.value)
        one_spelling("partition_id", self.partition_id, "partition", self.partition)
        one_beginning(self.kind, self.value, self.start)

    @property
    def number(self) -> int:
        given = self.partition if self.partition_id is UNSET else self.partition_id
        return 0 if given is UNSET else given


def one_beginning(kind: Kind | UnsetType, value: int | UnsetType, start: Start | UnsetType) -> None:
    """Refuses two beginnings in the same query."""
    one_spelling("kind", kind, "from", start)
    if start is not UNSET and value is not UNSET:
        raise ValueError(f"`value` has no meaning with `from={start}`")


def strategy_of(kind: Kind | UnsetType, value: int | UnsetType, start: Start | UnsetType, default: Kind) -> Strategy:
    name = start if start is not UNSET else default if kind is UNSET else kind
    return Strategy(STRATEGIES[name], 0 if value is UNSET else value)


# ----------------------------------------------------------------------------------------------------------- sending


async def send_messages(call: Call) -> HttpResponse:
    query: SendQuery = call.query
    body: NewMessages | Ready = call.body
    if isinstance(body, Ready):
        to, ready = _destination(query), body
    else:
        to, ready = _partitioning(body.partitioning), await _packed(call, body)
    level = None if query.durability is UNSET else LEVELS[query.durability]
    request = requests.SendMessages(
        call.stream, call.topic, to, ready.batches, ready.checked, durability=level, producer=_producer(call)
    )
    if isinstance(body, NewMessages):
        partition_context.check(call, request, body.context)
    if query.ack == "none":
        # Nobody will hear of a refusal that comes later.
        admit(call.api.gateway, call.session, requests.SendMessages, Destination(call.stream, call.topic))
        turn = Reservation(call.api.budgets.bodies_of(call.session), free_bytes=0)
        size = sum(map(len, request.batches)) + UNHEARD_BYTES
        try:
            await turn.reserve(size, size)
        except BaseException:
            turn.close()
            raise
        call.api.in_background(_send_unheard(call, request, turn))
        return HttpResponse(HTTPStatus.ACCEPTED, b"", ((b"iggy-durability", b"none"), VIEW))
    try:
        return confirmed(await call.execute(request))
    except CommandError:
        raise
    except Exception as error:
        # Not a 500 of the endpoint, which makes clients send again: the batch may be stored.
        _log.exception("%s: a send ended in a defect", call.session.address)
        raise CommandError(Code.ERROR) from error


def _producer(call: Call) -> Producer | None:
    """Who numbers his sends says so in three headers; then one that comes again is answered again, and stored once."""
    given = [call.headers.get(name.lower().encode()) for name in PRODUCER_HEADERS]
    if not any(each is not None for each in given):
        return None
    missing = [name for name, each in zip(PRODUCER_HEADERS, given, strict=True) if each is None]
    if missing:
        sentence = f"{', '.join(PRODUCER_HEADERS)} belong together: {' and '.join(missing)} missing"
        raise CommandError(Code.INVALID_PRODUCER, sentence)
    return requests.producer(*[(each or b"").decode(errors="surrogateescape") for each in given])


async def _packed(call: Call, body: NewMessages) -> Ready:
    query: SendQuery = call.query
    for field in ("partition_id", "partition", "key"):
        if getattr(query, field) is not UNSET:
            raise Refused(HTTPStatus.BAD_REQUEST, f"`{field}`: this body names the destination of its messages", field)
    send_formats.refuse_headers(call)
    if not body.messages:
        raise CommandError(Code.INVALID_MESSAGES_COUNT)
    now, limits = call.api.gateway.clock(), call.api.batch_limits
    made = await offload.call(0, len(body.messages), encode_messages, body.messages, now, limits)
    return Ready((made.batch,), (made.checked,))


def _destination(query: SendQuery) -> Partitioning:
    if query.number is not UNSET:
        if query.key is not UNSET:
            raise Refused(HTTPStatus.BAD_REQUEST, "give a partition or a `key` as the destination, not both", "key")
        return Partitioning(PartitioningKind.PARTITION_ID, partition_id=query.number)
    if query.key is UNSET:
        return Partitioning(PartitioningKind.BALANCED)
    key = query.key.encode()
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
    return Partitioning(PartitioningKind.MESSAGES_KEY, key=key)


def confirmed(sent: responses.Sent) -> HttpResponse:
    said = Confirmation(sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)
    headers = (
        JSON,
        (b"iggy-durability", DURABILITIES[sent.durability]),
        (b"whippet-durability", LEVEL_NAMES[sent.durability]),
        VIEW,
    )
    return HttpResponse(HTTPStatus.CREATED, msgspec.json.encode(Confirmations([said])), headers)


async def _send_unheard(call: Call, request: requests.SendMessages, turn: Reservation) -> None:
    """Holds its room until it is done, so that nobody can have more accepted than the disk takes."""
    try:
        await call.execute(request)
    except CommandError as refused:
        _log.info("%s: a send that nobody waits for was refused: %s", call.session.address, refused)
    except Exception:  # noqa: BLE001 -- nobody is there to be told; it is logged once, here
        _log.exception("%s: a send that nobody waits for ended in a defect", call.session.address)
    finally:
        turn.close()


def _partitioning(body: PartitioningBody) -> Partitioning:
    kind, value = KINDS[body.kind], body.value
    if kind is PartitioningKind.BALANCED:
        if len(value) > KEY_BYTES_MAX:
            raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
        return Partitioning(kind)
    if not 0 < len(value) <= KEY_BYTES_MAX:
        raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
    if kind is PartitioningKind.MESSAGES_KEY:
        return Partitioning(kind, key=value)
    if len(value) < 4:
        raise CommandError(Code.INVALID_COMMAND, "the number of a partition has four bytes")
    return Partitioning(kind, partition_id=int.from_bytes(value[:4], "little"))


# ----------------------------------------------------------------------------------------------------------- polling


async def poll_messages(call: Call) -> HttpResponse:
    query: PollQuery = call.query
    form = poll_formats.form_of(call.headers.get(b"accept"))
    poll_formats.refuse_several(form, query.count)
    answer_bytes = call.api.limits.answer_bytes
    is_json = form in (poll_formats.JSON, send_formats.NDJSON)
    request = requests.PollMessages(
        Consumer(ConsumerKind.CONSUMER, parameters.identifier(query.consumer_id)),
        call.stream,
        call.topic,
        query.number,
        strategy_of(query.kind, query.value, query.start, "offset"),
        min(query.count, answer_bytes // FRAME_JSON_BYTES) if is_json else query.count,
        # Who asks for the head alone has read nothing.
        query.auto_commit == "true" and not call.is_head,
        answer_bytes * 3 // 4 if is_json else answer_bytes,
    )
    seconds = long_polls.seconds_of(query.wait, call.api.config.readers.wait_time) if query.wait else 0.0
    polled = await (long_polls.poll(call, request, seconds) if seconds and not call.is_head else call.poll(request))
    answer = await poll_formats.answer(call, form, polled)
    call.response_reservation().hold(len(answer.body))
    return answer


class FlushQuery(msgspec.Struct, frozen=True):
    """Iggy's SDK for Rust repeats in the query what is in the path."""

    partition_id: Annotated[U32, another_spelling("partition")] | UnsetType = UNSET
    fsync: Annotated[Literal["true", "false"], another_spelling("fsync")] | UnsetType = UNSET


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
