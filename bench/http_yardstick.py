"""The yardstick for HTTP: an application that does next to nothing, on the same uvicorn.

`POST /take` reads the body, `POST /decode` decodes its JSON as well, and `GET /give/<bytes>` returns this many bytes.
`/bare` is a plain ASGI function, without Starlette: it reads the body and responds.
`python -m whippet.bench.http_yardstick` prints its port and runs until SIGTERM.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from typing import Literal

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send


class Partitioning(msgspec.Struct):
    kind: Literal["balanced", "partition_id", "messages_key"]
    value: bytes


class Message(msgspec.Struct, gc=False):
    payload: bytes
    id: int = 0


class Body(msgspec.Struct):
    partitioning: Partitioning
    messages: list[Message]


_decoder = msgspec.json.Decoder(Body)
_ANSWER = b'{"confirmations":[{"stream_id":0,"topic_id":0,"partition_id":0,"base_offset":0}]}'


async def take(request: Request) -> Response:
    await request.body()
    return Response(_ANSWER, 201, media_type="application/json")


async def decode(request: Request) -> Response:
    _decoder.decode(await request.body())
    return Response(_ANSWER, 201, media_type="application/json")


@lru_cache
def _octets(size: int) -> bytes:
    return os.urandom(size)


async def give(request: Request) -> Response:
    return Response(_octets(request.path_params["size"]), media_type="application/octet-stream")


def with_bare(application: ASGIApp) -> ASGIApp:
    headers = [(b"content-length", b"%d" % len(_ANSWER)), (b"content-type", b"application/json")]

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/bare":
            await application(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": _ANSWER})

    return serve


async def _serve() -> None:
    routes = [
        Route("/take", take, methods=["POST"]),
        Route("/decode", decode, methods=["POST"]),
        Route("/give/{size:int}", give),
    ]
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            with_bare(Starlette(routes=routes)),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
        )
        await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    uvloop.run(_serve())
