"""The whole process as its users start and stop it: a child per test, controlled by signals, observed through its
output."""

from __future__ import annotations

import re
import signal
import socket
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.support.process import DEADLINE_S, Gateway, Start, starting
from tests.app.support.routes import SLOW_ROUTE
from whippet.storage import descriptors

BROKEN_ROUTE = """
from whippet.transports.http import routes

async def broken(call):
    raise RuntimeError("nobody thought of this")

routes.OPERATIONS += (
    routes.Operation(
        name="broken", method="GET", path="/broken", summary="Fails", subject="", handler=broken, public=True
    ),
)
"""

SLOW_OPENING = """
import asyncio, sys
from whippet.storage.store import Store

open_store = Store.open

async def slow(options, progress=None, **others):
    print("opening", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return await open_store(options, progress, **others)

Store.open = slow
"""

BROKEN_OPENING = """
from whippet.storage.store import Store

async def broken(options, progress=None, **others):
    raise RuntimeError("nobody thought of this")

Store.open = broken
"""

BROKEN_CLOSING = """
from whippet.storage.errors import StorageError
from whippet.storage.store import Store

async def full(store):
    raise StorageError("streams/1: the disk is full")

Store.close = full
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    with starting(folder) as start_one:
        yield start_one


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_answers_ping_stops_on_a_signal_and_starts_again(start: Start, number: signal.Signals) -> None:
    for _ in range(2):
        gateway = start(fresh=True)
        assert gateway.ping() == "pong"
        gateway.signal(number)
        assert gateway.end() == 0, str(gateway)
        assert "Traceback" not in str(gateway)


def test_a_gateway_starts_after_a_kill(start: Start) -> None:
    killed = start()
    killed.address()
    killed.signal(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    assert start().ping() == "pong"


def test_a_request_in_progress_is_finished_while_new_connections_are_refused(start: Start) -> None:
    gateway = start(SLOW_ROUTE)
    with gateway.connect() as client:
        client.sendall(b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
        gateway.line("request in progress")
        gateway.signal(signal.SIGTERM)
        gateway.line("no new connections")
        until_refused(gateway)
        client.sendall(b"whole")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\nwhole")
    assert gateway.end() == 0


def until_refused(gateway: Gateway) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            gateway.connect().close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # it was in the queue of the listener when that closed
    pytest.fail(f"still accepts connections after {DEADLINE_S} s")


def test_an_idle_connection_does_not_delay_the_stop(start: Start) -> None:
    gateway = start()
    with httpx.Client(trust_env=False) as kept_alive, gateway.connect():
        assert kept_alive.get(f"http://{gateway.address()}/ping").text == "pong"
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0


def test_a_second_signal_stops_immediately_with_exit_code_1(start: Start) -> None:
    gateway = start(SLOW_ROUTE)
    with gateway.connect() as client:
        client.sendall(b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n")
        gateway.line("request in progress")
        gateway.signal(signal.SIGTERM)
        gateway.line("no new connections")
        gateway.signal(signal.SIGINT)
        assert gateway.end() == 1


def test_a_signal_while_the_store_opens_stops_once_it_is_open(start: Start) -> None:
    gateway = start(SLOW_OPENING)
    gateway.line("opening")
    gateway.signal(signal.SIGTERM)
    gateway.line("SIGTERM: stopping")
    assert gateway.process.stdin
    gateway.process.stdin.write("\n")
    gateway.process.stdin.flush()
    assert gateway.end() == 0
    assert gateway.out == ["opening"]


def test_a_second_gateway_on_the_same_folder_is_refused(start: Start, folder: Path) -> None:
    first = start()
    first.address()
    second = start()
    assert second.end() == 1
    assert str(folder) in second.refusal()
    assert first.ping() == "pong"


def test_an_address_in_use_is_refused_in_one_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        gateway = start(IGGY_HTTP_ADDRESS=address)
        assert gateway.end() == 1
    assert address in gateway.refusal()
    assert "http.address" in gateway.refusal()
    assert "in use" in gateway.refusal()


@pytest.mark.parametrize("transport", ["TCP", "WEBSOCKET"])
def test_a_start_that_fails_creates_no_root_user_whose_password_nobody_saw(
    start: Start, folder: Path, transport: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        refused = start(**{f"IGGY_{transport}_ADDRESS": address})
        assert refused.end() == 1
    assert "in use" in refused.refusal()
    assert list((folder / "users").iterdir()) == []
    first = start()
    password = first.line(r"sign in +user iggy, password (\w{20,}) \(generated now").group(1)
    with httpx.Client(base_url=f"http://{first.address()}", trust_env=False) as client:
        log_in(client, "iggy", password)
    first.signal(signal.SIGTERM)
    assert first.end() == 0
    again = start()
    assert again.line(r"sign in +(.*)").group(1).startswith("user iggy; if the password is lost")
    with httpx.Client(base_url=f"http://{again.address()}", trust_env=False) as client:
        log_in(client, "iggy", password)


def test_a_password_is_shown_on_stderr_where_stdout_is_closed(start: Start) -> None:
    gateway = start("import os; os.close(1); os.open('/dev/full', os.O_WRONLY);")
    assert gateway.line("password (\\w{20,}) ")
    assert gateway.out == []


def test_an_invalid_setting_exits_with_code_2_and_one_line(start: Start) -> None:
    gateway = start(IGGY_SYSTEM_SEGMENT_SIZE="banana")
    assert gateway.end() == 2
    assert "banana" in gateway.refusal()
    assert gateway.err == [gateway.refusal()]


def test_an_unusable_data_folder_is_refused_in_one_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    gateway = start(IGGY_SYSTEM_PATH=str(tmp_path / "file" / "data"))
    assert gateway.end() == 1
    assert str(tmp_path / "file") in gateway.refusal()


def test_a_stop_that_could_not_write_everything_exits_with_1(start: Start) -> None:
    gateway = start(BROKEN_CLOSING)
    gateway.address()
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 1
    assert gateway.err[-1] == "whippet: streams/1: the disk is full"
    assert "Traceback" not in str(gateway)


def test_an_unexpected_error_is_logged_once_with_its_traceback(start: Start) -> None:
    gateway = start(BROKEN_OPENING)
    assert gateway.end() == 1
    assert gateway.err.count("Traceback (most recent call last):") == 1
    assert gateway.err.count("RuntimeError: nobody thought of this") == 1


def test_a_defect_in_a_handler_is_logged_once_and_the_server_continues(start: Start) -> None:
    gateway = start(BROKEN_ROUTE)
    assert gateway.get("/broken").status_code == 500
    assert gateway.ping() == "pong"
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    assert gateway.err.count("RuntimeError: nobody thought of this") == 1


def test_an_unsupported_setting_is_refused_before_anything_is_touched(start: Start, folder: Path) -> None:
    setting = "IGGY_DATA_MAINTENANCE_STATE_ARCHIVER_ENABLED"
    gateway = start(**{setting: "true"})
    assert gateway.end() == 2
    assert f"{setting}: " in gateway.refusal()
    assert "is not supported" in gateway.refusal()
    assert not folder.exists()


def test_a_wrong_or_missing_key_is_one_clear_line(start: Start) -> None:
    key, other = ("A" * 43 + "=", "B" * 42 + "A=")
    gateway = start(IGGY_SYSTEM_ENCRYPTION_ENABLED="true", IGGY_SYSTEM_ENCRYPTION_KEY=key)
    assert gateway.ping() == "pong"
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    for settings in (
        {"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true"},
        {"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true", "IGGY_SYSTEM_ENCRYPTION_KEY": "too short"},
        {"IGGY_SYSTEM_ENCRYPTION_ENABLED": "true", "IGGY_SYSTEM_ENCRYPTION_KEY": other},
        {},
    ):
        gateway = start(**settings)
        assert gateway.end() == 1
        assert "system.encryption.key" in gateway.refusal()
        assert not [line for line in gateway.err if "Traceback" in line or other in line]
    gateway = start(IGGY_SYSTEM_ENCRYPTION_KEY=key)
    assert gateway.ping() == "pong"


def test_a_setting_without_effect_is_logged_once(start: Start) -> None:
    gateway = start(IGGY_TCP_SOCKET_MIGRATION="true", IGGY_SYSTEM_MEMORY_POOL_SIZE="1 GiB")
    assert gateway.ping() == "pong"
    for setting, key in (
        ("IGGY_TCP_SOCKET_MIGRATION", "tcp.socket_migration"),
        ("IGGY_SYSTEM_MEMORY_POOL_SIZE", "system.memory_pool.size"),
    ):
        assert len([line for line in gateway.err if f"{setting}: {key} has no effect: " in line]) == 1


def test_the_bound_address_is_written_where_iggys_tools_look(start: Start, folder: Path) -> None:
    gateway = start()
    address = gateway.address()
    written = tomllib.loads((folder / "runtime" / "current_config.toml").read_text())
    assert written["http"]["address"] == address
    assert written["system"]["path"] == str(folder)


def test_an_unwritable_runtime_folder_does_not_prevent_a_start(start: Start, folder: Path) -> None:
    folder.mkdir()
    (folder / "runtime").touch()
    gateway = start()
    assert gateway.ping() == "pong"
    gateway.line("current_config.toml was not written: ")


def test_the_banner_shows_the_data_folder_and_the_durability_level(start: Start, folder: Path) -> None:
    gateway = start(IGGY_SYSTEM_PARTITION_ENFORCE_FSYNC="true")
    gateway.line(r"stop  ")
    assert re.search(rf"data +{re.escape(str(folder))}$", gateway.line(r"data  .*").string)
    assert "power failure" in gateway.line(r"durability +synced: ").string


def test_the_configuration_is_printed_on_request_without_secrets(start: Start) -> None:
    gateway = start(IGGY_DISPLAY_CONFIG="1", IGGY_HTTP_JWT_ENCODING_SECRET="a-known-secret-of-more-than-32-bytes")
    gateway.line(r"stop  ")
    gateway.line(r"^encoding_secret += ")
    assert "a-known-secret-of-more-than-32-bytes" not in str(gateway)


def test_a_gateway_without_listeners_warns_and_can_be_stopped(start: Start) -> None:
    gateway = start(IGGY_HTTP_ENABLED="false", IGGY_TCP_ENABLED="false", IGGY_QUIC_ENABLED="false")
    gateway.line("every transport is disabled")
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0


def test_successful_requests_are_not_logged(start: Start) -> None:
    gateway = start()
    gateway.ping()
    with gateway.connect() as client:
        client.sendall(b"not HTTP at all\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    assert not [line for line in gateway.err if "/ping" in line or "uvicorn" in line]


def test_the_log_is_also_written_to_a_file_in_the_data_folder(start: Start, folder: Path) -> None:
    gateway = start(IGGY_SYSTEM_MEMORY_POOL_SIZE="1 GiB", IGGY_SYSTEM_LOGGING_SYSINFO_PRINT_INTERVAL="1 ms")
    gateway.line(r"system: \d+ of \d+ MiB memory .*, connections: 0 http, 0 tcp, 0 quic, 0 websocket")
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    written = (folder / "logs" / "iggy-server.log").read_text().splitlines()
    assert written == gateway.err
    assert any("system.memory_pool.size has no effect" in line for line in written), "from before the folder was open"
    assert written[-1].endswith("stopped")


def test_log_files_can_be_disabled_and_a_refused_start_writes_none(start: Start, folder: Path) -> None:
    first = start(IGGY_SYSTEM_LOGGING_FILE_ENABLED="false")
    first.address()
    assert start().end() == 1
    assert not (folder / "logs").exists()


def test_an_unwritable_log_folder_does_not_prevent_a_start(start: Start, folder: Path) -> None:
    folder.mkdir()
    (folder / "logs").touch()
    gateway = start()
    assert gateway.ping() == "pong"
    gateway.line("the log is not written to files: ")


def test_a_corrupt_document_affects_only_what_it_describes(start: Start, folder: Path) -> None:
    root = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "root's password"}
    gateway = start(**root)
    with httpx.Client(trust_env=False, base_url=f"http://{gateway.address()}") as client:
        log_in(client, "root", "root's password")
        for name in ("alice", "bob"):
            user = {"username": name, "password": name * 2, "status": "active", "permissions": None}
            client.post("/users", json=user).raise_for_status()
            token = client.post("/personal-access-tokens", json={"name": f"of {name}", "expiry": 0}).raise_for_status()
        bobs_token = token.json()["token"]
        client.delete("/users/logout").raise_for_status()
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0
    (folder / "runtime" / "returning_clients.json").write_text('["10.0.0.1 somebody"]')
    paths = ["users/1.json", "tokens/0.json", "runtime/returning_clients.json"]
    for path in paths:
        content = (folder / path).read_bytes()
        middle = content.index(b'"') + 2
        (folder / path).write_bytes(content[:middle] + b"\xff" + content[middle + 1 :])
    gateway = start()
    with httpx.Client(trust_env=False, base_url=f"http://{gateway.address()}") as client:
        assert client.get("/ping").status_code == 200
        login = {"username": "alice", "password": "alicealice"}
        assert client.post("/users/login", json=login).status_code >= 400
        log_in(client, "bob", "bobbob")
        assert client.post("/personal-access-tokens/login", json={"token": bobs_token}).status_code == 200
    for path in paths:
        gateway.line(f"{path} cannot be understood")


def log_in(client: httpx.Client, username: str, password: str) -> None:
    answer = client.post("/users/login", json={"username": username, "password": password}).raise_for_status()
    client.headers["Authorization"] = f"Bearer {answer.json()['access_token']['token']}"


def open_files_of(gateway: Gateway) -> tuple[int, int]:
    limits = Path(f"/proc/{gateway.process.pid}/limits").read_text()
    found = re.search(r"Max open files +(\d+) +(\d+)", limits)
    assert found is not None
    return int(found[1]), int(found[2])


def test_the_hard_limit_of_open_files_is_used_except_for_the_reserve(start: Start) -> None:
    gateway = start()
    gateway.address()
    soft, hard = open_files_of(gateway)
    assert soft == hard - descriptors.RESERVED


FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n"


def test_limits_are_lowered_with_a_warning_if_there_are_too_few_open_files(start: Start) -> None:
    gateway = start(FEW_FILES, IGGY_SYSTEM_LIMITS_CONNECTIONS="1000", IGGY_HTTP_LIMITS_CONNECTIONS="500")
    warning = gateway.line(
        r"WARNING .* the operating system allows 960 open files .*system\.limits\.connections = 1000 counts as (\d+), "
        r"http\.limits\.connections = 500 as (\d+), system\.limits\.open_files = 4096 as (\d+)"
    )
    connections, over_http, files = map(int, warning.groups())
    assert 2 * connections + over_http + files <= 960


def test_limits_that_fit_into_the_open_files_are_kept(start: Start) -> None:
    few = {"SYSTEM_LIMITS_CONNECTIONS": "100", "HTTP_LIMITS_CONNECTIONS": "100", "SYSTEM_LIMITS_OPEN_FILES": "100"}
    gateway = start(FEW_FILES, **{f"IGGY_{name}": value for name, value in few.items()})
    assert gateway.ping() == "pong"
    assert "counts as" not in str(gateway)
