"""A `whippet serve` process that keeps its folder and port across restarts, so that clients can reconnect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.forked import Forked
from whippet.transports.certificates import self_signed

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
SHOWN = 4000
"""Characters of the log that a failure shows."""

MAIN = "import sys; from whippet.app.cli.main import main; sys.exit(main(['serve', '--with-default-root-credentials']))"


class Reachable(str):
    """A TCP address that also knows the other transports' addresses."""

    __slots__ = ("others",)
    others: dict[str, str]

    def over(self, transport: str) -> str:
        return self.others.get(transport, str(self))


class Server:
    """A server whose runs all append to the file `log`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        self.address = Reachable("127.0.0.1:0")
        self.quic = "127.0.0.1:0"
        self.websocket = "127.0.0.1:0"
        self._settings = {"IGGY_SYSTEM_PATH": str(folder / "data"), "IGGY_HTTP_ENABLED": "false", **settings}
        self._folder = folder
        self._process: Forked | None = None

    def set(self, **settings: str) -> None:
        """From the next start on."""
        self._settings |= settings

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def start(self) -> Server:
        """Returns when clients can connect."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "RUST_LOG"))}
        with self.log.open("a") as log:
            addresses = {
                "IGGY_TCP_ADDRESS": self.address,
                "IGGY_QUIC_ADDRESS": self.quic,
                "IGGY_WEBSOCKET_ADDRESS": self.websocket,
            }
            env = inherited | addresses | self._settings
            self._process = process = Forked(MAIN, env=env, cwd=self._folder, errors=log)
        process.stdin.close()
        alarm = threading.Timer(START_SECONDS_MAX, process.kill)
        alarm.start()
        with process.stdout as banner:
            found = next((found for line in banner if (found := re.search(r"tcp(?:\+tls)?://(\S+)", line))), None)
            assert found, f"the server did not come up:\n{self.log.read_text()}"
            self.address = Reachable(found.group(1))
            # Reads the rest of the banner: a pipe that no one reads would block the server.
            for line in banner:
                if quic := re.search(r"quic://(\S+)", line):
                    self.quic = quic.group(1)
                if websocket := re.search(r"ws://(\S+)", line):
                    self.websocket = websocket.group(1)
                if line.startswith("  stop "):
                    break
            self.address.others = {"quic": self.quic, "ws": self.websocket}
        alarm.cancel()
        return self

    @property
    def resident_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_bytes(self) -> int:
        """Since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        assert self._process is not None
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        assert self._process is not None
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        assert found
        return int(found.group(1)) << 10

    def stop(self) -> None:
        """Stops it as an operator does; afterwards its log must be clean."""
        code = self._end(signal.SIGTERM)
        said = self.log.read_text()
        assert code == 0, said[-SHOWN:]
        assert "Traceback" not in said, said[max(0, said.index("Traceback") - SHOWN // 2) :][:SHOWN]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def tls_server(own_server: Callable[..., Server], folder: Path) -> tuple[Server, Path]:
    """Returns a server with a certificate of its own, and the certificate's file."""
    certificate, key = folder / "server.pem", folder / "server.key"
    for file, content in zip((certificate, key), self_signed(), strict=True):
        file.write_bytes(content)
    server = own_server(
        IGGY_TCP_TLS_ENABLED="true", IGGY_TCP_TLS_CERT_FILE=str(certificate), IGGY_TCP_TLS_KEY_FILE=str(key)
    )
    return server, certificate
