"""Messages: sending, polling, flushing. How they look as JSON is in packing and unpacking."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from whippet.app.commands import answers
from whippet.app.commands import requests as ask
from whippet.app.commands.requests import Consumer, ConsumerKind, Partitioning, PartitioningKind, Strategy, StrategyKind
from whippet.app.errors import Code, CommandError
from whippet.storage.options import Durability
from whippet.storage.producers import Producer
from whippet.transports.http import incoming, outgoing, parameters, waiting
from whippet.transports.http.answering import JSON, VIEW, Answer
from whippet.transports.http.errors import Refused
from whippet.transports.http.incoming import Ready
from whippet.transports.http.numbers import U32, U64, check_u64
from whippet.transports.http.operation import Call
from whippet.transports.http.packing import NewMessages, PartitioningBody, pack
from whippet.transports.http.texts import Key

_log = logging.getLogger(__name__)

KEY_BYTES_MAX = 255
PRODUCER_HEADERS = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
FRAME_JSON_BYTES = 256
"""About what a message takes as JSON besides its payload."""
DURABILITIES = {Durability.MEMORY: b"replicated", Durability.WRITTEN: b"replicated", Durability.SYNCED: b"persisted"}
"""In the words of 0.9; on a single node the first says no more than that the batch was taken on."""
LEVELS = {level.name.lower(): level for level in Durability}

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


class SendQuery(msgspec.Struct, frozen=True):
    """`partition` and `key` are for bodies that do not say where their messages go; without them the next partition in
    turn. `durability`: what the batch has to have reached when it is answered, where that is more than the topic's."""

    ack: Literal["replicated", "none"] = "replicated"
    durability: Literal["memory", "written", "synced"] | UnsetType = UNSET
    partition: U32 | UnsetType = UNSET
    key: Key | UnsetType = UNSET


class PollQuery(msgspec.Struct, frozen=True):
    consumer_id: str = "1"
    partition_id: U32 = 0
    kind: Literal["offset", "timestamp", "first", "last", "next", "o", "t", "f", "l", "n"] = "offset"
    value: U64 = 0
    count: U32 = 10
    auto_commit: Literal["true", "false"] = "false"
    wait: str = ""
    """For how long to wait for messages if there are none, such as `20s`; then the answer has none."""

    def __post_init__(self) -> None:
        check_u64(self.value)


# ----------------------------------------------------------------------------------------------------------- sending


async def send_messages(call: Call) -> Answer:
    query: SendQuery = call.query
    body: NewMessages | Ready = call.body
    if isinstance(body, Ready):
        to, ready = _destination(query), body
    else:
        to, ready = _partitioning(body.partitioning), _packed(call, body)
    level = None if query.durability is UNSET else LEVELS[query.durability]
    request = ask.SendMessages(
        call.stream, call.topic, to, ready.batches, ready.checked, durability=level, producer=_producer(call)
    )
    if query.ack == "none":
        call.api.in_background(_send_unheard(call, request))
        return Answer(HTTPStatus.ACCEPTED, b"", ((b"iggy-durability", b"none"), VIEW))
    return confirmed(await send(call, request))


def _producer(call: Call) -> Producer | None:
    """Who numbers his sends says so in three headers; then one that comes again is answered again, and stored once."""
    given = [call.headers.get(name.lower().encode()) for name in PRODUCER_HEADERS]
    if not any(each is not None for each in given):
        return None
    missing = [name for name, each in zip(PRODUCER_HEADERS, given, strict=True) if each is None]
    if missing:
        sentence = f"{', '.join(PRODUCER_HEADERS)} belong together: {' and '.join(missing)} missing"
        raise CommandError(Code.INVALID_PRODUCER, sentence)
    return ask.producer(*[(each or b"").decode(errors="surrogateescape") for each in given])


def _packed(call: Call, body: NewMessages) -> Ready:
    query: SendQuery = call.query
    if query.partition is not UNSET or query.key is not UNSET:
        field = "key" if query.partition is UNSET else "partition"
        raise Refused(HTTPStatus.BAD_REQUEST, f"`{field}`: this body says itself where its messages go", field)
    incoming.refuse_headers(call)
    if not body.messages:
        raise CommandError(Code.INVALID_MESSAGES_COUNT)
    made = pack(body.messages, call.api.gateway.clock(), call.api.batch_limits)
    return Ready((made.batch,), (made.checked,))


def _destination(query: SendQuery) -> Partitioning:
    if query.partition is not UNSET:
        if query.key is not UNSET:
            raise Refused(HTTPStatus.BAD_REQUEST, "`partition` and `key`: one of them says where messages go", "key")
        return Partitioning(PartitioningKind.PARTITION_ID, partition_id=query.partition)
    if query.key is UNSET:
        return Partitioning(PartitioningKind.BALANCED)
    key = query.key.encode()
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise CommandError(Code.INVALID_KEY_VALUE_LENGTH)
    return Partitioning(PartitioningKind.MESSAGES_KEY, key=key)


async def send(call: Call, request: ask.SendMessages) -> answers.Sent:
    """Whatever goes wrong from here on is not answered with a status that makes clients send again."""
    try:
        sent: answers.Sent = await call.ask(request)
    except CommandError:
        raise
    except Exception as error:
        _log.exception("%s: a send ended in a defect", call.session.address)
        raise CommandError(Code.ERROR) from error
    return sent


def confirmed(sent: answers.Sent) -> Answer:
    said = Confirmation(sent.stream_id, sent.topic_id, sent.partition_id, sent.base_offset)
    headers = (JSON, (b"iggy-durability", DURABILITIES[sent.durability]), VIEW)
    return Answer(HTTPStatus.CREATED, msgspec.json.encode(Confirmations([said])), headers)


async def _send_unheard(call: Call, request: ask.SendMessages) -> None:
    try:
        await call.ask(request)
    except CommandError as refused:
        _log.info("%s: a send that nobody waits for was refused: %s", call.session.address, refused)
    except Exception:  # noqa: BLE001 -- nobody is there to be told; it is logged once, here
        _log.exception("%s: a send that nobody waits for ended in a defect", call.session.address)


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


async def poll_messages(call: Call) -> Answer:
    query: PollQuery = call.query
    form = outgoing.form_of(call.headers.get(b"accept"))
    outgoing.refuse_several(form, query.count)
    answer_bytes = call.api.limits.answer_bytes
    is_json = form in (outgoing.JSON, incoming.NDJSON)
    request = ask.PollMessages(
        Consumer(ConsumerKind.CONSUMER, parameters.identifier(query.consumer_id)),
        call.stream,
        call.topic,
        query.partition_id,
        Strategy(STRATEGIES[query.kind], query.value),
        min(query.count, answer_bytes // FRAME_JSON_BYTES) if is_json else query.count,
        # Who asks for the head alone has read nothing.
        query.auto_commit == "true" and not call.is_head,
        answer_bytes * 3 // 4 if is_json else answer_bytes,
    )
    seconds = waiting.seconds_of(query.wait, call.api.config.readers.wait_time) if query.wait else 0.0
    polled = await (waiting.poll(call, request, seconds) if seconds and not call.is_head else call.ask(request))
    return await outgoing.answer(call, form, polled)


async def flush(call: Call) -> None:
    await call.ask(
        ask.FlushUnsavedBuffer(call.stream, call.topic, call.parameters["partition"], call.parameters["fsync"])
    )
