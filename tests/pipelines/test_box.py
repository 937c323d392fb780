"""The example pipelines do what the README says, by the README's own commands."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.app.dashboard.support.chromium import WAITS_MS, a_page, chromium
from tests.app.dashboard.support.visits import messages
from tests.pipelines.support.dead_letters import letters
from tests.support.lake import PASSWORD, Lake
from tests.support.sizes import sized
from whippet.app.cli.main import main

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")
pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: install whippet-gateway[iceberg]")
pl = pytest.importorskip("polars", reason="polars is not installed")

expect.set_options(timeout=WAITS_MS)
ROOT = Path(__file__).parents[2]
ORDERS = ROOT / "deploy" / "pipelines" / "orders" / "2026-03-02.ndjson"


def spark_section() -> str:
    section = re.search(r"^## From Spark\n(.*?)^## ", (ROOT / "README.md").read_text(), re.M | re.S)
    assert section
    return section[1]


@pytest.fixture
def readme(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns the commands of the README, after preparing a folder in which they work, for this gateway."""
    lake.forget("shop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHIPPET_USERNAME", "iggy")
    monkeypatch.setenv("WHIPPET_PASSWORD", PASSWORD)
    shutil.copytree(ROOT / "deploy" / "pipelines", tmp_path / "deploy" / "pipelines")
    for path in (tmp_path / "deploy" / "pipelines").glob("*.toml"):
        path.write_text(f'{path.read_text()}\n[iggy]\naddress = "{lake.url}"\n')
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```", spark_section(), re.M | re.S)).splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each[1:] for each in words if each[:1] == [".venv/bin/whippet"]]


@sized("runs", 1, long=2)
def test_files_become_orders_windows_and_a_lake(
    spark: object, readme: list[list[str]], lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    names = [Path(file).stem for _, how, file, *_ in readme if how == "run"]
    assert names == ["backfill", "windows", "lake"]
    sent = [json.loads(line, parse_float=Decimal) for line in ORDERS.read_text().splitlines() if "amount" in line]
    broken = [line for line in ORDERS.read_text().splitlines() if "amount" not in line]
    # Repeating them adds nothing: each pipeline resumes where it was.
    for run in range(runs):
        for command in readme:
            assert main(command) == 0, command
        _backfill(lake, sent, broken)
        _lake(tmp_path, sent, monkeypatch)
        if not run:
            # A second run may complete a window.
            _windows(lake, sent)
    _program(lake, tmp_path)


@pytest.mark.long
def test_windows_are_seen_live_in_the_page(spark: object, readme: list[list[str]], lake: Lake) -> None:
    backfill, windows, _ = [command for command in readme if "run" in command]
    assert main(backfill) == main(windows) == 0
    with chromium() as browser, a_page(browser, viewport={"width": 1280, "height": 860}) as page:
        page.goto(f"{lake.url}/ui#shop/per-minute")
        page.get_by_label("User").fill("iggy")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        before = messages(page)
        expect(before.first).to_be_visible()
        count = before.count()
        late = [{"id": 61, "at": "2026-03-02T10:00:00Z"}, {"id": 62, "at": "2026-03-02T11:00:00Z"}]
        lake.send("shop/orders", [json.dumps(each | {"country": "no", "amount": "7.50"}) for each in late])
        assert main(windows) == 0
        expect(before.filter(has_text="2026-03-02T10:00:00").first).to_contain_text('"no"')
        assert before.count() > count


def _backfill(lake: Lake, sent: list[dict[str, str]], broken: list[str]) -> None:
    there = [json.loads(value) for value in lake.all_values("shop/orders")]
    assert sorted(each["id"] for each in there) == sorted(each["id"] for each in sent)
    assert [payload for payload, _ in letters(lake, "shop/refused")] == broken


def _windows(lake: Lake, sent: list[dict[str, str]]) -> None:
    there = [json.loads(value) for value in lake.all_values("shop/per-minute")]
    newest = max(each["window_start"] for each in there)
    expected = Counter((each["at"][:16], each["country"]) for each in sent if each["at"][:16] <= newest[:16])
    assert {(each["window_start"][:16], each["country"]): each["orders"] for each in there} == expected
    assert len(there) > 10


def _program(lake: Lake, folder: Path) -> None:
    """Runs the PySpark program, in a process of its own, with the address of this gateway: its port is another one."""
    (program,) = re.findall(r"^```python\n(.*?)^```", spark_section(), re.M | re.S)
    subscribe = '.option("subscribe",'
    assert subscribe in program
    (folder / "orders.py").write_text(program.replace(subscribe, f'.option("url", "{lake.url}"){subscribe}'))
    done = subprocess.run([sys.executable, "orders.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert '"country":' in done.stdout, done.stderr


def _lake(folder: Path, sent: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 -- an extra

    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/local_lake/catalog.db")
    found = pl.scan_iceberg(catalog.load_table("shop.orders")).collect()
    assert sorted(found["id"]) == sorted(each["id"] for each in sent)
    assert found["amount"].sum() == sum(Decimal(each["amount"]) for each in sent)
    parts = {path.parent.name for path in (folder / "local_lake").rglob("*.parquet")}
    assert parts == {"at_day=2026-03-02"}
