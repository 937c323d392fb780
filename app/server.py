"""The composition root: reads the configuration, opens the store, starts the listeners, and stops them all in reverse.

HTTP listens first, so that health checks can follow the recovery of the store; until then it serves nothing else. A
root user that this start creates is stored last: nothing that can fail comes between that and showing the password.

`whippet serve` calls `run` and exits with the code that it returns. This is the only module of app that knows the
transports; it connects the parts and has no behaviour that could belong to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import uvloop
from starlette.types import ASGIApp

from whippet.app import archiving, banner, current_config, open_files
from whippet.app.access.access_tokens import AccessTokens
from whippet.app.config import Config, ConfigError, Loaded, load, render
from whippet.app.config.engine import kafka_options
from whippet.app.config.formats import Address
from whippet.app.config.store import store_options
from whippet.app.encryption_keys import with_keys
from whippet.app.gateway import Gateway
from whippet.app.memory_tuning import freeze_live_objects
from whippet.app.model.sessions import Transport
from whippet.app.readiness import Readiness, Stage
from whippet.app.supervisor import Supervisor
from whippet.app.telemetry import logs
from whippet.app.telemetry.log_files import LogFiles
from whippet.app.telemetry.measurements import Measurements
from whippet.app.telemetry.otlp.exporter import require_packages
from whippet.app.telemetry.timed_files import TimedFiles
from whippet.storage import descriptors
from whippet.storage.engine import Engine
from whippet.storage.errors import StorageError
from whippet.storage.opening_progress import Progress
from whippet.storage.options import StoreOptions
from whippet.storage.store import Store, now_us
from whippet.transports.admission.budgets import Budgets
from whippet.transports.certificates import Renewals
from whippet.transports.http import application, routes
from whippet.transports.http.api import Api
from whippet.transports.http.serving import server as http_server
from whippet.transports.http.serving.assistants import Assistants, require_package
from whippet.transports.http.serving.server import HttpServer
from whippet.transports.http.serving.startup import startup_application
from whippet.transports.listening import ListenError
from whippet.transports.quic import QuicListener
from whippet.transports.tcp import TcpListener
from whippet.transports.websocket.listener import WebSockets, upgrade_required

if TYPE_CHECKING:
    from whippet.storage.archive.archiver import Archiver

logger = logging.getLogger(__name__)


class CannotStart(Exception):
    """Something outside prevents the start. The text is one line that names it."""


STOPPED = 0
FAILED = 1
MISCONFIGURED = 2


def run(
    environ: Mapping[str, str],
    cwd: str,
    *,
    default_root: bool = False,
    replica_id: int | None = None,
    restores: bool = False,
) -> int:
    """Serves until a signal stops it; returns the exit code of the process. `restores` lets an empty data folder
    continue from the archive."""
    try:
        loaded, warning = _fit_open_files(load(environ, cwd, replica_id))
        require_package(loaded.config.mcp)
        require_packages(loaded.config.telemetry)
        _require_kafka(loaded.config)
        options = store_options(loaded.config)
    except ConfigError as error:
        return _refuse(error, MISCONFIGURED)
    if restores and options.archive is None:
        reason = "--from-archive needs data_maintenance.archiver.enabled, and the settings of where the archive is"
        return _refuse(ConfigError(reason), MISCONFIGURED)
    log = loaded.config.system.logging
    log_files = logs.configure(log.level, log.format, to_files=log.file_enabled)
    for line in (*loaded.warnings, *([] if warning is None else [warning])):
        logger.warning("%s", line)
    for line in loaded.without_effect:
        logger.info("%s", line)
    if loaded.environment.get("IGGY_DISPLAY_CONFIG", "").strip().lower() in ("1", "true"):
        sys.stdout.write(render.toml(loaded))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            options = with_keys(options, loaded.config)
            supervisor = Supervisor(environ)
            runner.run(_serve(loaded, options, log_files, supervisor, default_root=default_root, restores=restores))
    except ConfigError as error:
        return _refuse(error, MISCONFIGURED)
    except (CannotStart, StorageError, ListenError) as error:
        return _refuse(error, FAILED)
    except Exception:
        logger.exception("Whippet was ended by an unexpected error; please report it")
        return FAILED
    finally:
        log_files.stop()
    return STOPPED


async def _serve(
    loaded: Loaded,
    options: StoreOptions,
    log_files: LogFiles,
    supervisor: Supervisor,
    *,
    default_root: bool,
    restores: bool,
) -> None:
    stopping = _stop_on_signals()
    readiness, measurements = Readiness(), Measurements()
    readiness.on_stage = supervisor.enter
    renewals = _renew_on_hangup(readiness)
    http = await _listen_on_http(loaded.config, readiness, renewals)
    try:
        if restores:
            await asyncio.to_thread(archiving.restore_if_empty, options)
        on_locked = partial(_start_log_files, log_files, loaded.config)
        opened = _running_store if loaded.config.engine.kind == "local" else _running_kafka
        async with opened(loaded.config, options, readiness, measurements, on_locked, stopping) as (engine, archiver):
            # A signal during recovery takes effect after it: recovery should finish what it has begun.
            if engine is not None and not stopping.is_set():
                gateway = await Gateway.open(loaded.config, engine, loaded.environment, default_root=default_root)
                gateway.readiness, gateway.measurements = readiness, measurements
                gateway.log_files = log_files
                gateway.use_archiver(archiver)
                gateway.open_audit()
                gateway.open_telemetry()
                gateway.config_text = render.toml(loaded)
                gateway.start_chores()
                freeze_live_objects()
                try:
                    await _listen(loaded, options, gateway, http, renewals, stopping)
                finally:
                    await gateway.close()
    finally:
        if http is not None:
            await http.stop()
        supervisor.close()
    logger.info("stopped")


def _require_kafka(config: Config) -> None:
    if config.engine.kind == "kafka" and importlib.util.find_spec("aiokafka") is None:
        raise ConfigError("engine.kind = kafka needs the extra kafka: pip install 'whippet-gateway[kafka]'")


async def _listen_on_http(config: Config, readiness: Readiness, renewals: Renewals) -> HttpServer | None:
    http = config.http
    if not http.enabled:
        return None
    tls = renewals.context(http.tls, "http.tls")
    return await http_server.start(
        startup_application(readiness), http.address, http.limits, config.system.limits.stop_time, tls
    )


def _start_log_files(log_files: LogFiles, config: Config) -> None:
    if not config.system.logging.file_enabled:
        return
    try:
        log_files.start(config.system.path, config.system.logging)
    except OSError as error:
        logger.warning("the log is not written to files: %s: %s", error.filename, error.strerror or error)


Running = tuple[Engine | None, "Archiver | None"]
"""The engine, or None if the stop came before it could be used, and what archives it."""


@contextlib.asynccontextmanager
async def _running_store(
    config: Config,
    options: StoreOptions,
    readiness: Readiness,
    measurements: Measurements,
    on_locked: Callable[[], None],
    stopping: asyncio.Event,
) -> AsyncIterator[Running]:
    store = await _open_store(options, readiness, measurements, on_locked)
    readiness.engine_problem = store.disk.summary
    try:
        async with archiving.running(store, options.archive, TimedFiles(measurements)) as archiver:
            yield store, archiver
        logger.info("closing the store: writing and syncing what is in memory")
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _running_kafka(
    config: Config,
    options: StoreOptions,
    readiness: Readiness,
    measurements: Measurements,
    on_locked: Callable[[], None],
    stopping: asyncio.Event,
) -> AsyncIterator[Running]:
    """Waits for the brokers, and no longer than for the signal to stop."""
    module = importlib.import_module("whippet.storage.kafka.engine")
    files = TimedFiles(measurements)
    readiness.awaited = "the brokers of Kafka"
    opening = asyncio.create_task(
        module.KafkaEngine.open(options, kafka_options(config), now_us, files=files, on_locked=on_locked)
    )
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([opening, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
    if opening.cancelled():
        yield None, None
        return
    try:
        engine = opening.result()
    except OSError as error:
        raise _unusable(options, error) from error
    readiness.engine_problem = engine.problem
    readiness.enter(Stage.STARTING)
    try:
        yield engine, None
        logger.info("closing the engine: waiting for the brokers")
    finally:
        await engine.close()


async def _open_store(
    options: StoreOptions, readiness: Readiness, measurements: Measurements, on_locked: Callable[[], None]
) -> Store:
    """`on_locked` is called on a thread as soon as the folder is locked."""

    def on_progress(recovery: Progress) -> None:
        readiness.recovery = recovery
        if recovery.opened:
            logger.info("%s", recovery)

    try:
        store = await Store.open(options, progress=on_progress, on_locked=on_locked, files=TimedFiles(measurements))
    except OSError as error:
        raise _unusable(options, error) from error
    readiness.enter(Stage.STARTING)
    return store


def _unusable(options: StoreOptions, error: OSError) -> CannotStart:
    what = error.filename or options.path
    return CannotStart(f"the data folder {options.path} cannot be used: {what}: {error.strerror or error}")


async def _listen(
    loaded: Loaded,
    options: StoreOptions,
    gateway: Gateway,
    http: HttpServer | None,
    renewals: Renewals,
    stopping: asyncio.Event,
) -> None:
    config = loaded.config
    listeners = Listeners(gateway, http, renewals)
    try:
        await listeners.open()
        await current_config.write(loaded, listeners.addresses)
        shown = {_shown(config, name): at for name, at in listeners.addresses.items()}
        # Nothing that can fail may come between storing a generated password and showing it.
        await gateway.users.save_root()
        gateway.readiness.enter(Stage.READY)
        banner.show(
            shown,
            options,
            *gateway.users.root_sign_in,
            has_dashboard=application.is_shown(config),
            engine=gateway.store.lines,
        )
        await _until_stop_or_failure(stopping, listeners.serving)
        logger.info("stopping: no new connections; requests in progress are finished")
    finally:
        await listeners.stop()


class Listeners:
    """Opens the configured listeners on a gateway, and stops them. `http` is listening already, if it is enabled."""

    def __init__(self, gateway: Gateway, http: HttpServer | None, renewals: Renewals) -> None:
        self.addresses: dict[str, Address] = {}
        """Keyed by section of the configuration."""
        self._config = gateway.config
        self._gateway = gateway
        self._http = http
        self._renewals = renewals
        self._budgets = Budgets(gateway.config)
        self._api: Api | None = None
        self._assistants: Assistants | None = None
        self._http_servers = [] if http is None else [http]
        self._listeners: list[TcpListener | QuicListener | WebSockets] = []

    @property
    def serving(self) -> list[asyncio.Task[None]]:
        return [each.serving for each in self._http_servers]

    async def open(self) -> None:
        config = self._config
        if config.http.enabled or config.metrics.enabled or config.websocket.address is not None:
            await self._open_api()
        if config.tcp.enabled:
            await self._open_tcp()
        if config.quic.enabled:
            await self._open_quic()
        if config.websocket.enabled:
            await self._open_websockets()

    async def stop(self) -> None:
        self._gateway.readiness.enter(Stage.STOPPING)
        if self._api is not None:
            self._api.drain()
        endings = [each.stop() for each in self._http_servers]
        endings += [each.stop(self._config.system.limits.stop_time) for each in self._listeners]
        await asyncio.gather(*endings)
        if self._assistants is not None:
            await self._assistants.close()
        if self._api is not None:
            await self._api.close()

    async def _open_api(self) -> None:
        config, gateway, http = self._config, self._gateway, self._http
        tokens = await AccessTokens.open(config.http.jwt, config.system.path, gateway.users, gateway.clock)
        api = self._api = Api(gateway, tokens, self._budgets)
        if http is not None:
            operations = routes.OPERATIONS
            if config.mcp.enabled:
                self._assistants = await Assistants.open(config.mcp, config.http)
                operations = (*operations, self._assistants.operation)
            http.listener.application = application.Application(api, operations)
            http.listener.budgets = self._budgets
            self.addresses["http"] = http.address
            gateway.addresses.http = http.address.port
            gateway.connections[Transport.HTTP] = http.listener.connections.__len__
        if config.metrics.enabled:
            only_metrics = application.Application(api, application.METRICS, config.metrics.endpoint)
            metrics = await self._start_http(only_metrics, config.metrics.endpoint, "metrics.endpoint")
            self.addresses["metrics"] = metrics.address

    async def _open_tcp(self) -> None:
        config, gateway = self._config, self._gateway
        tcp = TcpListener(gateway, self._budgets)
        self._listeners.append(tcp)
        tls = self._renewals.context(config.tcp.tls, "tcp.tls", config.system.path)
        await tcp.listen(config.tcp.address, "tcp.address", tls)
        self.addresses["tcp"] = tcp.address
        gateway.addresses.tcp, gateway.addresses.host = tcp.address.port, tcp.address.host
        gateway.connections[Transport.TCP] = tcp.count_connections

    async def _open_quic(self) -> None:
        config, gateway, http = self._config, self._gateway, self._http
        over_http = () if http is None else (http.listener.application, http.listener)
        quic = QuicListener(gateway, self._budgets, *over_http)
        self._listeners.append(quic)
        await quic.listen(config.quic.address, "quic.address", config.system.path)
        self._renewals.add("quic.certificate", quic.renew)
        self.addresses["quic"] = quic.address
        gateway.addresses.quic = quic.address.port
        gateway.connections[Transport.QUIC] = quic.count_connections
        if http is not None:
            http.announce_http3(quic.address.port)

    async def _open_websockets(self) -> None:
        """Shares the HTTP listener, and has one of its own if an address is set, which is the one reported then."""
        config, gateway, http = self._config, self._gateway, self._http
        address, at = config.websocket.address, http
        if http is not None and address == config.http.address:
            address = None
        if http is None and address is None:
            return
        websockets = WebSockets(gateway, self._budgets, self._api)
        if address is not None:
            tls = self._renewals.context(config.websocket.tls, "websocket.tls", config.system.path)
            at = await self._start_http(upgrade_required, address, "websocket.address", tls)
            at.listener.websockets = websockets
        if http is not None:
            http.listener.websockets = websockets
        assert at is not None
        self.addresses["websocket"] = at.address
        gateway.addresses.websocket = at.address.port
        gateway.connections[Transport.WEBSOCKET] = websockets.count_connections
        self._listeners.append(websockets)

    async def _start_http(
        self, app: ASGIApp, address: Address, setting: str, tls: ssl.SSLContext | None = None
    ) -> HttpServer:
        limits, stop_time = self._config.http.limits, self._config.system.limits.stop_time
        server = await http_server.start(app, address, limits, stop_time, tls, setting=setting)
        self._http_servers.append(server)
        return server


def _shown(config: Config, name: str) -> str:
    if name == "websocket":
        shared = config.websocket.address in {None, config.http.address} and config.http.enabled
        return "wss" if (config.http.tls.enabled if shared else config.websocket.tls.enabled) else "ws"
    return "https" if name == "http" and config.http.tls.enabled else name


async def _until_stop_or_failure(stopping: asyncio.Event, serving: list[asyncio.Task[None]]) -> None:
    stopped = asyncio.create_task(stopping.wait(), name="until a signal")
    try:
        await asyncio.wait([stopped, *serving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    for task in serving:
        if task.done():
            await task
            raise RuntimeError(f"the {task.get_name()} listener has ended unexpectedly")


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()

    def on_signal(name: str) -> None:
        if stopping.is_set():
            logger.warning("%s again: stopping at once; what is only in memory is lost", name)
            # Nothing else is sure to be immediate: a thread may be inside a disk call that does not return.
            os._exit(FAILED)
        logger.info("%s: stopping; a second signal stops at once", name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number.name)
    return stopping


def _renew_on_hangup(readiness: Readiness) -> Renewals:
    renewals = Renewals(readiness.certificates)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, renewals.renew)
    return renewals


def _fit_open_files(loaded: Loaded) -> tuple[Loaded, str | None]:
    """Raises the limit of open files, because connections and segments are files; the usual soft limit, 1024, exists
    for programs that use select. Returns a warning for the log, too."""
    try:
        allowed = descriptors.reserve()
    except (ValueError, OSError) as error:
        return loaded, f"the limit of open files stays as it is: {error}"
    config, warning = open_files.fit_limits(loaded.config, allowed)
    return msgspec.structs.replace(loaded, config=config), warning


def _refuse(error: Exception, code: int) -> int:
    sys.stderr.write(f"whippet: {error}\n")
    return code
