"""docs/spark.md matches the code: every option and column is listed, and its programs run in order."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_whippet.options import KAFKA_OPTIONS, TABLE, UNSUPPORTED
from tests.app.support.process import starting
from tests.support.lake import PASSWORD, Lake

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

from pyspark_whippet import columns
from pyspark_whippet.options import decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[1]


def rows(text: str) -> Iterator[list[str]]:
    """Yields the names in the first cells of tables."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield re.findall(r"`([^`]+)`", line.split(" | ")[0])


def test_the_page_lists_every_option_and_no_other() -> None:
    shown = {name for names in rows(section("Options")) for name in names}
    assert shown == set(TABLE)
    for later in UNSUPPORTED.values():
        assert f"`{later}`" in section("Options")
    assert not shown & set(KAFKA_OPTIONS)


def test_the_page_lists_every_column_and_no_other() -> None:
    shown = [name for names in rows(section("Columns")) for name in names]
    assert shown == list(columns.column_types(decode({"valueFormat": "string"}, {})))


def test_defaults_on_the_page_match_the_code() -> None:
    settings = decode({}, {})
    cells = [line.split(" | ") for line in section("Options").splitlines() if line.startswith("| `")]
    said = {re.findall(r"`([^`]+)`", cell[0])[0]: cell[1].strip("` ") for cell in cells}
    checked = 0
    for name, option in TABLE.items():
        default = getattr(settings, option.field, getattr(settings.access, option.field, None))
        if default is not None and default != () and isinstance(default, bool | int | str):
            # 0 partitions is shown as the value that users write.
            assert said[name] == ("false" if name == "createTopic" else str(default).lower()), name
            checked += 1
    assert checked > 12


def test_links_within_the_page_have_targets() -> None:
    headings = re.findall(r"^## (.*)", PAGE, re.M)
    titles = {re.sub(r"[^a-z0-9 ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= titles


def archive_of(lake: Lake, folder: Path) -> Path:
    """Archives what the gateway has, by another one that has a copy of it."""
    shutil.copytree(lake.folder, folder / "data")
    with starting(folder / "data") as start:
        gateway = start(
            IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED="true",
            IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH=str(folder / "archive"),
        )
        gateway.ping()
        gateway.signal(signal.SIGTERM)
        assert gateway.end() == 0
    return folder / "archive"


def test_the_programs_on_the_page_run_in_order(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.streams, "addListener", lambda listener: None)
    monkeypatch.setenv("WHIPPET_PASSWORD", PASSWORD)
    lake.forget("shop")
    here = {
        "http://127.0.0.1:3000": lake.url,
        "/tmp/checkpoints": str(tmp_path),
        "/var/lib/whippet": str(lake.folder),
    }
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    assert len(programs) > 7
    names: dict[str, Any] = {}
    for program in programs:
        if "s3://" in program:
            here["s3://messages/production/gateway-1"] = f"file://{archive_of(lake, tmp_path)}"
            here['.option("s3.region", "eu-west-1")'] = ""
        for shown, real in here.items():
            program = program.replace(shown, real)  # noqa: PLW2901
        exec(compile(program, "docs/spark.md", "exec"), names)
    assert len(lake.all_values("shop/orders")) == 3
    assert len(lake.all_values("shop/big")) == 2
    assert lake.all_values("shop/copy") == lake.all_values("shop/orders")
    assert len(lake.all_values("shop/eu")) == 2
