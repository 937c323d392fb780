"""Records commands in the audit log: logins, failed or not, and all changes of catalogue, users, tokens and offsets.

`registry.execute` calls this for every command in `KINDS`, whatever the transport, and whether it succeeds or not.
Requests are recorded by the fields in `SHOWN` alone, so a field with a secret cannot get into the log by being added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.audit.entry import ABORTED, DONE
from whippet.app.audit.notes import Changed, noting
from whippet.app.commands import requests
from whippet.app.errors import TABLE, CommandError
from whippet.app.model.options import Option, decode

if TYPE_CHECKING:
    from whippet.app.access.users import User
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

LOGINS: frozenset[type[requests.Request]] = frozenset(
    {requests.LoginUser, requests.LoginWithPersonalAccessToken, requests.LogoutUser}
)
KINDS: frozenset[type[requests.Request]] = LOGINS | {
    requests.CreateUser,
    requests.DeleteUser,
    requests.UpdateUser,
    requests.PatchUser,
    requests.UpdatePermissions,
    requests.ChangePassword,
    requests.EndSessions,
    requests.CreatePersonalAccessToken,
    requests.DeletePersonalAccessToken,
    requests.CreateStream,
    requests.UpdateStream,
    requests.PatchStream,
    requests.PurgeStream,
    requests.DeleteStream,
    requests.CreateTopic,
    requests.UpdateTopic,
    requests.PatchTopic,
    requests.PurgeTopic,
    requests.DeleteTopic,
    requests.CreatePartitions,
    requests.DeletePartitions,
    requests.DeleteSegments,
    requests.CreateConsumerGroup,
    requests.DeleteConsumerGroup,
    requests.DeleteConsumerOffset,
}
SHOWN = frozenset(
    {
        *("stream", "topic", "group", "user", "name", "username", "status", "permissions", "partition_id", "count"),
        *("partitions_count", "consumer", "offset", "expiry", "options", "reset", "message_expiry", "max_topic_size"),
        *("personal_access_tokens", "end_personal_access_tokens"),
    }
)
"""Fields of requests that are recorded."""
TEXT_MAX = 255
ITEMS_MAX = 100


async def execute(
    gateway: Gateway, session: Session, name: str, request: requests.Request, run: Callable[[], Awaitable[Any]]
) -> Any:
    """Executes a command with `run`, and records it."""
    trail = gateway.audit
    assert trail is not None
    trail.check()
    user = gateway.users.by_login(session.login)
    outcome = ABORTED
    changes: list[Changed] = []
    try:
        response = await asyncio.get_running_loop().create_task(noting(changes, run), name="audited command")
        outcome = DONE
    except CommandError as refused:
        outcome = TABLE[refused.code].name
        raise
    except Exception:
        outcome = "defect"
        raise
    finally:
        is_login = type(request) in LOGINS
        if is_login and outcome == DONE:
            user = gateway.users.by_login(session.login) or user
        elif isinstance(request, requests.LoginUser):
            # Somebody may have typed a password as the name, so names of nobody are not recorded.
            user = gateway.users.find(request.username)
        trail.record(
            may_repeat=(is_login or outcome != DONE) and not changes,
            command=name,
            outcome=outcome,
            **_who(user, session),
            request={} if is_login else shown(request),
            changes=changes,
        )
    return response


def _who(user: User | None, session: Session) -> dict[str, Any]:
    return {
        "user": None if user is None else user.username,
        "user_id": None if user is None else user.id,
        "address": session.address,
        "transport": session.transport.name.lower(),
        "request_id": session.request_id,
    }


def record(gateway: Gateway, session: Session, command: str, outcome: str = DONE, **fields: Any) -> None:
    """Records something else that a client has done."""
    if gateway.audit is None:
        return
    user = gateway.users.by_login(session.login)
    gateway.audit.record(
        command=command,
        outcome=outcome,
        **_who(user, session),
        **fields,
    )


def record_offset(
    gateway: Gateway,
    session: Session,
    request: requests.StoreConsumerOffset,
    partition_id: int,
    before: int | None,
    *,
    is_member: bool,
) -> None:
    """Records a stored offset if it was moved back or set from outside a group; or each, if that is configured."""
    trail = gateway.audit
    if trail is None:
        return
    is_moved_back = before is not None and request.offset < before
    if is_moved_back or not is_member or trail.commits:
        states = (None if before is None else {"offset": before}), {"offset": request.offset}
        changed = Changed("offset", f"{request.consumer.id}, partition {partition_id}", *states)
        record(gateway, session, "store_consumer_offset", request=shown(request), changes=[changed])


def shown(request: requests.Request) -> dict[str, Any]:
    """Returns what may be known of a request."""
    fields = {name: getattr(request, name) for name in request.__struct_fields__ if name in SHOWN}
    return {name: _shown(value) for name, value in fields.items() if value not in (None, ())}


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}..."
    if isinstance(value, Option):
        try:
            return {value.key: str(decode(value))}
        except ValueError:
            return {value.key: None}
    if isinstance(value, requests.Consumer):
        return {"kind": value.kind.name.lower(), "id": _shown(value.id)}
    if isinstance(value, requests.UserStatus):
        return value.name.lower()
    if isinstance(value, tuple):
        return [_shown(each) for each in value[:ITEMS_MAX]]
    return msgspec.to_builtins(value, str_keys=True)
