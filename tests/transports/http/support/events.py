"""The client of a tail: a socket on which Server-Sent Events are parsed as they arrive."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tests.transports.http.support.serving import Link, Response, Serving

MESSAGES = "/streams/s/topics/t/messages"


class Event(NamedTuple):
    id: str
    """The last id that was sent."""
    name: str
    data: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.data)

    @property
    def payload(self) -> bytes:
        return msgspec.convert(self.json["payload"], bytes)


class Events:
    """The events of a tail. Created by `tail`; `close` disconnects abruptly."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.head: Response | None = None
        self.id = ""
        self.comments = 0
        self.is_over = False
        """Whether the body has ended properly."""
        self._body = b""

    async def next(self) -> Event:
        """Returns the next event; raises EOFError after the last one."""
        while True:
            while b"\n\n" not in self._body:
                await self._chunk()
            block, _, self._body = self._body.partition(b"\n\n")
            name, data = "message", []
            for line in block.decode().split("\n"):
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if not field:
                    self.comments += 1
                elif field == "id":
                    self.id = value
                elif field == "event":
                    name = value
                elif field == "data":
                    data.append(value)
            if data:
                return Event(self.id, name, "\n".join(data))

    async def several(self, count: int) -> list[Event]:
        return [await self.next() for _ in range(count)]

    async def _chunk(self) -> None:
        size, _, self.link._read = await self.link._until(b"\r\n")
        length = int(size, 16)
        while len(self.link._read) < length + 2:
            self.link._read += await self.link._more()
        self._body += self.link._read[:length]
        assert self.link._read[length : length + 2] == b"\r\n"
        self.link._read = self.link._read[length + 2 :]
        if not length:
            self.is_over = True
            raise EOFError

    def close(self) -> None:
        self.link.link.close()


async def tail(
    world: Serving, query: str = "offset=0", *more: str, receive_bytes: int | None = None, path: str = MESSAGES
) -> Events:
    """Opens a tail, and reads its first id."""
    link = await world.link(receive_bytes=receive_bytes)
    await link.send(world.request("GET", f"{path}/tail?{query}", None, *more))
    events = Events(link)
    head, _, link._read = await link._until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    events.head = Response(200, {name.decode(): value.decode() for name, value in lines.items()}, b"")
    while b"\n\n" not in events._body:
        await events._chunk()
    first, _, events._body = events._body.partition(b"\n\n")
    events.id = first.decode().rpartition("id: ")[2]
    return events
