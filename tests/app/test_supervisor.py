"""systemd learns from the server that it is ready, lives, and stops; the unit is one that systemd accepts."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.app.support.process import starting
from tests.support.running import HANGS_S
from whippet.app import supervisor
from whippet.app.readiness import Stage
from whippet.app.supervisor import Supervisor

UNIT = Path(__file__).parents[2] / "deploy" / "whippet.service"


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(str(tmp_path / "notify"))
    made.settimeout(HANGS_S)
    return made


def test_a_server_tells_when_it_is_ready_that_it_lives_and_that_it_stops(
    listener: socket.socket, tmp_path: Path
) -> None:
    with listener, starting(tmp_path / "data") as start:
        gateway = start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="20000")
        assert listener.recv(1000).startswith(b"READY=1\n")
        gateway.ping()
        assert [listener.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        gateway.signal(signal.SIGTERM)
        said = b""
        while not said.startswith(b"STOPPING=1\n"):
            said = listener.recv(1000)
        assert gateway.end() == 0


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "relative"}, {"WATCHDOG_USEC": "1000"}])
async def test_nobody_else_is_told_anything(environ: dict[str, str]) -> None:
    made = Supervisor(environ)
    made.enter(Stage.READY)
    assert made._beating is None
    assert made._socket is None
    made.close()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_gets_two_beats_in_its_time(environ: dict[str, str], seconds: float | None) -> None:
    assert supervisor._beat_s(environ) == seconds


async def test_a_socket_that_nobody_reads_harms_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    made.enter(Stage.READY)
    made.close()
    assert "systemd was not told 'READY=1'" in caplog.text


async def test_an_abstract_socket_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0whippet-test-" + str(id(listener)))
        listener.settimeout(HANGS_S)
        made = Supervisor({"NOTIFY_SOCKET": "@whippet-test-" + str(id(listener))})
        made.enter(Stage.STOPPING)
        assert listener.recv(1000).startswith(b"STOPPING=1\n")
        made.close()


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine: apt-get install systemd"
)
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "whippet.service"
    unit.write_text(UNIT.read_text().replace("/opt/whippet/.venv/bin/whippet", shutil.which("true") or ""))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "whippet" in line]) == (0, [])
