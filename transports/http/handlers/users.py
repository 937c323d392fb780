"""Users, their permissions, passwords and sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from whippet.app.access import permissions as granted
from whippet.app.commands import requests, responses
from whippet.app.commands.requests import Identifier
from whippet.app.model.identity import UserStatus
from whippet.transports.http.forms.field_types import NoOptions, Password, Username
from whippet.transports.http.forms.parameters import U32_MAX
from whippet.transports.http.forms.request_bodies import unprocessable
from whippet.transports.http.handlers import options
from whippet.transports.http.handlers.options import OptionValue
from whippet.transports.http.operation import Call

Status = Literal["active", "inactive"]
STATUSES = {UserStatus.ACTIVE: "active", UserStatus.INACTIVE: "inactive"}
Value = TypeVar("Value")
ById = Annotated[
    dict[int, Value], msgspec.Meta(extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}})
]
_NUMBERS = {name: number for number, name in STATUSES.items()}


class GlobalPermissions(msgspec.Struct, frozen=True):
    manage_servers: bool
    read_servers: bool
    manage_users: bool
    read_users: bool
    manage_streams: bool
    read_streams: bool
    manage_topics: bool
    read_topics: bool
    poll_messages: bool
    send_messages: bool


class TopicPermissions(msgspec.Struct, frozen=True):
    manage_topic: bool
    read_topic: bool
    poll_messages: bool
    send_messages: bool


class StreamPermissions(msgspec.Struct, frozen=True):
    manage_stream: bool
    read_stream: bool
    manage_topics: bool
    read_topics: bool
    poll_messages: bool
    send_messages: bool
    topics: ById[TopicPermissions] | None = None


class Permissions(msgspec.Struct, frozen=True):
    everywhere: GlobalPermissions = msgspec.field(name="global")
    streams: ById[StreamPermissions] | None = None


class User(msgspec.Struct, frozen=True):
    id: int
    created_at: int
    status: str
    username: str
    options: dict[str, OptionValue]


class UserDetails(User, frozen=True):
    permissions: Permissions | None


class NewUser(msgspec.Struct, frozen=True, kw_only=True):
    username: Username
    password: Password
    status: Status
    permissions: Permissions | None = None
    options: NoOptions | None = None


class ChangedUser(msgspec.Struct, frozen=True, kw_only=True):
    username: Username | None = None
    status: Status | None = None
    user_status: Status | None = None
    """The name in the C# SDK."""
    options: NoOptions | None = None


class ChangedPermissions(msgspec.Struct, frozen=True):
    permissions: Permissions | None = None


class ChangedPassword(msgspec.Struct, frozen=True):
    current_password: Password
    new_password: Password
    end_personal_access_tokens: bool = False
    """Sessions and access tokens always end."""


class EndingQuery(msgspec.Struct, frozen=True):
    personal_access_tokens: Literal["true", "false"] = "false"
    """Whether personal access tokens end as well."""


async def get_users(call: Call) -> list[User]:
    return [User(*_members(info)) for info in await call.execute(requests.GetUsers())]


async def get_user(call: Call) -> UserDetails | None:
    found = await call.execute(requests.GetUser(call.parameters["user"]))
    return None if found is None else _details(found)


async def get_me(call: Call) -> UserDetails | None:
    found = await call.execute(requests.GetUser(call.bearer.user.id))
    return None if found is None else _details(found)


async def create_user(call: Call) -> UserDetails:
    body: NewUser = call.body
    return _details(
        await call.execute(
            requests.CreateUser(
                body.username,
                body.password,
                _NUMBERS[body.status],
                _to_permissions(body.permissions),
                options.of_texts(body.options),
            )
        )
    )


async def update_user(call: Call) -> None:
    body: ChangedUser = call.body
    status = body.status or body.user_status
    await call.execute(
        requests.UpdateUser(
            call.parameters["user"],
            body.username,
            None if status is None else _NUMBERS[status],
            options.of_texts(body.options),
        )
    )


async def delete_user(call: Call) -> None:
    await call.execute(requests.DeleteUser(call.parameters["user"]))


async def update_permissions(call: Call) -> None:
    body: ChangedPermissions = call.body
    await call.execute(requests.UpdatePermissions(call.parameters["user"], _to_permissions(body.permissions)))


async def change_password(call: Call) -> None:
    body: ChangedPassword = call.body
    await call.execute(
        requests.ChangePassword(
            call.parameters["user"], body.current_password, body.new_password, body.end_personal_access_tokens
        )
    )


async def end_own_sessions(call: Call) -> None:
    await _end_sessions(call, call.bearer.user.id)


async def end_sessions(call: Call) -> None:
    await _end_sessions(call, call.parameters["user"])


async def _end_sessions(call: Call, user: Identifier) -> None:
    query: EndingQuery = call.query
    await call.execute(requests.EndSessions(user, query.personal_access_tokens == "true"))


# ---------------------------------------------------------------------------------------------------- conversions


def _members(info: responses.UserInfo) -> tuple[int, int, str, str, dict[str, OptionValue]]:
    return info.id, info.created_at, STATUSES[info.status], info.username, {}


def _details(found: responses.UserDetails) -> UserDetails:
    return UserDetails(*_members(found.info), permissions=_describe(found.permissions))


def _describe(found: granted.Permissions | None) -> Permissions | None:
    if found is None:
        return None
    streams = {
        stream_id: StreamPermissions(**_flags(stream), topics=_describe_topics(stream.topics))
        for stream_id, stream in sorted(found.streams.items())
    }
    return Permissions(GlobalPermissions(*msgspec.structs.astuple(found.everywhere)), streams or None)


def _describe_topics(topics: dict[int, granted.TopicPermissions]) -> dict[int, TopicPermissions] | None:
    return {
        topic_id: TopicPermissions(*msgspec.structs.astuple(topic)) for topic_id, topic in sorted(topics.items())
    } or None


def _flags(stream: granted.StreamPermissions | StreamPermissions) -> dict[str, Any]:
    return {name: getattr(stream, name) for name in stream.__struct_fields__ if name != "topics"}


def _to_permissions(body: Permissions | None) -> granted.Permissions | None:
    """The flags have the same names and order on both sides."""
    if body is None:
        return None
    streams = {
        _u32(stream_id): granted.StreamPermissions(**_flags(stream), topics=_to_topic_permissions(stream.topics))
        for stream_id, stream in (body.streams or {}).items()
    }
    return granted.Permissions(granted.GlobalPermissions(*msgspec.structs.astuple(body.everywhere)), streams)


def _to_topic_permissions(topics: dict[int, TopicPermissions] | None) -> dict[int, granted.TopicPermissions]:
    return {
        _u32(topic_id): granted.TopicPermissions(*msgspec.structs.astuple(topic))
        for topic_id, topic in (topics or {}).items()
    }


def _u32(number: int) -> int:
    if not 0 <= number <= U32_MAX:
        raise unprocessable(f"permissions are for ids from 0 to {U32_MAX}, not {number}", "permissions")
    return number
