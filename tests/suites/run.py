"""`make suites`: runs the tests that the official clients publish against this gateway, and our own of archives against
object stores.

Each suite is downloaded from the registry of its language to a temporary folder. It is skipped with one line if the
language is missing or the registry has no tests. docs/compatibility.md has the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.suites.outcome import Outcome, of_go, of_junit, of_tap
from tests.suites.server import COMMAND, USUAL, NotStarted, served

PYTHON_VERSIONS = ("0.6.0", "0.7.0", "0.8.0", "0.9.0", "0.9.1.dev5")
GO_MODULE = "github.com/apache/iggy/foreign/go"
NODE_PACKAGE = "apache-iggy"
CLI_CRATE = "iggy-cli"
SUITE_SECONDS_MAX = 3600
PORTS = {
    "tcp": "IGGY_SERVER_TCP_PORT",
    "http": "IGGY_SERVER_HTTP_PORT",
    "quic": "IGGY_SERVER_QUIC_PORT",
    "websocket": "IGGY_SERVER_WS_PORT",
}
"""Where the tests of the Python SDK look for the port of each listener."""

CLI_COMMANDS = (
    *("ping", "me", "stats", "cluster metadata", "stream create s", "stream list", "stream get s", "stream update s z"),
    *("topic create z t 2 none", "topic list z", "topic get z t", "partition create z t 1", "partition delete z t 1"),
    *("consumer-group create z t g", "consumer-group list z t", "consumer-group get z t g"),
    *("message send z t hello --partition-id 0", "message poll z t 0 --first", "consumer-offset set 1 z t 0 0"),
    *("consumer-offset get 1 z t 0", "message flush z t 0", "consumer-group delete z t g", "topic purge z t"),
    *("user create alice secret", "user list", "user get alice", "user status alice inactive", "user delete alice"),
    *("pat create laptop none", "pat list", "pat delete laptop", "client list", "topic delete z t", "stream purge z"),
    *("options topic", "stream delete z"),
)

Suite = Callable[[str, Path], Outcome]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="the suites to run, by the beginning of their names; all by default")
    names = tuple(parser.parse_args().names)
    failed = False
    for name, suite in SUITES.items():
        if names and not name.startswith(names):
            continue
        with tempfile.TemporaryDirectory(prefix="whippet-suites-") as folder:
            try:
                outcome = suite(name, Path(folder))
            except (Unavailable, NotStarted) as reason:
                outcome = Outcome(name, because=str(reason))
        print(outcome, flush=True)
        failed = failed or bool(outcome.failed)
    return failed


class Unavailable(Exception):
    """The suite cannot be downloaded or run here."""


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not installed")
    return found


def execute(command: list[str], cwd: Path, **variables: str) -> str:
    """Returns the standard output of a command, which must succeed."""
    done = attempt(command, cwd, **variables)
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if "rror" in line]
        words = " ".join([Path(command[0]).name, *command[1:3]])
        raise Unavailable(f"`{words}` failed: {said[0] if said else done.returncode}")
    return done.stdout


def attempt(command: list[str], cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(command[:4])}` did not end within {SUITE_SECONDS_MAX} s") from None


# --------------------------------------------------------------------------------------------------------------- Python


def python(version: str, name: str, folder: Path) -> Outcome:
    """Runs the tests of the source distribution with the wheel of the same version. Those of TLS start containers."""
    source = _source_distribution(version, folder)
    execute([sys.executable, "-m", "venv", "venv"], folder)
    interpreter = str(folder / "venv" / "bin" / "python")
    tools = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-cov")
    install = [interpreter, "-m", "pip", "install", "--quiet", "--only-binary=:all:", f"apache-iggy=={version}", *tools]
    execute(install, folder)
    tests = next(path for path in source.rglob("tests") if (path / "conftest.py").exists())
    _install_server(source / "target" / "debug" / "iggy-server")
    report = folder / "report.xml"
    # Its connection strings name the usual ports.
    with served(folder, USUAL) as addresses:
        ports = {PORTS[section]: at.rpartition(":")[2] for section, at in addresses.items()}
        attempt(
            [
                *(interpreter, "-m", "pytest", str(tests), "-q", "-p", "no:cacheprovider", f"--junitxml={report}"),
                *(
                    "-c",
                    str(source / "pyproject.toml"),
                    f"--rootdir={tests.parent}",
                    f"--ignore={tests / 'test_tls.py'}",
                ),
            ],
            tests.parent,
            IGGY_SERVER_HOST="127.0.0.1",
            **ports,
        )
    if not report.exists():
        raise Unavailable("pytest wrote no report")
    return of_junit(name, report.read_text())


def _install_server(path: Path) -> None:
    """Some tests start a server of their own, from where a build of the repository would put it."""
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    path.chmod(0o755)


def _source_distribution(version: str, folder: Path) -> Path:
    """Asks the index that pip is configured to use: pip itself would build the distribution."""
    index = attempt([sys.executable, "-m", "pip", "config", "get", "global.index-url"], folder).stdout.strip()
    page = f"{(os.environ.get('PIP_INDEX_URL') or index or 'https://pypi.org/simple').rstrip('/')}/apache-iggy/"
    file = f"apache_iggy-{version}.tar.gz"
    try:
        with urllib.request.urlopen(page) as found:
            link = re.search(rf'href="([^"]*{re.escape(file)}[^"]*)"', found.read().decode())
        if link is None:
            raise Unavailable(f"the package index has no {file}")
        with urllib.request.urlopen(urllib.parse.urljoin(page, link[1])) as content:
            (folder / file).write_bytes(content.read())
    except urllib.error.URLError as error:
        raise Unavailable(f"the package index is out of reach: {error.reason}") from error
    with tarfile.open(folder / file) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"apache_iggy-{version}"


# ------------------------------------------------------------------------------------------------------ other languages


def node(name: str, folder: Path) -> Outcome:
    npm, program = need("npm"), need("node")
    execute([npm, "pack", NODE_PACKAGE, "--loglevel=error"], folder)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    package = folder / "package"
    tests = sorted(map(str, package.glob("dist/e2e/*.e2e.js")))
    if not tests:
        raise Unavailable(f"the package {NODE_PACKAGE} has no tests")
    execute([npm, "install", "--silent", "--omit=dev"], package)
    with served(folder, USUAL) as addresses:
        command = [program, "--test", "--test-reporter=tap", "--test-force-exit", *tests]
        return of_tap(name, attempt(command, package, IGGY_TCP_ADDRESS=addresses["tcp"]).stdout)


def go(name: str, folder: Path) -> Outcome:
    program = need("go")
    execute([program, "mod", "init", "suites"], folder)
    found = json.loads(execute([program, "mod", "download", "-json", f"{GO_MODULE}@latest"], folder))
    with served(folder) as addresses:
        command = [program, "test", "-json", "-count=1", "./tests/..."]
        return of_go(name, attempt(command, Path(found["Dir"]), IGGY_TCP_ADDRESS=addresses["tcp"]).stdout)


def cli(name: str, folder: Path) -> Outcome:
    """The crate publishes no tests: its commands are run in turn."""
    execute([need("cargo"), "install", "--quiet", "--debug", "--jobs", "1", "--root", str(folder), CLI_CRATE], folder)
    program = str(folder / "bin" / "iggy")
    with served(folder) as addresses:
        login = ["--tcp-server-address", addresses["tcp"], "--username", "iggy", "--password", "iggy"]
        ended = [attempt([program, *login, *words.split()], folder, HOME=str(folder)) for words in CLI_COMMANDS]
    failed = tuple(words for words, done in zip(CLI_COMMANDS, ended, strict=True) if done.returncode)
    return Outcome(name, len(CLI_COMMANDS) - len(failed), failed)


def java(name: str, folder: Path) -> Outcome:
    need("mvn")
    raise Unavailable("Maven Central has the client, but not its tests")


# ------------------------------------------------------------------------------------------------------- object stores


def archives(service: str, name: str, folder: Path) -> Outcome:
    """Runs our own suite of archives against a service that is installed in the folder."""
    programs = folder / "bin"
    if service == "azurite":
        execute([need("npm"), "install", "--silent", "--prefix", str(folder), "azurite"], folder)
        programs = folder / "node_modules" / ".bin"
    else:
        execute([need("go"), "install", "github.com/minio/minio@latest"], folder, GOBIN=str(programs))
    report = folder / "report.xml"
    ours = ["tests/storage/archive/test_services.py", "-q", "-n0", "-k", f"[{service}]", f"--junitxml={report}"]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    attempt([sys.executable, "-m", "pytest", *ours], Path.cwd(), PATH=path)
    return of_junit(name, report.read_text())


SUITES: Mapping[str, Suite] = {
    **{f"python {version}": partial(python, version) for version in PYTHON_VERSIONS},
    "node": node,
    "go": go,
    "cli": cli,
    "java": java,
    **{f"archives {service}": partial(archives, service) for service in ("azurite", "minio")},
}

if __name__ == "__main__":
    sys.exit(main())
