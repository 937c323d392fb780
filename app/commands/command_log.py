"""Observes commands: a line about each at the level debug, and a span while traces are exported. Who, from where, what,
how it ended, how long it took.

Sends take their longer way while this is wanted, so that none is left out.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from whippet.app.commands import requests
from whippet.app.errors import TABLE, CommandError
from whippet.app.telemetry import trace_context
from whippet.app.telemetry.otlp.records import Attributes, Span

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

_log = logging.getLogger(__name__)


def is_wanted() -> bool:
    return _log.isEnabledFor(logging.DEBUG)


def report(
    gateway: Gateway,
    session: Session,
    command: str,
    request: requests.Request,
    seconds: float,
    error: BaseException | None,
) -> None:
    """`error` is what the command has raised."""
    if error is None:
        outcome = "done"
    elif isinstance(error, CommandError):
        outcome = TABLE[error.code].name
    else:
        outcome = "defect" if isinstance(error, Exception) else "aborted"
    gateway.commands_logged += 1
    request_id = session.request_id or f"{gateway.started_at:x}-{gateway.commands_logged:x}"
    user = gateway.users.by_login(session.login)
    name = None if user is None else user.username
    transport, duration = session.transport.name.lower(), round(seconds * 1000, 3)
    fields: dict[str, str | float | None] = {
        "request_id": request_id,
        "user": name,
        "address": session.address,
        "transport": transport,
        "command": command,
        "outcome": outcome,
        "duration_ms": duration,
    }
    span = None if gateway.exporter is None else _span(command, session, request, seconds, error)
    if span is not None and gateway.exporter is not None:
        attributes = {key: value for key, value in fields.items() if value is not None}
        gateway.exporter.add_span(span._replace(attributes=span.attributes | attributes))
        fields["trace_id"] = span.trace_id.hex()
    _log.debug(
        "%s over %s, user %r: %s: %s in %.3f ms (request %s)",
        session.address,
        transport,
        name,
        command,
        outcome,
        duration,
        request_id,
        extra={"fields": fields},
    )


def _span(
    command: str, session: Session, request: requests.Request, seconds: float, error: BaseException | None
) -> Span | None:
    """Returns None if the caller decided that its trace is not to be kept."""
    context = session.trace
    if context is None and isinstance(request, requests.SendMessages):
        context = trace_context.of_batches(request.batches)
    if context is not None and not context.is_sampled:
        return None
    end = time.time_ns()
    trace_id, parent = (os.urandom(16), b"") if context is None else (context.trace_id, context.span_id)
    attributes: Attributes = {}
    stream, topic = getattr(request, "stream", None), getattr(request, "topic", None)
    if stream is not None:
        attributes["messaging.destination.name"] = str(stream) if topic is None else f"{stream}/{topic}"
    shown = None if error is None else str(error) or type(error).__name__
    return Span(command, trace_id, os.urandom(8), parent, end - int(seconds * 1e9), end, attributes, shown)
