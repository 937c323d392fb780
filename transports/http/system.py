"""The routes about the server itself that need no sign-in. Handlers only; which path leads here is in routes.py."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response


async def index(request: Request) -> Response:
    # SDKs and load balancers compare this text: it names the API, not the program.
    return PlainTextResponse("Iggy API")


async def ping(request: Request) -> Response:
    return PlainTextResponse("pong")
