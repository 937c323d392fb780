"""The distribution: what `make wheel` builds is complete, and can be installed in a project with its own `app`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.app.support.process import starting
from tests.support.lake import need_spark
from whippet.app.version import version

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "orders.py"
DATA = f"whippet_gateway-{version()}.data/data"
PLACES = {
    **{folder: f"whippet/{folder}" for folder in ("app", "bench", "pipelines", "storage", "transports")},
    **{folder: folder for folder in ("pyspark_whippet", "whippet")},
    **{folder: f"{DATA}/share/whippet/{folder}" for folder in ("certs", "deploy", "docs", "openapi")},
}
"""The folder in the wheel for each folder of the repository."""

WITHOUT_PYARROW = """
import os, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow" and os.path.exists(os.environ.get("WITHOUT_PYARROW", "")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""A module for the environment that hides pyarrow while a file exists."""


HANGS_S = 600
"""It takes some ten seconds, but a minute or more on a busy machine."""


class Built(NamedTuple):
    wheel: Path
    source: Path


class Environment(NamedTuple):
    python: Path
    packages: Path

    @property
    def prefix(self) -> Path:
        return self.python.parents[1]


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("IGGY_", "SPARK_"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Builds both as `make wheel` does: the wheel from the source distribution."""
    pytest.importorskip("build", reason="build is not installed: install whippet-gateway[dev]")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("whippet_gateway-*.whl")
    (source,) = folder.glob("whippet_gateway-*.tar.gz")
    return Built(wheel, source)


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Creates an environment with the wheel. The dependencies are those of the tests, so no network is needed."""
    prefix = tmp_path_factory.mktemp("environment") / "new"
    venv.create(prefix, symlinks=True)
    python = prefix / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--no-index",
        "--no-deps",
        "--no-compile",
        built.wheel,
    )
    # A folder named in a .pth file is searched last. The .pth files in that folder, such as the checkout's, are not
    # read.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport without_pyarrow\n")
    (packages / "without_pyarrow.py").write_text(WITHOUT_PYARROW)
    return Environment(python, packages)


def files_of_source(source: Path) -> set[str]:
    with tarfile.open(source) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def is_generated(name: str) -> bool:
    return name in ("PKG-INFO", "setup.cfg") or name.startswith("whippet_gateway.egg-info/")


def test_the_source_distribution_has_every_file_of_the_repository_and_no_other(built: Built) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone, but what was made from one")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    there = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert {name for name in files_of_source(built.source) if not is_generated(name)} == there


def test_the_wheel_has_every_file_of_the_packages_and_the_files_for_operators(built: Built) -> None:
    documents = (f"{DATA}/share/whippet/{name}.md" for name in ("CHANGELOG", "SECURITY"))
    expected = {*documents, f"{DATA}/share/man/man1/whippet.1"}
    for name in files_of_source(built.source):
        folder, _, rest = name.partition("/")
        if folder in PLACES and rest:
            expected.add(f"{PLACES[folder]}/{rest}")
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


def test_the_wheel_installs_two_packages(environment: Environment) -> None:
    ours = {"dependencies.pth", "without_pyarrow.py"}
    there = {path.name for path in environment.packages.iterdir() if path.name not in ours | {"__pycache__"}}
    assert {re.sub(r"-.*\.dist-info", "-dist-info", name) for name in there} == {
        "whippet",
        "pyspark_whippet",
        "whippet_gateway-dist-info",
    }


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            yield target


def test_links_between_the_installed_documents_have_targets(environment: Environment) -> None:
    share = environment.prefix / "share" / "whippet"
    broken = [
        f"{page.relative_to(share)}: {target}"
        for page in share.rglob("*.md")
        for target in links(page)
        if not page.parent.joinpath(target).exists()
    ]
    assert broken == []


def test_a_project_with_an_app_of_its_own_starts_the_server_and_reads_a_topic_with_spark(
    environment: Environment, tmp_path: Path
) -> None:
    need_spark()
    project = tmp_path / "project"
    for name in ("app", "storage", "transports"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").touch()
    (project / "app" / "settings.py").write_text('TOPIC = "orders/eu"\n')
    (project / "orders.py").write_text(PROGRAM.read_text())
    whippet = environment.prefix / "bin" / "whippet"
    with starting(project / "data", [str(whippet), "serve", "--with-default-root-credentials"]) as start:
        gateway = start(PYTHONPATH=str(project))
        addresses = gateway.line(r"tcp://(\S+)")[1], gateway.address()
        marker = tmp_path / "without-pyarrow"
        said = run(
            environment.python,
            "orders.py",
            *addresses,
            marker,
            cwd=project,
            PYTHONPATH=str(project),
            PYSPARK_PYTHON=str(environment.python),
            SPARK_LOCAL_IP="127.0.0.1",
            WITHOUT_PYARROW=str(marker),
            # This Java process lives for seconds only, so optimisation does not pay off.
            JAVA_TOOL_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
    done = json.loads(said.splitlines()[-1])
    assert done["modules"] == [
        str(project / "app" / "__init__.py"),
        str(environment.packages / "whippet" / "__init__.py"),
        str(environment.packages / "pyspark_whippet" / "__init__.py"),
    ]
    assert "No module named 'pyarrow'" in done["refusal"], "Spark tells the user why the data source cannot be loaded"
    assert "DATA_SOURCE_NOT_FOUND" not in done["refusal"]
    assert done["found"] == done["registered"] == ["the first order", "the second order"]
