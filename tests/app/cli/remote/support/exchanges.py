"""Records what `whippet` and a server say to each other over TCP, and plays the server's part afterwards.

A recording is a JSON file: for each command its words, the exit code and the output, and for each of its connections
the requests and the responses. It is made again by

    python -m tests.app.cli.remote.support.exchanges IGGY_SERVER IGGY_CLI

with the programs of Apache Iggy. Its command line does the same on a server of its own, for the exit codes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parents[1] / "recorded"
RECORDING = FOLDER / "iggy-0.8.0.json"
USER, PASSWORD = "iggy", "the password"
HOST = socket.gethostname().encode()
MAIN = "import sys; from whippet.app.cli.main import main; sys.exit(main(sys.argv[1:]))"
REQUEST = struct.Struct("<II")
"""The length of what follows it, and the code."""
RESPONSE = struct.Struct("<II")
"""The status, and the length of the payload."""
STATS, LOGIN, SEND = 10, 38, 101
DIFFERENT_EACH_TIME = (LOGIN, SEND)
"""Requests with a version, a password, or random ids of messages."""


class Exchange(msgspec.Struct, array_like=True):
    code: int
    request: str
    """In hexadecimal digits, like the response; empty for requests that differ each time."""
    status: int
    response: str


class Recorded(msgspec.Struct):
    iggy: str
    """The words for Iggy's command line."""
    iggy_code: int
    words: list[str]
    code: int
    output: Any
    error: str
    connections: list[list[Exchange]]


def recorded() -> list[Recorded]:
    return msgspec.json.decode(RECORDING.read_bytes(), type=list[Recorded])


def scenario() -> list[tuple[str, list[str]]]:
    """Returns the words for Iggy's command line, and those for whippet."""
    lines = (FOLDER / "scenario.txt").read_text().splitlines()
    pairs = [line.partition(" | ") for line in lines if line and not line.startswith("#")]
    return [(iggy, shlex.split(whippet or iggy)) for iggy, _, whippet in pairs]


def prepare(folder: Path) -> None:
    """Writes the files that the commands name."""
    folder.joinpath("a-password").write_text("alicepass\n")
    folder.joinpath("another").write_text("newpassword\n")


# ------------------------------------------------------------------------------------------------------------- frames


def _read(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = link.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found


def _request(link: socket.socket) -> tuple[int, bytes]:
    length, code = REQUEST.unpack(_read(link, REQUEST.size))
    return code, _read(link, length - 4)


class Server:
    """Listens on a port of its own; `connections` is what was said, or is to be said."""

    def __init__(self, connections: list[list[Exchange]], upstream: str | None = None) -> None:
        self.connections = connections
        self.problems: list[str] = []
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        left = iter(list(self.connections))
        while True:
            link, _ = self._listener.accept()
            with link, contextlib.suppress(EOFError, ConnectionResetError):
                if self._stops:
                    return
                if self._upstream is not None:
                    self._record(link, self._upstream)
                elif (connection := next(left, None)) is not None:
                    self._play(link, connection)
                else:
                    self.problems.append("one connection more than was recorded")

    _stops = False

    def close(self) -> None:
        self._stops = True
        host, port = self.address.rsplit(":", 1)
        socket.create_connection((host, int(port))).close()
        self._thread.join()
        self._listener.close()

    def _record(self, link: socket.socket, upstream: str) -> None:
        said: list[Exchange] = []
        self.connections.append(said)
        host, port = upstream.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as server:
            while True:
                code, payload = _request(link)
                server.sendall(REQUEST.pack(4 + len(payload), code) + payload)
                head = _read(server, RESPONSE.size)
                status, length = RESPONSE.unpack(head)
                response = b"" if status else _read(server, length)
                # What the machine is called that it was recorded on is nobody's business.
                response = response.replace(HOST, b"h" * len(HOST)) if code == STATS else response
                link.sendall(head + response)
                shown = "" if code in DIFFERENT_EACH_TIME else payload.hex()
                said.append(Exchange(code, shown, status, response.hex()))

    def _play(self, link: socket.socket, connection: list[Exchange]) -> None:
        for exchange in connection:
            code, payload = _request(link)
            if code != exchange.code or (exchange.request and payload.hex() != exchange.request):
                self.problems.append(f"code {code} with {payload.hex()}, but {exchange} was recorded")
                return
            response = bytes.fromhex(exchange.response)
            link.sendall(RESPONSE.pack(exchange.status, len(response)) + response)
        with contextlib.suppress(EOFError):
            code, _ = _request(link)
            self.problems.append(f"code {code} was not recorded")


@contextlib.contextmanager
def playing(connections: list[list[Exchange]]) -> Iterator[Server]:
    server = Server(connections)
    try:
        yield server
    finally:
        server.close()


# ----------------------------------------------------------------------------------------------------------- recording


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "WHIPPET_"))}


@contextlib.contextmanager
def _iggy_server(program: str, folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "IGGY_SYSTEM_PATH": str(folder / "data"),
        "IGGY_ROOT_USERNAME": USER,
        "IGGY_ROOT_PASSWORD": PASSWORD,
        "IGGY_TCP_ADDRESS": address,
        "IGGY_SYSTEM_SHARDING_CPU_ALLOCATION": "1",
        **{f"IGGY_{name}_ENABLED": "false" for name in ("HTTP", "QUIC", "WEBSOCKET")},
    }
    with (folder / "log").open("w") as log:
        server = subprocess.Popen([program], env=_environment() | settings, cwd=folder, stdout=log, stderr=log)
        try:
            host, port = address.rsplit(":", 1)
            for _ in range(200):
                with contextlib.suppress(OSError):
                    socket.create_connection((host, int(port))).close()
                    break
                time.sleep(0.05)
            yield address
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def _iggy_codes(server: str, cli: str) -> list[int]:
    with tempfile.TemporaryDirectory() as name, _iggy_server(server, Path(name)) as address:
        environ = {"HOME": name, "IGGY_HOME": name, "PATH": os.environ["PATH"], "RUST_BACKTRACE": "0"}
        command = [cli, "--tcp-server-address", address, "-u", USER, "-p", PASSWORD]
        return [
            subprocess.run(
                [*command, *shlex.split(words)],
                env=environ,
                cwd=name,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            ).returncode
            for words, _ in scenario()
        ]


def record(server: str, cli: str) -> None:
    codes = _iggy_codes(server, cli)
    found = []
    with tempfile.TemporaryDirectory() as name, _iggy_server(server, Path(name)) as address:
        prepare(Path(name))
        for (iggy, words), iggy_code in zip(scenario(), codes, strict=True):
            between = Server([], address)
            environ = _environment() | {
                "WHIPPET_SERVER": f"iggy://{between.address}",
                "WHIPPET_USERNAME": USER,
                "WHIPPET_PASSWORD": PASSWORD,
                "WHIPPET_CONFIG": f"{name}/contexts.json",
            }
            command = [sys.executable, "-c", MAIN, *words, "--output", "json"]
            ran = subprocess.run(
                command, env=environ, cwd=name, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
            between.close()
            output = json.loads(ran.stdout) if ran.stdout else None
            error = ran.stderr.decode()
            found.append(Recorded(iggy, iggy_code, words, ran.returncode, output, error, between.connections))
    RECORDING.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, found)) + b"\n]\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
