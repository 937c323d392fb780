"""A client of the channel for browsers: sends and receives objects, and keeps responses and pushed messages apart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection

from tests.transports.websocket.support.talking import Talking

Message = dict[str, Any]


class Browser:
    def __init__(self, link: ClientConnection) -> None:
        self.link = link
        self.pushed: list[Message] = []
        """Pushed messages that have not been fetched yet, in order."""
        self._answers: dict[Any, Message] = {}
        self._last = 0

    async def say(self, **members: Any) -> int:
        self._last += 1
        await self.link.send(msgspec.json.encode({"id": self._last, **members}).decode())
        return self._last

    async def hear(self) -> Message:
        text = await self.link.recv(decode=True)
        found: Message = msgspec.json.decode(text)
        return found

    async def _hear_one(self) -> None:
        message = await self.hear()
        if "sub" in message:
            self.pushed.append(message)
        else:
            self._answers[message["id"]] = message

    async def answer(self, number: int | None) -> Message:
        while number not in self._answers:
            await self._hear_one()
        return self._answers.pop(number)

    async def ask(self, cmd: str, **members: Any) -> Any:
        """Returns the result of a command that must not be refused."""
        answer = await self.answer(await self.say(cmd=cmd, **members))
        assert "error" not in answer, answer
        return answer["ok"]

    async def is_alive(self) -> bool:
        return "ok" in await self.answer(await self.say(cmd="ping"))

    async def refused(self, cmd: str, **members: Any) -> tuple[int, str, str | None]:
        """Number, name and field of a refusal."""
        return refusal(await self.answer(await self.say(cmd=cmd, **members)))

    async def push(self, sub: int, member: str | None = None) -> Message:
        """The next message of a subscription, or the next one with this member."""
        while True:
            for message in self.pushed:
                if message["sub"] == sub and (member is None or member in message):
                    self.pushed.remove(message)
                    return message
            await self._hear_one()

    async def offsets(self, sub: int, count: int) -> list[tuple[int, int]]:
        """Partition and offset of the next messages."""
        found: list[tuple[int, int]] = []
        while len(found) < count:
            messages = (await self.push(sub, "messages"))["messages"]
            found += [(message["partition_id"], message["header"]["offset"]) for message in messages]
        return found

    async def log_in(self, username: str = "root", password: str = "root's password") -> Browser:
        await self.ask("log_in", username=username, password=password)
        return self

    async def is_quiet(self) -> bool:
        """Nothing was pushed before the response to another command."""
        await self.ask("ping")
        return not self.pushed

    async def closed(self) -> tuple[int | None, str]:
        """Waits for the end; returns the close code of the server."""
        with contextlib.suppress(websockets.ConnectionClosed):
            while True:
                await self._hear_one()
        frame = self.link.protocol.close_rcvd
        return (None, "") if frame is None else (frame.code, frame.reason)


def refusal(answer: Message) -> tuple[int, str, str | None]:
    error = answer["error"]
    assert list(error) == ["id", "code", "reason", "field"], answer
    assert "Traceback" not in error["reason"]
    return error["id"], error["code"], error["field"]


async def stranger(world: Talking, path: str = "/ws", **options: Any) -> Browser:
    return Browser(await world.connect(path, **options))


async def root(world: Talking, **options: Any) -> Browser:
    return await (await stranger(world, **options)).log_in()


async def with_topic(world: Talking, partitions: int = 1) -> Browser:
    """Stream s and its topic t."""
    browser = await root(world)
    await browser.ask("create_stream", name="s")
    await browser.ask(
        "create_topic",
        stream="s",
        name="t",
        partitions_count=partitions,
        compression_algorithm="none",
        message_expiry=0,
        max_topic_size=0,
    )
    return browser


def sending(*payloads: str, partition: int = 0, headers: Any = None) -> dict[str, Any]:
    """The members of a send; payloads are base64."""
    messages = [{"id": 0, "payload": payload} | ({"user_headers": headers} if headers else {}) for payload in payloads]
    value = msgspec.json.decode(msgspec.json.encode(partition.to_bytes(4, "little")))
    return {
        "stream": "s",
        "topic": "t",
        "partitioning": {"kind": "partition_id", "value": value},
        "messages": messages,
    }


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)
