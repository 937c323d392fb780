"""Tools for users, their permissions and passwords, and for the personal access tokens of the user."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from whippet.app.access import permissions as granted
from whippet.app.cli.remote import rows
from whippet.app.cli.remote.output import Done
from whippet.app.commands import requests
from whippet.app.mcp.bounds import Listing, skipping
from whippet.app.mcp.parameters import U32_MAX, Expiry, Listed, Name, OfUser, Parameters, Skip, expiry, identifier
from whippet.app.mcp.work import Work
from whippet.app.model.identity import UserStatus

Number = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class TopicPermissions(Parameters, frozen=True):
    manage_topic: bool = False
    read_topic: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class StreamPermissions(Parameters, frozen=True):
    manage_stream: bool = False
    read_stream: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False
    topics: Annotated[dict[Number, TopicPermissions], msgspec.Meta(description="by the id of the topic")] | None = None


class GlobalPermissions(Parameters, frozen=True):
    manage_servers: bool = False
    read_servers: bool = False
    manage_users: bool = False
    read_users: bool = False
    manage_streams: bool = False
    read_streams: bool = False
    manage_topics: bool = False
    read_topics: bool = False
    poll_messages: bool = False
    send_messages: bool = False


class Permissions(Parameters, frozen=True):
    everywhere: GlobalPermissions = msgspec.field(name="global", default_factory=GlobalPermissions)
    streams: Annotated[dict[Number, StreamPermissions], msgspec.Meta(description="by the id of the stream")] | None = (
        None
    )


class DetailsOfUser(OfUser, frozen=True):
    skip: Skip = 0


class NewUser(Parameters, frozen=True):
    username: Name
    password: Secret
    active: bool = False
    permissions: Permissions | None = None


class ChangedUser(OfUser, frozen=True):
    username: Name | None = None
    active: bool | None = None


class ChangedPermissions(OfUser, frozen=True):
    permissions: Annotated[
        Permissions | None, msgspec.Meta(description="replaces all; without it, all are removed")
    ] = None


class ChangedPassword(OfUser, frozen=True):
    current_password: Secret
    new_password: Secret


class NewToken(Parameters, frozen=True):
    name: Name
    expiry: Expiry | None = None


class OfToken(Parameters, frozen=True):
    name: Name


async def get_users(work: Work, given: Listed) -> Listing:
    found = await work.execute(requests.GetUsers())
    return Listing("users", [rows.user(each) for each in found], given.skip, skipping)


async def get_user(work: Work, given: DetailsOfUser) -> Listing:
    found = await work.found(requests.GetUser(identifier(given.user_id)), f"the user {given.user_id}")
    return _details(rows.user_details(found), given.skip)


def _details(user: rows.UserDetails, skip: int) -> Listing:
    more = f"call get_user with user_id={user.id} and skip="
    return Listing("stream_permissions", user.stream_permissions, skip, lambda count: f"{more}{count}", user)


async def create_user(work: Work, given: NewUser) -> Listing:
    status = UserStatus.ACTIVE if given.active else UserStatus.INACTIVE
    request = requests.CreateUser(given.username, given.password, status, _permissions(given.permissions))
    return _details(rows.user_details(await work.execute(request)), 0)


async def update_user(work: Work, given: ChangedUser) -> Done:
    status = None if given.active is None else UserStatus.ACTIVE if given.active else UserStatus.INACTIVE
    await work.execute(requests.UpdateUser(identifier(given.user_id), given.username, status))
    return Done(f"updated user {given.user_id}")


async def delete_user(work: Work, given: OfUser) -> Done:
    await work.execute(requests.DeleteUser(identifier(given.user_id)))
    return Done(f"deleted user {given.user_id}")


async def update_permissions(work: Work, given: ChangedPermissions) -> Done:
    await work.execute(requests.UpdatePermissions(identifier(given.user_id), _permissions(given.permissions)))
    return Done(f"{'replaced' if given.permissions else 'removed'} the permissions of user {given.user_id}")


async def change_password(work: Work, given: ChangedPassword) -> Done:
    request = requests.ChangePassword(identifier(given.user_id), given.current_password, given.new_password)
    await work.execute(request)
    return Done(f"changed the password of user {given.user_id}")


def _permissions(given: Permissions | None) -> granted.Permissions | None:
    if given is None:
        return None
    streams = {
        number: granted.StreamPermissions(
            **_flags(stream),
            topics={topic: granted.TopicPermissions(**_flags(flags)) for topic, flags in (stream.topics or {}).items()},
        )
        for number, stream in (given.streams or {}).items()
    }
    return granted.Permissions(granted.GlobalPermissions(**_flags(given.everywhere)), streams)


def _flags(given: Parameters) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(given).items() if name != "topics"}


# ------------------------------------------------------------------------------------------------------------- tokens


async def get_personal_access_tokens(work: Work, given: Listed) -> Listing:
    found = await work.execute(requests.GetPersonalAccessTokens())
    return Listing("tokens", [rows.Token(each.name, each.expires_at) for each in found], given.skip, skipping)


async def create_personal_access_token(work: Work, given: NewToken) -> rows.RawToken:
    created = await work.execute(requests.CreatePersonalAccessToken(given.name, expiry(given.expiry)))
    return rows.RawToken(given.name, created.token)


async def delete_personal_access_token(work: Work, given: OfToken) -> Done:
    await work.execute(requests.DeletePersonalAccessToken(given.name))
    return Done(f"deleted token {given.name}")
