"""A gateway on its own store, with cheap hashes and a clock that stands still unless a test advances it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from tests.storage.support.world import opened
from tests.support.clocks import Clock
from whippet.app.access.passwords import Cost, Passwords
from whippet.app.access.permissions import GlobalPermissions, Permissions
from whippet.app.access.personal_tokens import PersonalTokens
from whippet.app.access.throttle import Limits, Throttle
from whippet.app.access.users import Users
from whippet.app.commands import registry, requests
from whippet.app.config import Config
from whippet.app.errors import Code, CommandError
from whippet.app.gateway import Gateway
from whippet.app.model.identity import UserStatus
from whippet.app.model.sessions import Session, Transport
from whippet.storage.store import Store

CHEAP = Cost(memory_kib=8, passes=1)
ROOT = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "root's password"}
HOME = "10.0.0.1:5000"
SECOND = 1_000_000

NOBODY_WAITS = Limits(free_of_address=10_000, free_of_user=10_000)

LIMITS = Limits(
    free_of_address=3,
    free_of_user=3,
    free_where_known=2,
    first_wait_s=1.0,
    address_wait_max_s=16.0,
    user_wait_max_s=2.0,
    patience_s=8.0,
    forgiven_after_s=100.0,
)
"""Limits that are so low that a test can reach each of them."""


class Person:
    """A connection, and requests on it."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self.gateway = gateway
        self.ended = False
        self.session = Session(Transport.TCP, address, gateway.clock(), self._end)
        gateway.sessions.add(self.session)

    def _end(self) -> None:
        self.ended = True

    async def execute(self, request: requests.Request) -> Any:
        return await registry.execute(self.gateway, self.session, request)

    async def log_in(self, username: str, password: str) -> int:
        answer = await self.execute(requests.LoginUser(username, password))
        assert isinstance(answer.user_id, int)
        return answer.user_id


class World:
    def __init__(self, gateway: Gateway, store: Store, clock: Clock, passwords: Passwords) -> None:
        self.gateway = gateway
        self.store = store
        self.clock = clock
        self.passwords = passwords
        self._ports = 0

    def person(self, host: str = "10.0.0.1") -> Person:
        self._ports += 1
        return Person(self.gateway, f"{host}:{self._ports}")

    async def root(self) -> Person:
        person = self.person()
        await person.log_in(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"])
        return person

    async def user(
        self, name: str = "alice", *, status: UserStatus = UserStatus.ACTIVE, permissions: Permissions | None = None
    ) -> int:
        """Created by root; the password is the name twice."""
        details = await (await self.root()).execute(requests.CreateUser(name, name * 2, status, permissions))
        assert isinstance(details.info.id, int)
        return details.info.id

    async def logged_in(self, name: str = "alice") -> Person:
        person = self.person()
        await person.log_in(name, name * 2)
        return person


@contextlib.asynccontextmanager
async def world(
    path: object,
    *,
    environment: Mapping[str, str] = ROOT,
    default_root: bool = False,
    throttle: Throttle | None = None,
    tokens_max: int = 100,
    users_max: int = 2**32 - 1,
    settings: Config | None = None,
    **options: Any,
) -> AsyncIterator[World]:
    """`options` are the store's."""
    clock = Clock()
    async with opened(path, clock=clock, **options) as store:
        passwords = Passwords(CHEAP)
        gateway = await gateway_on(
            store,
            settings,
            environment=environment,
            default_root=default_root,
            passwords=passwords,
            throttle=throttle,
            tokens_max=tokens_max,
            users_max=users_max,
        )
        try:
            yield World(gateway, store, clock, passwords)
        finally:
            gateway.users.close()


async def gateway_on(
    store: Store,
    settings: Config | None = None,
    *,
    environment: Mapping[str, str] = ROOT,
    default_root: bool = False,
    passwords: Passwords | None = None,
    throttle: Throttle | None = None,
    tokens_max: int = 100,
    users_max: int = 2**32 - 1,
) -> Gateway:
    """Opens users with cheap password hashes, and without waits at logins. The caller has to close them."""
    users = await Users.open(
        store,
        environment,
        default_root,
        store.clock,
        passwords=passwords or Passwords(CHEAP),
        throttle=throttle or Throttle(NOBODY_WAITS),
        users_max=users_max,
    )
    await users.save_root()
    return Gateway(settings or Config(), store, users, PersonalTokens(store, tokens_max, store.clock), store.clock)


async def make_group(person: Person) -> None:
    """Stream s with topic t, of one partition, and its consumer group g."""
    await person.execute(requests.CreateStream("s"))
    topic = requests.CreateTopic(
        stream="s",
        name="t",
        partitions_count=1,
        compression_algorithm=1,
        message_expiry=0,
        max_topic_size=0,
        replication_factor=1,
    )
    await person.execute(topic)
    await person.execute(requests.CreateConsumerGroup("s", "t", "g"))


async def refusal(asked: Awaitable[object]) -> Code | None:
    """The error number of a refused call."""
    try:
        await asked
    except CommandError as error:
        return error.code
    return None


def refused(function: Callable[[], object]) -> Code | None:
    try:
        function()
    except CommandError as error:
        return error.code
    return None


def everywhere(**flags: bool) -> Permissions:
    return Permissions(GlobalPermissions(**flags))
