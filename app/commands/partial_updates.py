"""Updates of streams, topics and users that name only what changes, as 0.12 clients send them.

Here the name is one of the options, and options can be reset to the server's defaults. An update is executed as the
equivalent update of older clients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from whippet.app.access.users import ROOT
from whippet.app.commands import requests, streams, topics, users
from whippet.app.commands.responses import OptionDescription, OptionFlags
from whippet.app.commands.target import Target
from whippet.app.errors import Code, CommandError
from whippet.app.model import options, topic_options
from whippet.app.model.identity import UserStatus
from whippet.app.model.options import Option, OptionScope, ValueKind

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.app.model.sessions import Session

NAME, USERNAME, STATUS = "name", "username", "status"
READ_ONLY = frozenset(
    {
        "critical_keys",
        "encryption_kek_fingerprint",
        "encryption_key_fingerprint",
        "encryption_key_source",
        "encryption_key_wrapped",
    }
)
STATUSES = {status.name.lower(): status for status in UserStatus}

TOPIC_FLAGS: Mapping[str, OptionFlags] = {NAME: OptionFlags.UPDATABLE} | {
    key: OptionFlags.UPDATABLE | OptionFlags.RESETTABLE if option.can_change else OptionFlags(0)
    for key, option in topic_options.TOPIC_OPTIONS.items()
}
FLAGS: Mapping[OptionScope, Mapping[str, OptionFlags]] = {
    OptionScope.TOPIC: TOPIC_FLAGS,
    OptionScope.STREAM: {NAME: OptionFlags.UPDATABLE},
    OptionScope.USER: {USERNAME: OptionFlags.UPDATABLE, STATUS: OptionFlags.UPDATABLE},
}
"""The changes that each option of an existing topic, stream or user allows."""
COLUMNS: Mapping[OptionScope, tuple[OptionDescription, ...]] = {
    OptionScope.TOPIC: (OptionDescription(NAME, ValueKind.STRING, b"", "Name of the topic.", OptionFlags.UPDATABLE),),
    OptionScope.STREAM: (OptionDescription(NAME, ValueKind.STRING, b"", "Name of the stream.", OptionFlags.UPDATABLE),),
    OptionScope.USER: (
        OptionDescription(STATUS, ValueKind.STRING, b"active", "active or inactive.", OptionFlags.UPDATABLE),
        OptionDescription(USERNAME, ValueKind.STRING, b"", "Name of the user.", OptionFlags.UPDATABLE),
    ),
}
"""Options that exist only in updates: older clients have fields for them."""


async def patch_stream(gateway: Gateway, session: Session, request: requests.PatchStream, target: Target) -> None:
    changes = _checked_options(request.options, request.reset, OptionScope.STREAM)
    update = requests.UpdateStream(request.stream, _text(changes[NAME]))
    await streams.update_stream(gateway, session, update, target)


async def patch_topic(gateway: Gateway, session: Session, request: requests.PatchTopic, target: Target) -> None:
    changes = _checked_options(request.options, request.reset, OptionScope.TOPIC)
    name = _text(changes.pop(NAME)) if NAME in changes else target.topic.name
    update = requests.UpdateTopic(
        request.stream, request.topic, name, options=tuple(changes.values()), reset=request.reset
    )
    await topics.update_topic(gateway, session, update, target)


async def patch_user(gateway: Gateway, session: Session, request: requests.PatchUser, target: Target) -> None:
    changes = _checked_options(request.options, request.reset, OptionScope.USER)
    username = _text(changes[USERNAME]) if USERNAME in changes else None
    status = None
    if STATUS in changes:
        word = _text(changes[STATUS])
        status = STATUSES.get(word)
        if status is None:
            raise CommandError(
                Code.INVALID_OPTION_VALUE, f"{STATUS!r} is {options.abbreviated(word)}; active or inactive is needed"
            )
    root = gateway.users.root
    if gateway.users.is_same(root, request.user):
        assert root.id == ROOT
        renames = username not in (None, root.username)
        if renames or status is UserStatus.INACTIVE:
            raise CommandError(Code.ROOT_USER_UNCHANGEABLE)
    await users.update_user(gateway, session, requests.UpdateUser(request.user, username, status), target)


def _checked_options(given: Collection[Option], reset: Collection[str], scope: OptionScope) -> dict[str, Option]:
    """Returns the options by key, after checking that all of them can be changed or reset together."""
    options.check(tuple(given))
    if not given and not reset:
        raise CommandError(Code.INVALID_COMMAND, "there is nothing to change")
    for key in reset:
        _check_flag(key, scope, OptionFlags.RESETTABLE, Code.OPTION_NOT_RESETTABLE)
    for option in given:
        _check_flag(option.key, scope, OptionFlags.UPDATABLE, Code.OPTION_NOT_UPDATABLE)
    keys = [*reset, *(option.key for option in given)]
    if len(set(keys)) < len(keys):
        raise CommandError(Code.INVALID_OPTION_VALUE, "an option is reset twice, or both set and reset")
    return {option.key: option for option in given}


def _check_flag(key: str, scope: OptionScope, flag: OptionFlags, refusal: Code) -> None:
    if key in READ_ONLY:
        raise CommandError(Code.OPTION_READ_ONLY, repr(key))
    known = FLAGS[scope].get(key)
    if known is None:
        of = scope.name.lower()
        raise CommandError(
            Code.UNSUPPORTED_OPTION_KEY,
            f"{options.abbreviated(key)} is not an option of a {of}; the options are {', '.join(FLAGS[scope])}",
        )
    if not known & flag:
        raise CommandError(refusal, repr(key))


def _text(option: Option) -> str:
    if option.kind is ValueKind.STRING:
        try:
            return option.value.decode()
        except UnicodeDecodeError:
            pass
    raise CommandError(Code.INVALID_OPTION_VALUE, f"{option.key!r} must be a text")


async def describe_options(
    gateway: Gateway, session: Session, request: requests.DescribeOptions, target: Target
) -> tuple[OptionDescription, ...]:
    """Returns the options sorted by key. Only topics have options that older clients know."""
    scope = request.scope
    found = list(COLUMNS[scope]) if request.with_columns else []
    if scope is OptionScope.TOPIC:
        found += [
            OptionDescription(
                option.key,
                option.kind,
                option.value,
                topic_options.TOPIC_OPTIONS[option.key].description,
                TOPIC_FLAGS[option.key],
            )
            for option in gateway.topic_defaults.options.values()
        ]
    return tuple(sorted(found, key=lambda each: each.key))
