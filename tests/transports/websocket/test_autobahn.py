"""Autobahn's test suite, which needs Python 2, and so is not among the packages of this project: `make autobahn`
installs it beside them and runs this.

Sections 12 and 13 are about compression, which is not supported. What matters most is also in test_framing.py,
test_binary.py, test_channel.py and test_text_connection.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ECHO = "tests.transports.websocket.support.echoing"
RUN = "from autobahntestsuite.wstest import run; run()"
SECONDS_MAX = 900
COMPRESSION = ("12.*", "13.*")
BINARY = ("1.2.*", "9.2.*", "9.4.*", "9.6.*", "9.8.*")
"""Cases whose messages are not text."""
GOOD = {("OK", "OK"), ("INFORMATIONAL", "INFORMATIONAL"), ("INFORMATIONAL", "OK")}
LATE = {("NON-STRICT", "OK")}
"""As the standard allows: invalid UTF-8 is noticed when the text is complete, not at the first wrong byte."""


@pytest.mark.skipif("WHIPPET_AUTOBAHN" not in os.environ, reason="it takes a Python 2: make autobahn PYTHON2=python2.7")
def test_the_autobahn_suite_passes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-m", ECHO], stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout
            found = judged(tmp_path, f"ws://127.0.0.1:{echo.stdout.readline().strip()}")
        finally:
            echo.terminate()
    assert {agent: len(cases) > 200 for agent, cases in found.items()} == {"frames": True, "text": True}
    for agent, cases in found.items():
        for name, case in cases.items():
            is_about_utf8 = name.startswith("6.4.") and agent == "text"
            assert (case["behavior"], case["behaviorClose"]) in (GOOD | LATE if is_about_utf8 else GOOD), (agent, name)


def judged(folder: Path, url: str) -> dict[str, Any]:
    """The findings of the suite, by server and case."""
    specification = {
        "outdir": str(folder / "reports"),
        "servers": [{"agent": agent, "url": f"{url}/{agent}"} for agent in ("frames", "text")],
        "cases": ["*"],
        "exclude-cases": COMPRESSION,
        "exclude-agent-cases": {"text": BINARY},
    }
    folder.joinpath("cases.json").write_text(json.dumps(specification))
    command = [os.environ.get("WHIPPET_PYTHON2", "python2"), "-c"]
    command.append(f"import sys; sys.argv = ['wstest', '-m', 'fuzzingclient', '-s', 'cases.json']; {RUN}")
    environment = os.environ | {"PYTHONPATH": os.environ["WHIPPET_AUTOBAHN"]}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=SECONDS_MAX)
    found: dict[str, Any] = json.loads(folder.joinpath("reports/index.json").read_text())
    return found
