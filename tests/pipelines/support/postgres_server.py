"""A PostgreSQL server from Debian's package, in a folder of its own, run as an ordinary user: it refuses to run as
root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60
PASSWORD = "the-password-of-the-database"
USER = "whippet"


class Database:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres"

    def connect(self) -> Any:
        import psycopg  # noqa: PLC0415 -- an extra

        return psycopg.connect(self.url, autocommit=True)

    def run(self, statements: str) -> None:
        with self.connect() as connection:
            connection.execute(statements)

    def crash(self) -> None:
        """Kills one process of the server; the server then ends all of them, recovers and serves again."""
        import psycopg  # noqa: PLC0415 -- an extra

        with self.connect() as victim, contextlib.closing(self.connect()) as witness:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            with contextlib.suppress(psycopg.OperationalError):
                witness.execute("select pg_sleep(60)")
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(psycopg.OperationalError):
                self.connect().close()
                return
        raise AssertionError("it has not recovered")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return list(connection.execute(query).fetchall())


@contextlib.contextmanager
def running_postgres() -> Iterator[Database]:
    pytest.importorskip("psycopg", reason="psycopg is not installed: install whippet-gateway[postgres]")
    programs = _programs()
    as_whom = _somebody() if os.geteuid() == 0 else {}
    # Not in pytest's folders, which other users may not enter.
    folder = Path(tempfile.mkdtemp(prefix="whippet-postgres-"))
    try:
        data, password = folder / "data", folder / "password"
        password.write_text(PASSWORD)
        if as_whom:
            for path in (folder, password):
                os.chown(path, as_whom["user"], as_whom["group"])
        make = [str(programs / "initdb"), "-D", str(data), "-U", USER, "-A", "scram-sha-256", "--no-sync", "-E", "UTF8"]
        command = [*make, f"--pwfile={password}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, text=False, **as_whom)
        assert done.returncode == 0, done.stderr.decode()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        yield from _served(programs, folder, port, as_whom)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _served(programs: Path, folder: Path, port: int, as_whom: dict[str, Any]) -> Iterator[Database]:
    settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder, "fsync": "off"}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        command = [str(programs / "postgres"), "-D", str(folder / "data"), *options]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, text=False, **as_whom)
        try:
            database = Database(port)
            _wait(database, process, folder / "log")
            yield database
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def _wait(database: Database, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg  # noqa: PLC0415

    deadline = time.monotonic() + DEADLINE_S
    while True:
        assert process.poll() is None, log.read_text()
        try:
            database.connect().close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text()
        else:
            return


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("there is no PostgreSQL on this machine: apt-get install postgresql")
    return found[-1].parent if found else Path(str(on_path)).parent


def _somebody() -> dict[str, Any]:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL refuses to run as root, and there is nobody else here")
