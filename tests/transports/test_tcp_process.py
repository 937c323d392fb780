"""The TCP port of a whole process: signals, limits of the operating system, memory, and what reaches log and disk."""

from __future__ import annotations

import contextlib
import re
import select
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.support.process import DEADLINE_S, Gateway, Start, starting
from tests.transports.support.raw import PING, asked, frame, message_body, poll
from whippet.app.commands import requests

ROOT = {"IGGY_ROOT_USERNAME": "root", "IGGY_ROOT_PASSWORD": "rootZroot-1"}
LOG_IN = asked(requests.LoginUser(ROOT["IGGY_ROOT_USERNAME"], ROOT["IGGY_ROOT_PASSWORD"]))
QUIET = ROOT | {"IGGY_HTTP_ENABLED": "false"}
MIB = 1 << 20
FEW_FILES = """
import whippet.app.server, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
"""

SMALL_BUFFERS = """
import socket
from whippet.transports import listening

open_socket = listening._open

def small(family, target):
    listener = open_socket(family, target)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return listener

listening._open = small
"""
"""The operating system buffers little for a client that does not read."""

SLOW_COMMAND = """
import asyncio, sys
from whippet.app.commands import registry, requests, system

async def slow(gateway, session, request, target):
    print("request in hand", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return None

command = registry.BY_REQUEST[requests.GetMe]
registry.BY_REQUEST[command.request] = command._replace(handler=slow)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path / "data") as start_one:
        yield start_one


class Client:
    """A blocking socket with a deadline."""

    def __init__(self, gateway: Gateway, tls: ssl.SSLContext | None = None) -> None:
        host, port = gateway.line(r"tcp://(\S+)").group(1).rsplit(":", 1)
        link = socket.create_connection((host, int(port)), DEADLINE_S)
        self.link = link if tls is None else tls.wrap_socket(link)

    def send(self, octets: bytes) -> None:
        self.link.sendall(octets)

    def exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self.link.recv(size - len(found))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)

    def answer(self) -> tuple[int, bytes]:
        status, length = struct.unpack("<II", self.exactly(8))
        return status, self.exactly(length)

    def say(self, octets: bytes) -> tuple[int, bytes]:
        self.send(octets)
        return self.answer()

    def ask(self, request: requests.Request) -> tuple[int, bytes]:
        return self.say(asked(request))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()


def logged_in(gateway: Gateway) -> Client:
    client = Client(gateway)
    try:
        assert client.say(LOG_IN)[0] == 0
    except BaseException:
        client.link.close()
        raise
    return client


def make_topic(client: Client) -> None:
    assert client.ask(requests.CreateStream("s"))[0] == 0
    assert client.ask(requests.CreateTopic("s", "t", 1))[0] == 0


def resident_bytes(gateway: Gateway) -> int:
    status = Path(f"/proc/{gateway.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024  # type: ignore[union-attr]


def stopped_cleanly(gateway: Gateway) -> None:
    gateway.signal(signal.SIGTERM)
    assert gateway.end() == 0, str(gateway)
    assert "Traceback" not in str(gateway)
    assert "defect" not in str(gateway)


def test_a_stop_finishes_the_request_in_progress_and_closes_all_connections(start: Start) -> None:
    gateway = start(SLOW_COMMAND, **QUIET)
    with logged_in(gateway) as client, logged_in(gateway) as idle, logged_in(gateway) as partial:
        make_topic(client)
        client.send(frame(101, message_body(100)) + asked(requests.GetMe()) + PING)
        assert client.answer() == (0, b"")
        gateway.line("request in hand")
        partial.send(frame(101, message_body(100))[:-1])
        gateway.signal(signal.SIGTERM)
        gateway.line("no new connections")
        assert idle.link.recv(1) == b""
        with pytest.raises(ConnectionError):
            Client(gateway).exactly(1)
        assert gateway.process.stdin
        gateway.process.stdin.write("\n")
        gateway.process.stdin.flush()
        assert [client.answer(), client.answer()] == [(0, b"")] * 2
        assert client.link.recv(1) == b""
    assert gateway.end() == 0
    again = start(**QUIET)
    with logged_in(again) as client:
        assert client.say(poll(10))[1][12:16] == struct.pack("<I", 1)
    stopped_cleanly(again)


def test_without_file_descriptors_open_connections_are_served(start: Start) -> None:
    gateway = start(FEW_FILES, **QUIET)
    with logged_in(gateway) as client, contextlib.ExitStack() as crowd:
        make_topic(client)
        refused = 0
        for _ in range(120):
            one = crowd.enter_context(Client(gateway))
            with contextlib.suppress(ConnectionError):
                one.send(PING)
            # A ping of a connected client: everybody who could be accepted has been.
            assert client.say(PING) == (0, b"")
            assert client.say(frame(101, message_body(100))) == (0, b"")
            refused += not select.select([one.link], [], [], 0)[0] or not _answered(one)
        assert refused > 50
        crowd.close()
        deadline = time.monotonic() + DEADLINE_S
        served_again = False
        while not served_again and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionError, EOFError), logged_in(gateway) as late:
                assert late.say(poll(1000))[1][12:16] == struct.pack("<I", 120)
                served_again = True
        assert served_again
    stopped_cleanly(gateway)


def _answered(client: Client) -> bool:
    try:
        return client.answer() == (0, b"")
    except (ConnectionError, EOFError):
        return False


def test_many_flooding_clients_do_not_fill_the_memory(start: Start) -> None:
    """Unauthenticated clients with the smallest request: thousands of them fit into one read of the listener."""
    gateway = start(SMALL_BUFFERS, **QUIET)
    with logged_in(gateway) as client, contextlib.ExitStack() as crowd:
        assert client.say(PING) == (0, b"")
        clients = [crowd.enter_context(Client(gateway)) for _ in range(40)]
        for one in clients:
            one.link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.link.setblocking(False)
        before = resident_bytes(gateway)
        chunk, links = PING * 65536, {one.link.fileno(): one.link for one in clients}
        taken_at = time.monotonic()
        while time.monotonic() - taken_at < 0.5:
            for handle in select.select([], list(links), [], 0.1)[1]:
                with contextlib.suppress(BlockingIOError):
                    links[handle].send(chunk)
                    taken_at = time.monotonic()
            assert client.say(PING) == (0, b"")
        assert resident_bytes(gateway) - before < 40 * MIB
    stopped_cleanly(gateway)


def test_large_requests_at_once_stay_within_the_budget(start: Start) -> None:
    limit = 32 * MIB
    gateway = start(**QUIET, IGGY_SYSTEM_LIMITS_FRAMES_BYTES=str(limit), IGGY_SYSTEM_LIMITS_TAIL_BYTES=str(MIB))
    body = frame(101, message_body(*[MIB] * 8))
    with contextlib.ExitStack() as crowd:
        client = crowd.enter_context(logged_in(gateway))
        make_topic(client)
        assert client.say(body) == (0, b"")
        before = resident_bytes(gateway)
        clients = [crowd.enter_context(logged_in(gateway)) for _ in range(24)]
        for one in clients:
            one.link.setblocking(False)
        left = {one.link.fileno(): (one, memoryview(body)) for one in clients}
        most = 0
        while left:
            # All but the last byte of all of them first, so that they are in flight together for as long as possible.
            _, ready, _ = select.select([], list(left), [], DEADLINE_S)
            for handle in ready:
                one, rest = left[handle]
                rest = rest[one.link.send(rest[: MIB // 2]) :]
                left[handle] = (one, rest)
                if not rest:
                    del left[handle]
            most = max(most, resident_bytes(gateway))
        for one in clients:
            one.link.setblocking(True)
            assert one.answer() == (0, b"")
        assert most - before < limit * 3
    stopped_cleanly(gateway)


def test_a_second_server_on_the_same_folder_is_refused(start: Start) -> None:
    first = start(**QUIET)
    with logged_in(first) as client:
        second = start(**QUIET)
        assert second.end() == 1
        second.refusal()
        assert client.say(PING) == (0, b"")


def test_missing_tls_files_are_refused_in_one_line(start: Start, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.pem")
    gateway = start(
        **QUIET,
        IGGY_TCP_TLS_ENABLED="true",
        IGGY_TCP_TLS_SELF_SIGNED="false",
        IGGY_TCP_TLS_CERT_FILE=missing,
        IGGY_TCP_TLS_KEY_FILE=missing,
    )
    assert gateway.end() == 2
    assert missing in gateway.refusal()
    assert "tcp.tls" in gateway.refusal()


def test_no_secret_reaches_a_file_or_the_most_verbose_log(start: Start, tmp_path: Path) -> None:
    secrets = ["aliceZalice-2", "newZalice-3", "guessZguess-4", ROOT["IGGY_ROOT_PASSWORD"]]
    alices, new, guess, _ = secrets
    gateway = start(**QUIET, IGGY_SYSTEM_LOGGING_LEVEL="trace", IGGY_DISPLAY_CONFIG="1")
    with logged_in(gateway) as root, Client(gateway) as other:
        assert root.ask(requests.CreateUser("alice", alices, requests.UserStatus.ACTIVE, None))[0] == 0
        assert root.ask(requests.CreateUser("alice", guess, requests.UserStatus.ACTIVE, None))[0] == 46
        for octets in (asked(requests.LoginUser("alice", alices)), b"", asked(requests.LoginUser("nobody", guess))):
            other.send(octets or asked(requests.LoginUser("alice", guess)))
            assert other.answer()[0] in (0, 42)
        status, token = other.ask(requests.CreatePersonalAccessToken("build", 0))
        assert status == 0
        secrets.append(token[1:].decode())
        assert root.ask(requests.LoginWithPersonalAccessToken(secrets[-1]))[0] == 0
        assert other.ask(requests.DeletePersonalAccessToken("build"))[0] == 0
        assert root.ask(requests.LoginWithPersonalAccessToken(secrets[-1])) == (20, b"")
        assert other.ask(requests.ChangePassword("alice", guess, new))[0] == 42
        assert other.ask(requests.ChangePassword("alice", alices, new))[0] == 0
        # Secrets in frames that cannot be decoded, and in unexpected places.
        for octets in (asked(requests.LoginUser("alice", guess)), asked(requests.ChangePassword("alice", new, guess))):
            for cut in range(9, len(octets)):
                assert other.say(struct.pack("<I", cut - 4) + octets[4:cut])[0] != 1
        for code in (202, 31, 43, 44, 999, 3):
            assert other.say(frame(code, bytes((2, len(guess))) + guess.encode()))[0] != 0
        # The first connection acted as alice, whose new password has ended it.
        with logged_in(gateway) as again:
            snapshot = again.ask(requests.GetSnapshot(1, (100,)))[1]
    stopped_cleanly(gateway)
    assert any("DEBUG" in line for line in gateway.err)
    for secret in secrets:
        assert secret not in str(gateway)
        assert secret.encode() not in snapshot
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_a_generated_root_password_is_printed_once_and_stored_nowhere(start: Start, tmp_path: Path) -> None:
    gateway = start(IGGY_HTTP_ENABLED="false", IGGY_SYSTEM_LOGGING_LEVEL="trace")
    password = gateway.line(r"password +(\S+)").group(1)
    with Client(gateway) as client:
        assert client.ask(requests.LoginUser("iggy", password))[0] == 0
    stopped_cleanly(gateway)
    assert str(gateway).count(password) == 1
    assert password not in "".join(gateway.err)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path
