"""Long polls: the response is sent as soon as there are messages, or when the time is over."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.requests import ClientDisconnect

from whippet.app.commands import requests, responses
from whippet.app.commands.messages import ReadPositions
from whippet.app.config.formats import PERIOD, Invalid
from whippet.transports.http.errors import Refused
from whippet.transports.http.forms.request_bodies import until_disconnected
from whippet.transports.http.operation import Call


def seconds_of(text: str, longest: float) -> float:
    try:
        seconds: float = PERIOD.parse(text)
    except Invalid:
        raise Refused(HTTPStatus.BAD_REQUEST, f"`wait`: {text!r} is not {PERIOD.needs}", "wait") from None
    if seconds > longest:
        sentence = f"`wait`: {text} is longer than http.readers.wait_time, which is {longest:g} s"
        raise Refused(HTTPStatus.BAD_REQUEST, sentence, "wait")
    return seconds


async def poll(call: Call, request: requests.PollMessages, seconds: float) -> responses.Polled:
    """Returns what is found, at the latest when the time is over. Raises ClientDisconnect if the client has gone."""
    polled = await call.poll(request)
    if polled.messages_count or not request.count or not polled.owned:
        return polled
    with call.api.waiting.reserved_by(call.login):
        return await _wait(call, request, polled, seconds)


async def _wait(
    call: Call, request: requests.PollMessages, polled: responses.Polled, seconds: float
) -> responses.Polled:
    loop, draining = asyncio.get_running_loop(), call.api.draining
    deadline = loop.time() + seconds
    gone = loop.create_task(until_disconnected(call.receive))
    try:
        while not draining.done():
            followed: ReadPositions = await call.execute(
                requests.FollowMessages(call.stream, call.topic, request.partition_id)
            )
            appended = loop.create_task(followed.partitions[0].until(polled.next_offset))
            try:
                await asyncio.wait(
                    (appended, gone, draining), timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                appended.cancel()
            if gone.done():
                raise ClientDisconnect
            before, polled = polled, await call.poll(request)
            if polled.messages_count or loop.time() >= deadline or polled.next_offset == before.next_offset:
                # The messages were deleted meanwhile, or cannot be read, and no later ones exist.
                break
        return polled
    finally:
        gone.cancel()
