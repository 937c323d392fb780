"""The alert rules and the dashboard ask for metrics that the server has, and promtool agrees with the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.support.process import Gateway, starting

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
ALERTS = (FOLDER / "alerts.yml").read_text()
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
METRIC = re.compile(r"\b(?:whippet|iggy)_[a-z_]+")
EXPRESSIONS = [
    *re.findall(r"^ +expr: (.*)$", ALERTS, re.MULTILINE),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())),
    *(variable["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"),
]
ELSEWHERE = {"whippet_telemetry_lost_total", "whippet_archive_age_seconds"}
"""Metrics of servers that export, and that have archived something."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("server")
    archive = {
        "IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED": "true",
        "IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH": str(folder / "archive"),
    }
    with starting(folder / "data") as start:
        yield start(**archive)


def test_every_metric_that_is_asked_for_exists(gateway: Gateway) -> None:
    gateway.line("dashboard")
    text = httpx.get(f"http://{gateway.address()}/metrics", trust_env=False).text
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    known = {name if kind != "counter" or name.endswith("_total") else f"{name}_total" for name, kind in types.items()}
    known |= {
        name + end for name, kind in types.items() if kind == "histogram" for end in ("_bucket", "_count", "_sum")
    }
    asked = {name for expression in EXPRESSIONS for name in METRIC.findall(expression)}
    assert len(asked) > 20
    assert asked - known <= ELSEWHERE
    source = (ROOT / "app" / "telemetry" / "metrics.py").read_text()
    assert all(f'"{name.removesuffix("_total")}"' in source for name in ELSEWHERE)


def test_every_alert_leads_to_a_section_that_exists() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    pages = re.findall(r"page: docs/operating\.md#(\S+)", ALERTS)
    assert len(pages) == ALERTS.count("- alert:")
    assert set(pages) <= anchors


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on this machine: apt-get install prometheus"
)
@pytest.mark.parametrize(
    "command",
    [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
        ["check", "config", "--syntax-only", "prometheus.yml"],
    ],
)
def test_promtool_agrees(command: list[str]) -> None:
    done = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
