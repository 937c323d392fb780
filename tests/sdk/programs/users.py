"""Creates users and changes them in every way that the SDK has, and tries after each change who can log in."""

from typing import Any

from apache_iggy import (
    AutoLogin,
    GlobalPermissions,
    IggyClient,
    Permissions,
    StreamPermissions,
    TcpConfig,
    TcpReconnectionConfig,
    TopicPermissions,
    UserStatus,
)
from scenario import Task, connected, execute, milliseconds, refusal, say

Users = tuple[Any, Any, Any]
"""A user with permissions, one without, and one who is not active."""
TREE = Permissions(
    GlobalPermissions(read_servers=True, manage_topics=True, send_messages=True),
    {
        1: StreamPermissions(manage_stream=True, poll_messages=True),
        4_000_000_000: StreamPermissions(
            read_topics=True,
            topics={0: TopicPermissions(manage_topic=True), 7: TopicPermissions(read_topic=True, send_messages=True)},
        ),
    },
)
GLOBAL = [name for name in dir(GlobalPermissions) if not name.startswith("_")]
OTHER = Permissions(GlobalPermissions(read_users=True))
BAD_NAMES = ("ab", "a" * 51)
BAD_PASSWORDS = ("ab", "a" * 101)


def seen(user: Any) -> list[Any] | None:
    return user and [user.id, user.username, user.status == UserStatus.Active]


async def login(task: Task, user: str, password: str) -> str | None:
    """Returns the result of a login with a new client."""
    config = TcpConfig(
        server_address=task["address"],
        auto_login=AutoLogin.username_password(user, password),
        reconnection=TcpReconnectionConfig(enabled=False),
    )
    return await refusal(IggyClient(config).connect)


async def made(client: IggyClient, task: Task, name: str) -> Users:
    full = await client.create_user(f"{name}-full", "first-secret", UserStatus.Active, TREE)
    plain = await client.create_user(f"{name}-plain", "ユーザー🦀")
    idle = await client.create_user(f"{name}-idle", "secret", UserStatus.Inactive)
    say(
        made=[seen(user) for user in (full, plain, idle)],
        created_at=[user.created_at for user in (full, plain, idle)],
        globally=[
            name for name in GLOBAL if getattr((await client.get_user(full.id)).permissions.global_permissions, name)
        ],
        tree_is_kept=[full.permissions == TREE, (await client.get_user(full.id)).permissions == TREE],
        no_permissions=[plain.permissions is None, (await client.get_user(f"{name}-plain")).permissions is None],
        by_id=seen(await client.get_user(plain.id)),
        absent=[seen(await client.get_user("nobody")), seen(await client.get_user(4_000_000_000))],
        listed=[seen(user) for user in await client.get_users()],
        root=seen(await client.get_user("iggy")),
        logins=[
            await login(task, f"{name}-{who}", word) for who, word in (("plain", "ユーザー🦀"), ("idle", "secret"))
        ],
        refused=[
            await refusal(client.create_user, f"{name}-full", "secret"),
            *[await refusal(client.create_user, bad, "secret") for bad in BAD_NAMES],
            *[await refusal(client.create_user, f"{name}-other", bad) for bad in BAD_PASSWORDS],
        ],
    )
    return full, plain, idle


async def updated(client: IggyClient, task: Task, name: str, users: Users) -> None:
    full, plain, _ = users
    await client.update_user(plain.id, username=f"{name}-renamed")
    await client.update_user(f"{name}-idle", status=UserStatus.Active)
    await client.update_user(full.id, f"{name}-both", UserStatus.Inactive, {})
    await client.update_user(full.id)
    say(
        updated=[seen(await client.get_user(user.id)) for user in users],
        old_name=seen(await client.get_user(f"{name}-plain")),
        logins_updated=[
            await login(task, f"{name}-renamed", "ユーザー🦀"),
            await login(task, f"{name}-idle", "secret"),
            await login(task, f"{name}-both", "first-secret"),
        ],
        refused_updates=[
            await refusal(client.update_user, "nobody", f"{name}-x"),
            await refusal(client.update_user, plain.id, f"{name}-idle"),
            await refusal(client.update_user, plain.id, options={"colour": "red"}),
        ],
        after_refusals=seen(await client.get_user(plain.id)),
    )


async def permitted(client: IggyClient, users: Users) -> None:
    full, plain, _ = users
    await client.update_permissions(full.id, OTHER)
    await client.update_permissions(plain.id, TREE)
    replaced = [(await client.get_user(user.id)).permissions for user in (full, plain)]
    await client.update_permissions(full.id, None)
    say(
        replaced=[replaced[0] == OTHER, replaced[1] == TREE],
        removed=(await client.get_user(full.id)).permissions is None,
        refused_permissions=[
            await refusal(client.update_permissions, "nobody", OTHER),
            await refusal(client.update_permissions, "iggy", OTHER),
        ],
    )


async def secret(client: IggyClient, task: Task, name: str, users: Users) -> IggyClient:
    _, plain, idle = users
    soon = TcpReconnectionConfig(reestablish_after=milliseconds(10))
    own = IggyClient(TcpConfig(server_address=task["address"], reconnection=soon))
    await own.connect()
    await own.login_user(f"{name}-renamed", "ユーザー🦀")
    say(
        wrong_current=await refusal(client.change_password, idle.id, "not-it", "new-secret"),
        bad_new=[await refusal(client.change_password, idle.id, "secret", bad) for bad in BAD_PASSWORDS],
        of_nobody=await refusal(client.change_password, "nobody", "secret", "new-secret"),
        by_root=await refusal(client.change_password, idle.id, "secret", "new-secret"),
        by_oneself=await refusal(own.change_password, plain.id, "ユーザー🦀", "own-secret"),
        goes_on=await refusal(own.ping),
        logins_changed=[
            await login(task, f"{name}-idle", "new-secret"),
            await login(task, f"{name}-renamed", "own-secret"),
            await login(task, f"{name}-idle", "secret"),
        ],
    )
    return own


async def gone(client: IggyClient, task: Task, name: str, users: Users, own: IggyClient) -> None:
    full, _, idle = users
    await client.delete_user(full.id)
    await client.delete_user(f"{name}-renamed")
    await client.delete_user(idle.id)
    say(
        gone=[seen(await client.get_user(user.id)) for user in users],
        left=[seen(user) for user in await client.get_users() if user.username.startswith(name)],
        after_the_end=[await login(task, f"{name}-renamed", "own-secret"), await refusal(own.get_stats)],
        again=[await refusal(client.delete_user, idle.id), await refusal(client.delete_user, "iggy")],
    )


async def main(task: Task) -> None:
    client, name = await connected(task), task["name"]
    users = await made(client, task, name)
    await updated(client, task, name, users)
    await permitted(client, users)
    own = await secret(client, task, name, users)
    await gone(client, task, name, users, own)


execute(main)
