"""Health checks, for orchestrators and load balancers. They need no token.

A server is alive if it responds at all. It is ready if it serves everything; before that, and again while it stops, the
response contains its progress. serving/startup.py returns the same until the store is open.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from whippet.app.readiness import Readiness
from whippet.transports.http.errors import RETRY_AFTER
from whippet.transports.http.forms.responses import JSON, NO_STORE, HttpResponse
from whippet.transports.http.operation import Call

NOT_READY = "not_ready"


class Live(msgspec.Struct, frozen=True):
    status: str = "live"


class Recovery(msgspec.Struct, frozen=True):
    """How many partitions are recovered."""

    opened: int
    total: int


class Ready(msgspec.Struct, frozen=True):
    status: str
    """`ready`, `recovering`, `starting` or `stopping`."""
    recovery: Recovery | None
    """Null until the number of partitions is known."""
    seconds: float
    """How long the start took, or has taken so far."""
    problems: list[str] = []
    """Problems of a server that still serves: certificates that have expired or soon will, a full disk, or an archive
    that is behind."""


class NotReady(Ready, frozen=True, kw_only=True):
    """An error with the progress of the start."""

    id: int = int(HTTPStatus.SERVICE_UNAVAILABLE)
    code: str = NOT_READY
    reason: str
    field: str | None = None


async def get_live(call: Call) -> HttpResponse:
    return live()


async def get_ready(call: Call) -> HttpResponse:
    return ready(call.api.gateway.readiness)


def live() -> HttpResponse:
    return HttpResponse(HTTPStatus.OK, msgspec.json.encode(Live()), (JSON, NO_STORE))


def ready(readiness: Readiness) -> HttpResponse:
    progress = readiness.recovery
    recovery = None if progress is None else Recovery(progress.opened, progress.total)
    seconds = round(readiness.seconds, 3)
    status, problems = readiness.stage.value, readiness.problems()
    if readiness.is_ready:
        return HttpResponse(
            HTTPStatus.OK, msgspec.json.encode(Ready(status, recovery, seconds, problems)), (JSON, NO_STORE)
        )
    body = NotReady(
        status, recovery, seconds, problems, reason=f"The server is not ready; it is {readiness.sentence()}"
    )
    return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, msgspec.json.encode(body), (JSON, NO_STORE, RETRY_AFTER))
