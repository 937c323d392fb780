"""The dependencies of Whippet are declared, explained, and locked with hashes at the same versions for every target."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {canonicalize_name(each.name): each for each in map(Requirement, PROJECT["dependencies"])}
EXTRAS = {name: [Requirement(each) for each in wanted] for name, wanted in PROJECT["optional-dependencies"].items()}
OPTIONAL = {
    "app/cli/pipeline_check.py": "pyspark",
    "app/cli/remote/contexts.py": "keyring",
    "app/cli/remote/topic_tables.py": "pyarrow",
    "app/cli/remote/mcp.py": "mcp",
    "app/mcp/protocol.py": "mcp",
    "app/telemetry/otlp/grpc_sender.py": "grpcio",
    "app/telemetry/otlp/messages.py": "opentelemetry-proto",
    "storage/kafka/": "aiokafka",
    "transports/http/serving/assistants.py": "mcp",
}
"""Packages of extras, which these files import if they are there."""
LOCKS = sorted(path.stem for path in (ROOT / "requirements").glob("*.txt"))
PIN = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)((?: ;[^\\\n]*)?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
)


def locked(name: str) -> dict[str, set[str]]:
    """Returns the versions of each package; there may be several for different versions of Python."""
    found: dict[str, set[str]] = {}
    for package, version, _, _ in PIN.findall((ROOT / "requirements" / f"{name}.txt").read_text()):
        found.setdefault(canonicalize_name(package), set()).add(version)
    return found


def wanted(extra: str | None) -> Iterator[Requirement]:
    """Yields the requirements of an extra, including those of the extras that it consists of."""
    for requirement in DECLARED.values() if extra is None else EXTRAS[extra]:
        if requirement.name == PROJECT["name"]:
            for part in requirement.extras:
                yield from wanted(part)
        else:
            yield requirement


def imports(folder: str) -> Iterator[tuple[str, str]]:
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((alias.name, str(path)) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module, str(path)


@pytest.mark.parametrize("folder", ["app", "storage", "transports", "whippet"])
def test_the_server_declares_every_package_that_it_imports(folder: str) -> None:
    distributions = packages_distributions()
    for module, path in imports(folder):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in {"whippet", "pyspark_whippet"}:
            continue
        names = {canonicalize_name(name) for name in distributions.get(top, [])}
        allowed = DECLARED.keys() | {extra for file, extra in OPTIONAL.items() if file in path}
        assert names & allowed, f"{path} imports {module}, which is not declared"


@pytest.mark.parametrize("folder", ["app", "storage", "transports"])
def test_a_package_whose_private_modules_are_used_has_an_upper_bound(folder: str) -> None:
    for module, path in imports(folder):
        top, *rest = module.split(".")
        if top not in sys.stdlib_module_names | {"whippet"} and any(part.startswith("_") for part in rest):
            operators = {bound.operator for bound in DECLARED[canonicalize_name(top)].specifier}
            assert "<" in operators, f"{path} imports {module}: {top} needs an upper bound"


def test_the_architecture_has_a_line_for_every_declared_package() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## Dependencies")[2]
    explained = {
        canonicalize_name(name.strip())
        for line in section.splitlines()
        if line.startswith("| ")
        for name in line.split("|")[1].split(",")
    }
    everything = {canonicalize_name(each.name) for extra in (None, *EXTRAS) for each in wanted(extra)}
    assert everything - explained == set()


def test_every_target_that_installs_packages_has_a_lock() -> None:
    targets = set(re.findall(r"\.installed-([a-z]+)(?= |$)", (ROOT / "Makefile").read_text(), re.M))
    assert targets == set(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_every_declared_package_with_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert len(PIN.findall(text)) == len(re.findall(r"^[A-Za-z0-9]", text, re.M)), "each line is a version with hashes"
    pins = locked(name)
    for requirement in [*wanted(None), *(wanted(name) if name != "server" else ())]:
        versions = pins[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), str(requirement)


@pytest.mark.parametrize("name", LOCKS)
def test_all_locks_have_the_same_versions_so_targets_can_be_installed_in_any_order(name: str) -> None:
    everything = locked("dev")
    for package, versions in locked(name).items():
        assert versions <= everything[package], package
