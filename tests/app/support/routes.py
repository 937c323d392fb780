"""Additional routes of a server under test."""

from __future__ import annotations

SLOW_ROUTE = """
from starlette.responses import PlainTextResponse
from whippet.transports.http.forms import request_bodies
from whippet.transports.http import routes

async def slow(call):
    print("request in progress", flush=True)
    return PlainTextResponse(await request_bodies.read(call.receive, 1000))

routes.OPERATIONS += (
    routes.Operation(
        name="slow", method="POST", path="/slow", summary="Waits for its body", subject="", handler=slow, public=True
    ),
)
"""
