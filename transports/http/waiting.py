"""Long polls: an answer as soon as there is something to say, or when the time is over. The append wakes who waits."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from app.commands import answers
from app.commands import requests as ask
from app.commands.messages import Followed
from app.config.formats import PERIOD, Invalid
from transports.http.bodies import Gone
from transports.http.errors import RETRY_AFTER, Refused
from transports.http.operation import Call
from transports.http.protocol import CONNECTION, Protocol


class Waiting:
    """How many wait at the same time."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        self._limit = limit

    def __enter__(self) -> None:
        if self.count >= self._limit:
            sentence = f"As many polls wait as may (http.readers.waiting = {self._limit})"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, sentence, headers=(RETRY_AFTER,), code="too_many_waiting")
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1


def seconds_of(text: str, longest: float) -> float:
    try:
        seconds: float = PERIOD.parse(text)
    except Invalid:
        raise Refused(HTTPStatus.BAD_REQUEST, f"`wait`: {text!r} is not {PERIOD.needs}", "wait") from None
    if seconds > longest:
        sentence = f"`wait`: {text} is longer than http.readers.wait_time, which is {longest:g} s"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence, "wait")
    return seconds


class _Ending:
    """A Listener: done when nobody is there any more, or the server stops."""

    def __init__(self) -> None:
        self.is_lost = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lost(self) -> None:
        self.is_lost = True
        self.parting()

    def parting(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


async def poll(call: Call, request: ask.PollMessages, seconds: float) -> answers.Polled:
    """What is found, at the latest when the time is over; Gone when nobody waits for it any more."""
    polled: answers.Polled = await call.ask(request)
    if polled.messages_count or not request.count or not polled.owned:
        return polled
    connection: Protocol | None = call.scope.get(CONNECTION)
    ending = _Ending()
    with call.api.waiting:
        if connection is not None:
            connection.listen(ending)
        try:
            return await _wait(call, request, polled, seconds, ending)
        finally:
            if connection is not None:
                connection.listen(None)


async def _wait(
    call: Call, request: ask.PollMessages, polled: answers.Polled, seconds: float, ending: _Ending
) -> answers.Polled:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not ending.future.done():
        followed: Followed = await call.ask(ask.FollowMessages(call.stream, call.topic, request.partition_id))
        appended = loop.create_task(followed.partitions[0].until(polled.next_offset))
        try:
            await asyncio.wait(
                (appended, ending.future), timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            appended.cancel()
        if ending.is_lost:
            raise Gone
        before, polled = polled, await call.ask(request)
        if polled.messages_count or loop.time() >= deadline or polled.next_offset == before.next_offset:
            # Nothing, and nowhere else to look: what was there was deleted, or cannot be read.
            break
    return polled
