"""`make` reports in one line what a machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("Makefile", "pyproject.toml", "requirements/server.txt", "setup.py")

TOO_OLD = """#!/bin/sh
case "$*" in *version_info*) exit 1 ;; --version) echo "Python 3.9.18" ;; *) exit 9 ;; esac
"""
WITHOUT_VENV = """#!/bin/sh
case "$*" in *version_info*) exit 0 ;; *ensurepip*) echo "a traceback of several lines" >&2; exit 1 ;; *) exit 9 ;; esac
"""


def said_by_make(folder: Path, python: str, script: str) -> list[str]:
    for name in NEEDED:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    programs = folder / "programs"
    programs.mkdir()
    # If the tests run as root, make would install what is missing.
    scripts = {"apt-get": "#!/bin/sh\necho E: not here >&2; exit 100\n"} | ({python: script} if script else {})
    for name, text in scripts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["make", "run", f"PYTHON={python}"],
        cwd=folder,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    return [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("make")]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make on this machine")
@pytest.mark.parametrize(
    ("python", "script", "sentence"),
    [
        ("no-such-python", "", "Whippet needs Python 3.11 or newer, and there is no 'no-such-python' here"),
        (
            "an-old-python",
            TOO_OLD,
            "Whippet needs Python 3.11 or newer, and this is Python 3.9.18: try 'make PYTHON=python3.11'",
        ),
        (
            "python3.12",
            WITHOUT_VENV,
            "python3.12 cannot create virtual environments: run 'apt-get install python3.12-venv'",
        ),
    ],
)
def test_make_reports_what_a_machine_lacks(tmp_path: Path, python: str, script: str, sentence: str) -> None:
    assert said_by_make(tmp_path, python, script) == [sentence]
    assert not (tmp_path / ".venv").exists()
