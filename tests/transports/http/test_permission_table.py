"""Permissions over HTTP: every route with every single permission, as in the reference of the API (10.3).

The permission of each route is from that page; the permissions are those of the table of commands.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.app.commands.support.rights import RIGHTS, grants
from tests.transports.http.support.calling import Caller
from tests.transports.http.support.operations import (
    ANY_USER,
    CAROL,
    ENDINGS,
    LEASED,
    METHODS,
    ROUTES,
    ask,
    do,
    lease_of,
    started,
)
from whippet.app.access.permissions import ALL, Permissions
from whippet.app.commands import registry
from whippet.app.errors import Code, CommandError
from whippet.app.model.identity import UserStatus
from whippet.storage.partition import Partition
from whippet.transports.http import routes

REFUSED = (403, 41)
LET_THROUGH = (400, int(Code.FEATURE_UNAVAILABLE))


def number(response: httpx.Response) -> tuple[int, int]:
    return response.status_code, response.json()["id"]


def is_allowed(name: str, grant: str) -> bool:
    right = ROUTES[name][0]
    return right == ANY_USER or grant == "everything" or grant in RIGHTS[right].split()


def test_the_table_covers_all_operations_that_need_a_token() -> None:
    assert ROUTES.keys() == {operation.name for operation in routes.OPERATIONS if not operation.public}


@pytest.mark.parametrize("token", [None, "nonsense", "x.y.z"])
async def test_without_a_valid_token_everything_is_refused(tmp_path: Path, token: str | None) -> None:
    async with started(tmp_path) as (world, _):
        stranger = Caller(world.client, token)
        for name in ROUTES:
            response = await ask(stranger, name)
            assert number(response) == (401, 77 if token is None else 40), name
            assert response.headers["www-authenticate"] == "Bearer"


async def test_every_route_is_allowed_to_exactly_the_users_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops every permitted command, so that nothing changes."""

    async def reached(*_: object) -> None:
        raise CommandError(Code.FEATURE_UNAVAILABLE)

    def sent(*_: object) -> None:
        raise CommandError(Code.FEATURE_UNAVAILABLE)

    async with started(tmp_path) as (world, alice):
        for request, command in registry.BY_REQUEST.items():
            monkeypatch.setitem(registry.BY_REQUEST, request, command._replace(handler=reached))
        # Single messages are sent without the table of commands.
        monkeypatch.setattr(Partition, "append_at_once", sent)
        own = {"get_limits", "make_ticket", "log_out", *LEASED}
        for grant, permissions in grants():
            await world.gateway.users.change_permissions("alice", permissions)
            for name in ROUTES.keys() - own:
                expected = LET_THROUGH if is_allowed(name, grant) else REFUSED
                assert number(await ask(alice, name)) == expected, (name, permissions)
            for name in ("get_limits", "make_ticket"):
                assert (await ask(alice, name)).status_code == ROUTES[name][1]


async def test_a_lease_works_only_while_its_user_may_read_the_topic(tmp_path: Path) -> None:
    async with started(tmp_path) as (world, alice):
        lease = await lease_of(world, alice)
        for grant, permissions in grants():
            for name in LEASED:
                await world.gateway.users.change_permissions("alice", permissions)
                response = await ask(alice, name, lease)
                if not is_allowed(name, grant):
                    assert number(response) == REFUSED, (name, permissions)
                    continue
                assert response.status_code == ROUTES[name][1], (name, permissions, response.text)
                if name == "give_lease_back":
                    lease = await lease_of(world, alice)


@pytest.mark.parametrize("right", sorted({right for right, *_ in ROUTES.values()}))
async def test_each_route_works_with_exactly_its_own_permission(tmp_path: Path, right: str) -> None:
    async with started(tmp_path) as (world, alice):
        await world.gateway.users.change_permissions("alice", least(right))
        for name, (needed, status, _, _) in ROUTES.items():
            if needed == right and name not in LEASED:
                asker = await world.log_in("alice", "alicealice") if name in ENDINGS else alice
                response = await do(asker, name)
                assert response.status_code == status, (name, response.text)
            elif name not in LEASED and name not in ENDINGS:
                # The order in which they can be executed.
                assert (await do(world.root, name)).status_code in (status, 404), name


def least(right: str) -> Permissions | None:
    """Returns the last permission that is listed, which is the narrowest."""
    if right == ANY_USER:
        return None
    found = {name: permissions for name, permissions in grants() if name}
    return found[RIGHTS[right].split()[-1]]


async def test_missing_things_are_404_for_everybody_but_users_and_clients_are_403(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, alice):
        for name, (right, _, path, body) in ROUTES.items():
            if right == ANY_USER or name in LEASED:
                continue
            for missing, code in (
                (path.replace("/streams/0", "/streams/nowhere"), 1009),
                (path.replace("/topics/0", "/topics/nowhere"), 2010),
                (path.replace("/users/2", "/users/nobody").replace("/users/bob", "/users/nobody"), 41),
                (path.replace("/clients/1", "/clients/4000000000"), 41),
            ):
                if missing == path:
                    continue
                response = await alice.ask(METHODS[name], missing, body)
                if code == 41:
                    assert number(response) == REFUSED, missing
                elif name == "get_topics":
                    assert (response.status_code, response.json()) == (200, [])
                elif name in ("get_stream", "get_topic"):
                    assert number(response) == (404, 404), missing
                else:
                    assert number(response) == (404, code), (name, missing)


@pytest.mark.parametrize("how", ["logged out", "inactive", "deleted", "replaced"])
async def test_ended_tokens_and_tokens_of_former_users_get_401_everywhere(tmp_path: Path, how: str) -> None:
    """It uses the old access token and a personal one, also when a new user has the same id meanwhile."""

    async with started(tmp_path) as (world, alice):
        root = world.root
        await world.gateway.users.change_permissions("alice", ALL)
        raw = (await alice.post("/personal-access-tokens", {"name": "raw", "expiry": 0}))["token"]
        before = Caller(world.client, alice.token)
        assert await before.get("/users/me") == await Caller(world.client, raw).get("/users/me")
        match how:
            case "logged out":
                await alice.delete("/users/logout")
            case "inactive":
                await world.gateway.users.update("alice", None, UserStatus.INACTIVE)
            case _:
                await root.delete("/users/alice")
        if how == "replaced":
            made = await root.post("/users", CAROL | {"username": "alice", "password": "alicealice"})
            assert made["id"] == 1
        for token in (alice.token,) if how == "logged out" else (alice.token, raw):
            for name in ROUTES:
                assert number(await ask(Caller(world.client, token), name)) == (401, 40), name
            body = {"token": token}
            assert (await world.stranger.refused("POST", "/users/refresh-token", body))[0] == 401
        if how != "logged out":
            refused = await world.stranger.refused("POST", "/personal-access-tokens/login", {"token": raw})
            assert refused == (401, 53, None)
