"""The route of tails: where a client starts or resumes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from whippet.app.commands.messages import ReadPositions
from whippet.app.commands.requests import Consumer, ConsumerKind, Strategy, StrategyKind
from whippet.transports import eager
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms import parameters
from whippet.transports.http.forms.events import parse_cursor, resume_position
from whippet.transports.http.forms.field_types import U64, check_u64
from whippet.transports.http.forms.parameters import alias_of
from whippet.transports.http.forms.responses import HttpResponse
from whippet.transports.http.handlers.messages import Start
from whippet.transports.http.operation import Call
from whippet.transports.http.serving.open_tails import HEADERS, TailResponse, follow_request

PARTITIONS_MAX = 128
"""The id of every event names all partitions."""
LAST_EVENT_ID = b"last-event-id"


class TailQuery(msgspec.Struct, frozen=True):
    partition_id: str | UnsetType = UNSET
    """A number, or `all`; partition 0 if absent."""
    partition: Annotated[str, alias_of("partition_id")] | UnsetType = UNSET
    start: Start | UnsetType = msgspec.field(default=UNSET, name="from")
    """`first` starts with the oldest message, `last` with the newest one, `next` with the first one to arrive or, with
    `consumer`, after the stored offset of that consumer."""
    offset: U64 | UnsetType = UNSET
    """Starts here. At most one starting position can be set; without any, the tail starts with the next message to
    arrive."""
    timestamp: U64 | UnsetType = UNSET
    """Starts with the first message of this time, in us, or later."""
    last: U64 | UnsetType = UNSET
    """Starts with this many of the newest messages."""
    consumer: str | UnsetType = UNSET
    """Starts after the stored offset of this consumer. The tail itself stores no offset."""
    cursor: str | UnsetType = UNSET
    """The id of the event after which to resume, for clients that cannot send `Last-Event-ID`."""
    form: Literal["json", "text"] = "json"
    """The data of an event: the message as JSON, or only its payload."""
    ticket: str | UnsetType = UNSET
    """From `POST /tickets`, in place of the `Authorization` header, which an EventSource cannot send."""

    def __post_init__(self) -> None:
        for number in (self.offset, self.timestamp, self.last):
            check_u64(None if number is UNSET else number)
        parameters.refuse_both("partition_id", self.partition_id, "partition", self.partition)
        if self.number != "all" and not isinstance(parameters.identifier(self.number), int):
            raise ValueError("a number or `all` is needed - at `$.partition`")
        start = UNSET if self.start == "next" and self.consumer is not UNSET else self.start
        positions = (start, self.offset, self.timestamp, self.last, self.consumer, self.cursor)
        if sum(each is not UNSET for each in positions) > 1:
            raise ValueError("from, offset, timestamp, last, consumer, cursor: set only one of them")

    @property
    def number(self) -> str:
        given = self.partition if self.partition_id is UNSET else self.partition_id
        return "0" if given is UNSET else given


async def tail_messages(call: Call) -> HttpResponse | TailResponse:
    # A tail is ended by cancelling its task.
    await eager.in_task()
    query: TailQuery = call.query
    header = call.headers.get(LAST_EVENT_ID)
    text = header.decode("latin-1") if header else None if query.cursor is UNSET else query.cursor
    start, consumer = (None, None) if text is not None else _start(query)
    followed: ReadPositions = await call.execute(follow_request(call, start, consumer))
    if len(followed.partitions) > PARTITIONS_MAX:
        sentence = f"The topic has {len(followed.partitions)} partitions: a tail follows at most {PARTITIONS_MAX}"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence, "partition")
    if text is not None:
        followed = _resumed(followed, text, "cursor" if header is None else "last-event-id")
    if call.is_head:
        return HttpResponse(HTTPStatus.OK, b"", HEADERS)
    return call.api.tails.open(call, followed, query.form)


def _start(query: TailQuery) -> tuple[Strategy | None, Consumer | None]:
    if query.start == "first":
        return Strategy(StrategyKind.FIRST), None
    if query.start == "last":
        return Strategy(StrategyKind.LAST, 1), None
    if query.offset is not UNSET:
        return Strategy(StrategyKind.OFFSET, query.offset), None
    if query.timestamp is not UNSET:
        return Strategy(StrategyKind.TIMESTAMP, query.timestamp), None
    if query.last is not UNSET:
        return Strategy(StrategyKind.LAST, query.last), None
    if query.consumer is not UNSET:
        consumer = Consumer(ConsumerKind.CONSUMER, parameters.identifier(query.consumer))
        return Strategy(StrategyKind.NEXT), consumer
    return None, None


def _resumed(followed: ReadPositions, text: str, field: str) -> ReadPositions:
    known = parse_cursor(text)
    numbers = [partition.place.partition for partition in followed.partitions]
    if known is None or (known and not known.keys() & set(numbers)):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{text[:100]!r} is not the id of an event of this tail", field)
    wanted = [known.get(number) for number in numbers]
    return followed._replace(start=resume_position(followed.partitions, wanted))
