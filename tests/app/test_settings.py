"""Settings whose effect no other test shows; config/test_config_effects.py lists where the effect of each is shown."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.app.access.support.access_tokens import CONFIG as JWT
from tests.app.access.support.access_tokens import token_world
from tests.app.access.support.world import CHEAP, ROOT, SECOND, world
from tests.app.commands.support.members import two_members_and_a_promise
from tests.app.commands.support.reading import payloads, reading
from tests.app.support.process import Start, starting
from tests.app.support.routes import SLOW_ROUTE
from tests.storage.support.world import opened, texts, with_topic
from tests.transports.http.support.calling import calling
from tests.transports.http.support.leasing import world as leasing
from tests.transports.support.quic import served as quic_served
from tests.transports.support.raw import OK, frame, served
from tests.transports.wire.classic.support.plainly import TO_PARTITION_10, Classic, parse, send_body
from whippet.app import housekeeping
from whippet.app.access import passwords
from whippet.app.commands import groups, requests
from whippet.app.config import Config, load
from whippet.app.config.formats import Address
from whippet.app.config.listeners import Http, HttpCors, HttpReaders, QuicSocket, Tcp
from whippet.app.config.schema import ConsumerGroup
from whippet.app.config.store import store_options
from whippet.app.errors import CommandError
from whippet.app.gateway import Gateway
from whippet.app.model.sessions import Session, Transport
from whippet.storage.documents import StreamDocument
from whippet.storage.files import Files
from whippet.storage.handles import IndexCache
from whippet.storage.options import MIB, Durability, StoreOptions
from whippet.storage.shard import Shard
from whippet.storage.store import Store
from whippet.transports import certificates, datagrams
from whippet.transports.admission.budgets import Budgets

CHORES = {
    "data_maintenance.messages.cleaner_enabled": ("false", "apply_retention", None),
    "data_maintenance.messages.interval": ("7 s", "apply_retention", 7.0),
    "heartbeat.enabled": ("true", "evict_silent_clients", 5.0),
    "personal_access_token.cleaner.enabled": ("false", "remove_expired_tokens", None),
    "personal_access_token.cleaner.interval": ("7 s", "remove_expired_tokens", 7.0),
    "consumer_group.rebalancing_check_interval": ("7 s", "reassign_overdue_partitions", 7.0),
    "system.logging.sysinfo_print_interval": ("7 s", "report_system", 7.0),
    "system.logging.rotation_check_interval": ("7 s", "tidy_log_files", 7.0),
    "system.logging.file_enabled": ("false", "tidy_log_files", None),
    "system.limits.session_memory": ("7 s", "expire_sessions", 7.0),
}
"""A key, a value, and the chore with the interval that follows; None: it does not run."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data") as start_one:
        yield start_one


def configured(**variables: str) -> Config:
    return load(variables, "/").config


@pytest.mark.parametrize("key", CHORES)
async def test_chores_run_at_their_configured_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    value, chore, interval = CHORES[key]
    intervals: dict[str, float] = {}

    async def note(_: Gateway, one: Callable[[Gateway], Awaitable[None]], seconds: float) -> None:
        intervals[one.__name__] = seconds

    monkeypatch.setattr(housekeeping, "_regularly", note)
    settings = configured(**{"IGGY_" + key.replace(".", "_").upper(): value})
    async with world(tmp_path, settings=settings) as made:
        await asyncio.gather(*housekeeping.start(made.gateway))
    assert intervals.get(chore) == interval


@pytest.mark.parametrize("interval", [5.0, 50.0])
async def test_silent_clients_are_evicted_after_the_configured_interval(tmp_path: Path, interval: float) -> None:
    settings = configured(IGGY_HEARTBEAT_ENABLED="true", IGGY_HEARTBEAT_INTERVAL=f"{int(interval)} s")
    async with world(tmp_path, settings=settings) as made:
        session = Session(Transport.TCP, "10.0.0.1:1", made.clock(), lambda: None)
        session.groups.add((0, 0, 0))
        made.gateway.sessions.add(session)
        made.clock.now += int(1.2 * interval * SECOND)
        await housekeeping.evict_silent_clients(made.gateway)
        assert len(made.gateway.sessions) == 1
        made.clock.now += 1
        await housekeeping.evict_silent_clients(made.gateway)
        assert len(made.gateway.sessions) == 0


async def test_a_member_has_the_configured_time_to_commit(tmp_path: Path) -> None:
    async with reading(tmp_path) as made:
        group = ConsumerGroup(rebalancing_timeout=7.0)
        made.gateway.config = msgspec.structs.replace(made.gateway.config, consumer_group=group)
        await made.fill()
        anne, bert = await made.readers(2)
        await two_members_and_a_promise(anne, bert)
        made.clock.now += 7 * SECOND
        groups.reassign_overdue(made.gateway, made.clock.now)
        assert await made.owned() == [[0, 1], [2]]
        assert payloads(await bert.poll())[0] == "2/0"


async def test_a_user_has_at_most_the_configured_number_of_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "Cost", lambda: CHEAP)
    config = configured(IGGY_PERSONAL_ACCESS_TOKEN_MAX_TOKENS_PER_USER="1")
    async with opened(tmp_path) as store:
        gateway = await Gateway.open(config, store, ROOT)
        try:
            await gateway.personal_tokens.create(gateway.users.root, "first", 0)
            with pytest.raises(CommandError, match=r"personal access tokens: 1: .+max_tokens_per_user"):
                await gateway.personal_tokens.create(gateway.users.root, "second", 0)
        finally:
            await gateway.close()


@pytest.mark.parametrize("claims", [{"valid_issuers": ("somebody",)}, {"valid_audiences": ("somebody",)}])
async def test_only_configured_issuers_and_audiences_are_trusted(
    tmp_path: Path, claims: dict[str, tuple[str, ...]]
) -> None:
    async with token_world(tmp_path, JWT) as made:
        token = made.give()
        assert await made.user_of(token) == "root"
        made.tokens = await made.reopened(msgspec.structs.replace(JWT, **claims))
        assert await made.user_of(token) is None
        own = {"valid_issuers": "issuer", "valid_audiences": "audience"}
        ((key, (name,)),) = claims.items()
        made.tokens = await made.reopened(msgspec.structs.replace(JWT, **claims, **{own[key]: name}))
        assert await made.user_of(made.give()) == "root"


async def test_a_ticket_has_the_configured_lifetime(tmp_path: Path) -> None:
    async with calling(tmp_path, Http(readers=HttpReaders(ticket_time=7.0))) as made:
        for waited, is_good in ((7 * SECOND, True), (7 * SECOND + 1, False)):
            text, _ = made.api.tickets.issue(b"Bearer x", "mark")
            made.world.clock.now += waited
            assert (made.api.tickets.redeem(text) is not None) is is_good


async def test_cors_headers_follow_the_configuration(tmp_path: Path) -> None:
    cors = HttpCors(
        allowed_origins=("https://ui.example",),
        allowed_methods=("GET", "PATCH"),
        allowed_headers=("x-one", "x-two"),
        exposed_headers=("x-three",),
    )
    async with calling(tmp_path, Http(cors=cors)) as made:
        origin = {"origin": "https://ui.example"}
        asked = origin | {"access-control-request-method": "PATCH"}
        preflight = (await made.client.request("OPTIONS", "/streams", headers=asked)).headers
        assert preflight["access-control-allow-methods"] == "GET,PATCH"
        assert preflight["access-control-allow-headers"] == "x-one,x-two"
        assert (await made.client.get("/ping", headers=origin)).headers["access-control-expose-headers"] == "x-three"


@pytest.mark.parametrize(("message_header", "size"), [("56", 56), ("64", 64)])
async def test_messages_have_the_configured_header_for_every_client(
    tmp_path: Path, message_header: Any, size: int
) -> None:
    async with served(tmp_path, tcp=Tcp(message_header=message_header)) as made:
        client = await made.root()
        for request in (requests.CreateStream("s"), requests.CreateTopic("s", "t", 11)):
            assert (await client.ask(request))[0] == 0
        await client.send(frame(101, send_body([Classic(0, 0, 0, 0, b"payload")], size, TO_PARTITION_10)))
        assert await client.answer() == OK
        me = requests.Consumer(requests.ConsumerKind.CONSUMER, 1)
        whole = requests.Strategy(requests.StrategyKind.FIRST)
        status, body = await client.ask(requests.PollMessages(me, 0, 0, 10, whole, 1, False))
        assert status == 0
        assert [message.payload for message in parse(body[16:], size)] == [b"payload"]


async def test_quic_clients_get_the_configured_transport_parameters(tmp_path: Path) -> None:
    wanted = {"receive_window": 300_000, "stream_receive_window": 90_000, "initial_mtu": 1_300}
    async with quic_served(tmp_path, quic=wanted) as made:
        client = await made.root()
        assert client.quic._remote_max_stream_data_bidi_remote == 90_000
        assert client.quic._remote_max_data == 300_000
        rules = made.listener._rules
        assert rules is not None
        assert rules.initial_datagram_bytes == 1_300


@pytest.mark.parametrize(("interval", "pings"), [(30.0, 1), (50.0, 0), (0.0, 0)])
async def test_a_silent_quic_client_is_pinged_at_the_configured_interval(
    tmp_path: Path, interval: float, pings: int
) -> None:
    quic = {"keep_alive_interval": interval, "max_idle_timeout": 0.0}
    async with quic_served(tmp_path, quic=quic) as made:
        await made.root()
        (connection,) = made.listener._connections
        sent: list[int] = []
        connection.engine.send_ping = sent.append  # type: ignore[method-assign,assignment]
        made.listener.close_overdue(connection._sent_at + 40)
        assert len(sent) == pings


async def test_the_saver_writes_and_syncs_at_the_configured_interval(tmp_path: Path) -> None:
    buffered: dict[str, Any] = {"durability": Durability.MEMORY, "messages_required_to_save": 1000}
    async with opened(tmp_path, saver_interval_s=0.001, **buffered) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("a"))
        await partition.until(0, Durability.SYNCED)
    async with opened(tmp_path, saver_interval_s=0.001, saver_syncs=False, **buffered) as store:
        (partition,) = await with_topic(store)
        await partition.append(texts("b"))
        await partition.until(1, Durability.WRITTEN)
        assert partition.synced == 1


@pytest.mark.parametrize("catalog_syncs", [True, False])
async def test_changes_of_the_catalogue_are_synced_if_configured(tmp_path: Path, catalog_syncs: bool) -> None:
    class Counting(Files):
        syncs = 0

        def sync(self, handle: int) -> None:
            self.syncs += 1
            super().sync(handle)

    disk = Counting()
    async with opened(tmp_path, files=disk, catalog_syncs=catalog_syncs) as store:
        before = disk.syncs
        await store.create_stream(StreamDocument(id=0, name="s", created_at=1))
        assert (disk.syncs > before) is catalog_syncs


@pytest.mark.parametrize(("index_cache", "budget"), [("all", float("inf")), ("open_segment", 500.0), ("none", 0.0)])
async def test_indexes_are_cached_within_the_configured_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index_cache: Any, budget: float
) -> None:
    budgets: list[float] = []
    begin = IndexCache.__init__

    def noting(cache: IndexCache, budget_bytes: float) -> None:
        budgets.append(budget_bytes)
        begin(cache, budget_bytes)

    monkeypatch.setattr(IndexCache, "__init__", noting)
    options = StoreOptions(path=str(tmp_path), shards=2, index_cache=index_cache, index_cache_bytes=1000)
    shard = Shard(0, Files(), options, asyncio.get_running_loop())
    await shard.stop()
    assert budgets == [budget]


def test_a_stop_waits_for_requests_in_progress_for_the_configured_time(start: Start) -> None:
    gateway = start(SLOW_ROUTE, IGGY_SYSTEM_LIMITS_STOP_TIME="10 ms")
    with gateway.connect() as client:
        client.sendall(b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
        gateway.line("request in progress")
        gateway.signal(signal.SIGTERM)
        # The default is longer than this test waits.
        assert gateway.end() == 0


def test_files_of_the_process_are_in_the_configured_folders(start: Start, tmp_path: Path) -> None:
    gateway = start(IGGY_SYSTEM_RUNTIME_PATH="running", IGGY_SYSTEM_LOGGING_PATH="other_logs")
    address = gateway.address()
    gateway.line("stop  ")
    written = tomllib.loads((tmp_path / "data/running/current_config.toml").read_text())
    assert address.startswith(written["http"]["address"])
    assert (tmp_path / "data/other_logs/iggy-server.log").exists()


def test_websocket_at_its_own_address_has_the_configured_certificate(start: Start, tmp_path: Path) -> None:
    pair = certificates.self_signed()
    (tmp_path / "c.pem").write_bytes(pair.certificate)
    (tmp_path / "k.pem").write_bytes(pair.key)
    own = {"IGGY_WEBSOCKET_ADDRESS": "localhost:0", "IGGY_WEBSOCKET_TLS_ENABLED": "true"}
    files = {
        "IGGY_WEBSOCKET_TLS_CERT_FILE": str(tmp_path / "c.pem"),
        "IGGY_WEBSOCKET_TLS_KEY_FILE": str(tmp_path / "k.pem"),
    }
    gateway = start(**own, **files)
    host, port = gateway.line(r"wss://([\d.]+):(\d+)").groups()
    trusting = ssl.create_default_context(cadata=pair.certificate.decode())
    with socket.create_connection((host, int(port))) as link, trusting.wrap_socket(link, server_hostname="localhost"):
        pass
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    missing = start(**own, IGGY_WEBSOCKET_TLS_SELF_SIGNED="false", IGGY_WEBSOCKET_TLS_CERT_FILE="missing.pem")
    assert missing.end() == 2
    assert "websocket.tls: missing.pem is missing" in missing.refusal()


async def test_without_a_saver_buffered_messages_wait_for_other_writes(tmp_path: Path) -> None:
    options = store_options(configured(IGGY_MESSAGE_SAVER_ENABLED="false", IGGY_SYSTEM_PATH=str(tmp_path)))
    store = await Store.open(options)
    assert store._saver is None
    await store.close()


async def test_the_configured_number_of_segment_files_stays_open(tmp_path: Path) -> None:
    options = msgspec.structs.replace(store_options(configured(IGGY_SYSTEM_LIMITS_OPEN_FILES="20")), shards=2)
    shard = Shard(0, Files(), options, asyncio.get_running_loop())
    for number in range(30):
        await shard.call(partial(shard.handles.writing, f"{tmp_path}/{number}"))
    assert len(shard.handles) == 10
    await shard.stop()


async def test_the_configured_clock_skew_applies_to_this_servers_tokens(tmp_path: Path) -> None:
    async with token_world(
        tmp_path, msgspec.structs.replace(JWT, clock_skew=50.0, access_token_expiry=10 * SECOND)
    ) as made:
        token = made.give()
        made.clock.now += 59 * SECOND
        assert await made.user_of(token) == "root"
        made.clock.now += 2 * SECOND
        assert await made.user_of(token) is None


async def test_a_tcp_request_has_the_configured_time(tmp_path: Path) -> None:
    async with served(tmp_path, frame_time=7.0) as made:
        client = await made.root()
        await client.send(frame(101, bytes(100))[:20])
        (connection,) = made.listener._connections
        while connection.overdue(time.monotonic() + 8.0) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert connection.overdue(time.monotonic() + 6.0) is None


def test_budgets_have_the_configured_sizes() -> None:
    budgets = Budgets(configured(IGGY_SYSTEM_LIMITS_UNAUTHENTICATED_BYTES="4 MiB"))
    assert budgets.unauthenticated.limit == 4 * MIB


@pytest.mark.parametrize("keepalive", [True, False])
async def test_quic_connections_are_kept_alive_if_configured(keepalive: bool) -> None:
    wanted = QuicSocket(override_defaults=True, keepalive=keepalive)
    with await datagrams.bind(Address("127.0.0.1", 0), "quic.address", wanted) as link:
        assert bool(link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is keepalive


def test_tcp_listens_at_the_configured_address(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = start(IGGY_TCP_ADDRESS=f"127.0.0.1:{port}")
    gateway.line("stop  ")
    socket.create_connection(("127.0.0.1", port)).close()


async def test_a_lease_without_an_expiry_lasts_for_the_configured_time(tmp_path: Path) -> None:
    async with leasing(tmp_path, expiry=7.0) as made:
        assert (await made.lease()).lease["expiry"] == 7 * SECOND
