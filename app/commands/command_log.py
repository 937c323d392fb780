"""A line about every command, at the level debug: who, from where, what, how it ended, and how long it took.

Sends take their longer way while these lines are wanted, so that every one of them is in the log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from whippet.app.errors import TABLE, CommandError

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

_log = logging.getLogger(__name__)


def is_wanted() -> bool:
    return _log.isEnabledFor(logging.DEBUG)


def report(gateway: Gateway, session: Session, command: str, seconds: float, error: BaseException | None) -> None:
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
    fields = {
        "request_id": request_id,
        "user": name,
        "address": session.address,
        "transport": transport,
        "command": command,
        "outcome": outcome,
        "duration_ms": duration,
    }
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
