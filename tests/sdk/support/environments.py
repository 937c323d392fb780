"""A virtual environment for every version of the official Python SDK, created once and kept in .venv/sdk.

It is created in a folder next to its place and renamed when it is complete, under a lock: workers that start together
wait for the one that creates it, and a worker that is killed halfway leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSIONS = ("0.6.0", "0.7.0", "0.8.0", "0.9.0")
NEWEST = VERSIONS[-1]
PRE_RELEASE = "0.9.1.dev5"
"""It speaks the wire of the next release. Its calls differ from those of the released versions, so it has programs
of its own."""
CLASSIC = "0.8.0"
"""The last version before the wire changed."""
BETWEEN = "0.7.0"
"""It differs from its neighbours in nothing special, so most of its tests are for `make test-long`."""
CACHE = Path(__file__).parents[3] / ".venv" / "sdk"
INSTALL_SECONDS_MAX = 300
WHEELS_UP_TO = 13
"""There are wheels of the SDK for Python 3.10 to 3.13. Without a wheel, it would have to be compiled."""


def interpreter(version: str) -> Path:
    """Returns the Python interpreter that has this version of apache-iggy."""
    home = CACHE / version
    python = home / "bin" / "python"
    if not python.exists():
        with alone(home):
            if not python.exists():
                _make(home, version)
    return python


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Keeps other processes from creating this folder."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(home: Path, what: str, *commands: list[str]) -> None:
    """Runs commands that fill `home`, written as HOME in them, or fails the test with the output of the last one."""
    unfinished = home.with_name(f"{home.name}.unfinished")
    for leftover in (unfinished, home):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir()
    for command in commands:
        words = [word.replace("HOME", str(unfinished)) for word in command]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False, cwd=unfinished
            )
            said = done.stderr.strip().splitlines()[-3:] if done.returncode else []
        except subprocess.TimeoutExpired:
            said = [f"no end after {INSTALL_SECONDS_MAX} s"]
        if said:
            shutil.rmtree(unfinished, ignore_errors=True)
            pytest.fail(
                f"{what} cannot be installed into {home}, which the tests of the official SDKs need once; is the "
                f"package index within reach? {' '.join(words[:4])} ... said: {' / '.join(said)}",
                pytrace=False,
            )
    unfinished.rename(home)


def _make(home: Path, version: str) -> None:
    package = f"apache-iggy=={version}"
    # Few and short retries: without an index the error should come before the test times out.
    install = ["install", "--quiet", "--only-binary=:all:", "--retries=1", "--timeout=20", package]
    make(home, package, [_base(), "-m", "venv", "HOME"], ["HOME/bin/python", "-m", "pip", *install])


def _base() -> str:
    """Returns a Python for which there are wheels: the one that runs the tests, or else another one on the path."""
    if sys.version_info.minor <= WHEELS_UP_TO:
        return sys.executable
    for minor in range(WHEELS_UP_TO, 9, -1):
        command = shutil.which(f"python3.{minor}")
        # A command may only stand for a version that is not installed.
        if command is not None:
            tried = subprocess.run([command, "-c", "import venv"], capture_output=True, check=False)
            if tried.returncode == 0:
                return command
    pytest.skip(f"there are wheels of apache-iggy for Python 3.10 to 3.{WHEELS_UP_TO}, and none of these is installed")
