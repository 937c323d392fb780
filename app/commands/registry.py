"""The table of all commands: code, requirements and handler. The only way into the command layer.

`execute` is the same for all transports: it checks the session, finds the stream and the topic that the request names,
checks the permission, and calls the handler. Existence is checked before the permission, so that a missing topic is
"not found" for every user; for users and the server the permission is checked first.
"""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from whippet.app.access import permissions as may
from whippet.app.access.permissions import Permissions
from whippet.app.access.users import ROOT
from whippet.app.commands import (
    audited,
    command_log,
    deferred_polls,
    groups,
    messages,
    offsets,
    partial_updates,
    partitions,
    personal_tokens,
    requests,
    sessions,
    streams,
    system,
    topics,
    users,
)
from whippet.app.commands.authorization import current_user
from whippet.app.commands.catalogue_states import Observed
from whippet.app.commands.target import Target
from whippet.app.errors import TABLE, Code, CommandError, of_storage
from whippet.storage.errors import StorageError

if TYPE_CHECKING:
    from whippet.app.access.users import User
    from whippet.app.gateway import Gateway
    from whippet.app.model.identity import Login
    from whippet.app.model.sessions import Session

_log = logging.getLogger(__name__)

Handler = Callable[["Gateway", "Session", Any, Target], Awaitable[Any]]
Right = Callable[[Permissions, int, int], bool]
"""Returns True if the permissions allow it, for a stream id and a topic id (0 where the command names none)."""


class Absent(enum.Enum):
    """The response to a request that names a stream or topic which does not exist."""

    REFUSED = enum.auto()
    EMPTY = enum.auto()


class Command(NamedTuple):
    code: int
    name: str
    request: type[requests.Request]
    handler: Handler
    right: Right | None = None
    """None: any logged-in user."""
    absent: Absent = Absent.REFUSED
    open_to_all: bool = False
    """Allowed before logging in."""
    allowed_after_end: bool = False
    """Also allowed on a session whose login was ended."""
    own_user: bool = False
    """Needs no permission if the request names the caller's own user."""
    discloses: bool = False
    """Returns data after it may have waited, so the caller's permissions are checked again at the end."""
    changes: bool = False
    """Changes the catalogue. Only one such command runs at a time, from the look-up of names to the end."""


C = Command
COMMANDS: tuple[Command, ...] = (
    C(1, "ping", requests.Ping, system.ping, open_to_all=True),
    C(10, "get_stats", requests.GetStats, system.get_stats, may.read_servers, discloses=True),
    C(11, "get_snapshot", requests.GetSnapshot, system.get_snapshot, may.read_servers, discloses=True),
    C(12, "get_cluster_metadata", requests.GetClusterMetadata, system.get_cluster_metadata),
    C(13, "describe_options", requests.DescribeOptions, partial_updates.describe_options),
    C(14, "attach_session", requests.AttachSession, sessions.attach),
    C(20, "get_me", requests.GetMe, system.get_me),
    C(21, "get_client", requests.GetClient, system.get_client, may.read_servers),
    C(22, "get_clients", requests.GetClients, system.get_clients, may.read_servers),
    C(31, "get_user", requests.GetUser, users.get_user, may.read_users, own_user=True),
    C(32, "get_users", requests.GetUsers, users.get_users, may.read_users),
    C(33, "create_user", requests.CreateUser, users.create_user, may.manage_users),
    C(34, "delete_user", requests.DeleteUser, users.delete_user, may.manage_users),
    C(35, "update_user", requests.UpdateUser, users.update_user, may.manage_users),
    C(36, "update_permissions", requests.UpdatePermissions, users.update_permissions, may.manage_users),
    C(37, "change_password", requests.ChangePassword, users.change_password, may.manage_users, own_user=True),
    C(38, "login_user", requests.LoginUser, sessions.login_user, open_to_all=True),
    C(39, "logout_user", requests.LogoutUser, sessions.logout_user, allowed_after_end=True),
    C(41, "get_personal_access_tokens", requests.GetPersonalAccessTokens, personal_tokens.get_tokens),
    C(42, "create_personal_access_token", requests.CreatePersonalAccessToken, personal_tokens.create_token),
    C(43, "delete_personal_access_token", requests.DeletePersonalAccessToken, personal_tokens.delete_token),
    C(
        44,
        "login_with_personal_access_token",
        requests.LoginWithPersonalAccessToken,
        sessions.login_with_token,
        open_to_all=True,
    ),
    C(100, "poll_messages", requests.PollMessages, messages.poll_messages, may.poll_messages, discloses=True),
    C(101, "send_messages", requests.SendMessages, messages.send_messages, may.send_messages),
    C(102, "flush_unsaved_buffer", requests.FlushUnsavedBuffer, messages.flush_unsaved_buffer, may.send_messages),
    C(103, "get_poll_routing", requests.GetPollRouting, messages.get_routing, may.poll_messages),
    C(105, "get_partition_route", requests.GetPartitionRoute, deferred_polls.get_partition_route, may.route_messages),
    C(
        106,
        "poll_messages_deferred",
        requests.PollMessagesDeferred,
        deferred_polls.poll_deferred,
        may.poll_messages,
        discloses=True,
    ),
    C(107, "await_messages", requests.AwaitMessages, deferred_polls.await_messages, may.poll_messages, discloses=True),
    C(109, "fetch_messages", requests.FetchMessages, deferred_polls.fetch_messages, may.poll_messages, discloses=True),
    C(
        120,
        "get_consumer_offset",
        requests.GetConsumerOffset,
        offsets.get_offset,
        may.poll_messages,
        Absent.EMPTY,
    ),
    C(121, "store_consumer_offset", requests.StoreConsumerOffset, offsets.store_offset, may.poll_messages),
    C(122, "delete_consumer_offset", requests.DeleteConsumerOffset, offsets.delete_offset, may.poll_messages),
    C(123, "get_offset_routing", requests.GetOffsetRouting, messages.get_routing, may.poll_messages),
    C(200, "get_stream", requests.GetStream, streams.get_stream, may.read_stream, Absent.EMPTY),
    C(201, "get_streams", requests.GetStreams, streams.get_streams, may.read_streams),
    C(202, "create_stream", requests.CreateStream, streams.create_stream, may.manage_streams, changes=True),
    C(203, "delete_stream", requests.DeleteStream, streams.delete_stream, may.manage_stream, changes=True),
    C(204, "update_stream", requests.UpdateStream, streams.update_stream, may.manage_stream, changes=True),
    C(205, "purge_stream", requests.PurgeStream, streams.purge_stream, may.manage_stream, changes=True),
    C(300, "get_topic", requests.GetTopic, topics.get_topic, may.read_topic, Absent.EMPTY),
    C(301, "get_topics", requests.GetTopics, topics.get_topics, may.read_topics, Absent.EMPTY),
    C(302, "create_topic", requests.CreateTopic, topics.create_topic, may.manage_topics, changes=True),
    C(303, "delete_topic", requests.DeleteTopic, topics.delete_topic, may.manage_topic, changes=True),
    C(304, "update_topic", requests.UpdateTopic, topics.update_topic, may.manage_topic, changes=True),
    C(305, "purge_topic", requests.PurgeTopic, topics.purge_topic, may.manage_topic, changes=True),
    C(
        402,
        "create_partitions",
        requests.CreatePartitions,
        partitions.create_partitions,
        may.manage_topic,
        changes=True,
    ),
    C(
        403,
        "delete_partitions",
        requests.DeletePartitions,
        partitions.delete_partitions,
        may.manage_topic,
        changes=True,
    ),
    C(503, "delete_segments", requests.DeleteSegments, partitions.delete_segments, may.manage_topic),
    C(600, "get_consumer_group", requests.GetConsumerGroup, groups.get_group, may.read_topic, Absent.EMPTY),
    C(601, "get_consumer_groups", requests.GetConsumerGroups, groups.get_groups, may.read_topic, Absent.EMPTY),
    C(602, "create_consumer_group", requests.CreateConsumerGroup, groups.create_group, may.read_topic, changes=True),
    C(603, "delete_consumer_group", requests.DeleteConsumerGroup, groups.delete_group, may.read_topic, changes=True),
    C(604, "join_consumer_group", requests.JoinConsumerGroup, groups.join_group, may.read_topic),
    C(605, "leave_consumer_group", requests.LeaveConsumerGroup, groups.leave_group, may.read_topic),
    C(606, "sync_consumer_group", requests.SyncConsumerGroup, groups.sync_group, may.read_topic, Absent.EMPTY),
)

INTERNAL_COMMANDS: tuple[Command, ...] = (
    C(0, "follow_messages", requests.FollowMessages, messages.follow_messages, may.poll_messages, discloses=True),
    C(0, "locate_messages", requests.LocateMessages, deferred_polls.locate_messages, may.poll_messages, discloses=True),
    C(0, "get_activity", requests.GetActivity, system.get_activity, may.read_servers, discloses=True),
    C(0, "get_topic_readers", requests.GetTopicReaders, offsets.get_readers, may.poll_messages, discloses=True),
    C(0, "patch_stream", requests.PatchStream, partial_updates.patch_stream, may.manage_stream, changes=True),
    C(0, "patch_topic", requests.PatchTopic, partial_updates.patch_topic, may.manage_topic, changes=True),
    C(0, "patch_user", requests.PatchUser, partial_updates.patch_user, may.manage_users),
    C(0, "end_sessions", requests.EndSessions, users.end_sessions, may.manage_users, own_user=True),
)
"""Commands without a number in the protocols: transports execute them on behalf of other requests, or only HTTP and the
channel have them."""
OPEN_TO_ROOT = frozenset({requests.UpdateTopic, requests.PatchTopic})
"""How long entries are kept is for the root user to decide, and is recorded like every change."""
CLOSED_TO_ALL = OPEN_TO_ROOT | {
    requests.SendMessages,
    requests.UpdateStream,
    requests.PatchStream,
    requests.PurgeStream,
    requests.DeleteStream,
    requests.PurgeTopic,
    requests.DeleteTopic,
    requests.DeletePartitions,
    requests.DeleteSegments,
}
"""Commands that are refused on the stream of the audit log."""
BY_REQUEST = {command.request: command for command in (*COMMANDS, *INTERNAL_COMMANDS)}


def execute(gateway: Gateway, session: Session, request: requests.Request) -> Coroutine[Any, Any, Any]:
    """Returns the response to a request, or raises a CommandError. Logins and changes are recorded in the audit log."""
    command = BY_REQUEST[type(request)]
    if command.request in audited.KINDS and gateway.audit is not None:
        return audited.execute(
            gateway, session, command.name, request, partial(_execute, gateway, session, command, request)
        )
    return _execute(gateway, session, command, request)


async def _execute(gateway: Gateway, session: Session, command: Command, request: requests.Request) -> Any:
    began = perf_counter()
    login, seen = session.login, gateway.users.changes
    try:
        if session.stale:
            _refuse_stale()
        if command.open_to_all or (command.allowed_after_end and session.ended_login):
            return await command.handler(gateway, session, request, Target())
        if command.changes:
            return await _execute_change(gateway, session, command, request)
        target = _authorize(gateway, command, request, login)
        response = None if target is None else await command.handler(gateway, session, request, target)
        if command.discloses and gateway.users.changes != seen:
            _authorize(gateway, command, request, login)
    except StorageError as error:
        refused = of_storage(error)
        gateway.measurements.refusals[command.name, TABLE[refused.code].name] += 1
        raise refused from error
    except CommandError as refused:
        gateway.measurements.refusals[command.name, TABLE[refused.code].name] += 1
        raise
    else:
        return response
    finally:
        seconds = perf_counter() - began
        gateway.measurements.commands[type(request)][session.transport].add(seconds)
        if gateway.observes_commands:
            command_log.report(gateway, session, command.name, request, seconds, sys.exc_info()[1])


class Destination(NamedTuple):
    """The part of a request that comes before its body."""

    stream: requests.Identifier
    topic: requests.Identifier


def admit(gateway: Gateway, session: Session, kind: type[requests.Request], destination: Destination) -> None:
    """Refuses what `execute` would refuse because of its sender or destination, before a large body is decoded."""
    command = BY_REQUEST[kind]
    try:
        if session.stale:
            _refuse_stale()
        user, target = current_user(gateway, session.login), _find(gateway, command, destination)
        if target is not None:
            _check_right(command, target, user)
            _refuse_audit(gateway, command, target, user)
    except CommandError as refused:
        gateway.measurements.refusals[command.name, TABLE[refused.code].name] += 1
        raise


def _refuse_stale() -> NoReturn:
    raise CommandError(Code.STALE_CLIENT)


def _authorize(gateway: Gateway, command: Command, request: requests.Request, login: Login | None) -> Target | None:
    """Returns None if the request names something that does not exist, and the response is then empty."""
    user = current_user(gateway, login)
    target = _find(gateway, command, request)
    if target is None:
        return None
    if not (command.own_user and gateway.users.is_same(user, request.user)):  # type: ignore[attr-defined]
        _check_right(command, target, user)
    _refuse_audit(gateway, command, target, user)
    return target


def _check_right(command: Command, target: Target, user: User) -> None:
    if command.right is None:
        return
    permissions = user.permissions
    if permissions is None or not command.right(permissions, target.stream_id, target.topic_id):
        raise CommandError(Code.UNAUTHORIZED, f"user {user.username!r} may not {command.name}")


def _refuse_audit(gateway: Gateway, command: Command, target: Target, user: User) -> None:
    """Nobody adds to the stream of the audit log, or takes from it."""
    stream = target.found_stream
    if stream is None or stream.name != gateway.config.audit.stream or command.request not in CLOSED_TO_ALL:
        return
    if command.request not in OPEN_TO_ROOT or user.id != ROOT:
        raise CommandError(
            Code.UNAUTHORIZED, f"stream {stream.name!r} is the server's own (audit.stream): nobody may {command.name}"
        )


async def _execute_change(gateway: Gateway, session: Session, command: Command, request: requests.Request) -> Any:
    """A session that is not logged in does not wait for the lock; the caller is checked again once the lock is
    taken."""
    login = session.login
    user = current_user(gateway, login)
    async with gateway.catalogue_lock:
        target = _authorize(gateway, command, request, login)
        if target is None:
            return None
        announce = gateway.catalogue_events.announcement(request, target)
        about = _description(request, target)
        observed = None if gateway.audit is None else Observed(gateway, request, target)
        try:
            response = await command.handler(gateway, session, request, target)
        finally:
            if observed is not None:
                observed.note()
        _log.info("%s, user %r: %s %s", session.address, user.username, command.name, about)
        if announce is not None:
            announce(response)
        return response


def _description(request: requests.Request, target: Target) -> str:
    """Names what a command changes, for the log, as it is called before the change."""
    named = {"stream": target.found_stream, "topic": target.found_topic}
    found = {kind: thing.name for kind, thing in named.items() if thing is not None}
    found |= {field: getattr(request, field) for field in ("group", "name", "count") if hasattr(request, field)}
    return ", ".join(f"{kind} {name!r}" for kind, name in found.items())


def _find(gateway: Gateway, command: Command, request: requests.Request | Destination) -> Target | None:
    """Returns None if the request names something that does not exist, and the response is then empty."""
    wanted = getattr(request, "stream", None)
    if wanted is None:
        return Target()
    stream = gateway.streams.find(wanted)
    if stream is None:
        _refuse_missing(command, Code.STREAM_ID_NOT_FOUND, wanted)
        return None
    wanted = getattr(request, "topic", None)
    if wanted is None:
        return Target(stream)
    topic = stream.topics.find(wanted)
    if topic is None:
        _refuse_missing(command, Code.TOPIC_ID_NOT_FOUND, wanted, stream.name)
        return None
    return Target(stream, topic)


def _refuse_missing(command: Command, code: Code, *about: requests.Identifier) -> None:
    """Unless the response is then empty."""
    if command.absent is Absent.REFUSED:
        raise CommandError(code, about=about)
