"""deploy/spark/cluster: jobs that travel as a zip to separate workers, and to a Connect server.

The workers' Python knows only the part of Whippet that is in the zip: it is started without editable installs.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.app.support.process import starting
from tests.support.lake import PASSWORD, Lake, need_spark
from whippet.pipelines.spark_zip import make

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 300

# A master, a worker, a Connect server and a driver per job: Java is started five times.
pytestmark = pytest.mark.long


class Cluster(NamedTuple):
    folder: Path
    master: str
    connect: str
    python: Path
    zipped: Path
    lake: Lake

    def environment(self) -> dict[str, str]:
        return clean() | {
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "WHIPPET_USERNAME": "iggy",
            "WHIPPET_PASSWORD": PASSWORD,
        }

    def submit(self, program: Path, *arguments: str, at: Path | None = None) -> str:
        spark_submit = Path(next(iter(__import__("pyspark").__path__))) / "bin" / "spark-submit"
        options = ["--master", self.master, "--py-files", str(self.zipped), "--executor-memory", "600m"]
        options += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
        return self.run([str(spark_submit), *options, str(program), *arguments], at)

    def run(self, command: list[str], at: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=at or self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, without_java_output(done.stdout + done.stderr)
        assert PASSWORD not in done.stdout + done.stderr
        return done.stdout


def without_java_output(output: str) -> str:
    """Drops Java's own output."""
    lines = [line for line in output.splitlines() if not line.startswith("\tat ") and " INFO " not in line]
    return "\n".join(lines[:100])


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python_without_whippet(folder: Path) -> Path:
    """Finds what is in site-packages, but not Whippet, which is found through .pth files: these are not read."""
    packages = folder / "packages"
    packages.mkdir()
    for installed in Path(next(path for path in sys.path if path.endswith("site-packages"))).iterdir():
        if not installed.name.startswith("pyspark_whippet"):
            (packages / installed.name).symlink_to(installed)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    for name in ("whippet", "pyspark_whippet"):
        command = [str(script), "-c", f"import {name}"]
        found = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True, check=False)
        assert f"No module named '{name}'" in found.stderr
    return script


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_spark()
    for package in ("grpc", "pandas"):
        pytest.importorskip(package, reason=f"{package} is not installed: install whippet-gateway[connect]")
    folder = tmp_path_factory.mktemp("cluster")
    python = python_without_whippet(folder)
    zipped = folder / "whippet-spark.zip"
    make(zipped)
    ports = {"SPARK_PORT": free_port(), "CONNECT_PORT": free_port()}
    environment = clean() | ports | {"PYTHON": str(python), "SPARK_RUN": str(folder / "run")}
    environment |= {"WORKER_CORES": "2", "WORKER_MEMORY": "1200m", "CONNECT_MEMORY": "500m"}
    command = [str(ROOT / "deploy" / "spark" / "cluster")]
    with starting(folder / "data") as start:
        lake = Lake(start(IGGY_ROOT_USERNAME="iggy", IGGY_ROOT_PASSWORD=PASSWORD), folder / "data")
        try:
            master, connect = [
                subprocess.run([*command, act], env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
                for act in ("start", "connect")
            ]
            master, connect = master.strip(), connect.strip()
            yield Cluster(folder, master, connect, python, zipped, lake)
        finally:
            lake.http.close()
            subprocess.run([*command, "stop"], env=environment, check=True)


def topic(lake: Lake, partitions: int = 2) -> str:
    options = {"message_deduplication": "true", "message_deduplication_max_entries": "100000"}
    return lake.topic(partitions, options=options | {"message_deduplication_expiry": "1 hour"})


def test_a_job_reaches_the_workers_as_a_zip(cluster: Cluster) -> None:
    source, target = topic(cluster.lake), topic(cluster.lake, 3)
    said = cluster.submit(PROGRAMS / "copying.py", cluster.lake.url, source, target, str(cluster.folder / "checkpoint"))
    assert "found 5000 5000 2\n" in said
    assert cluster.lake.all_values(target) == sorted(map(str, range(5_000)))


def test_a_task_that_runs_twice_at_the_same_time_writes_each_row_once(cluster: Cluster) -> None:
    target = topic(cluster.lake)
    cluster.submit(PROGRAMS / "straggling.py", cluster.lake.url, target)
    assert [value.strip() for value in cluster.lake.all_values(target)] == sorted(map(str, range(4_000)))
    # Both copies wrote.
    metrics = cluster.lake.http.get("/metrics").text
    left_out = next(line for line in metrics.splitlines() if line.startswith("whippet_messages_left_out_total"))
    assert int(left_out.split()[1]) > 0


def test_a_client_without_java_can_use_a_connect_server(cluster: Cluster) -> None:
    lake = cluster.lake
    source, target = topic(lake), topic(lake)
    stream = target.partition("/")[0]
    body = {"name": "t2", "partitions_count": 2, "options": {"message_deduplication": "true"}}
    lake.http.post(f"/streams/{stream}/topics", json=body).raise_for_status()
    given = [cluster.connect, str(cluster.zipped), lake.url, source, target, str(cluster.folder / "remote")]
    assert "found 2000 2000 2000\n" in cluster.run([str(cluster.python), str(PROGRAMS / "remote.py"), *given])


@pytest.mark.parametrize("way", ["submit", "connect"])
def test_the_example_pipelines_run_on_the_cluster(cluster: Cluster, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Variables in files, which only the process that reads the file has.
    monkeypatch.setenv("GATEWAY_URL", cluster.lake.url)
    monkeypatch.setenv("SHOP", "shop")
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install polars")
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed: install whippet-gateway[iceberg]")
    lake, folder = cluster.lake, cluster.folder / way
    lake.forget("shop")
    shutil.copytree(ROOT / "deploy" / "pipelines", folder / "deploy" / "pipelines")
    for name in ("backfill", "windows", "lake"):
        file = folder / "deploy" / "pipelines" / f"{name}.toml"
        text = file.read_text().replace('stream = "shop"', 'stream = "${SHOP}"')
        assert "${SHOP}" in text
        file.write_text(f'{text}\n[iggy]\naddress = "${{GATEWAY_URL}}"\n')
        if way == "submit":
            cluster.submit(ROOT / "deploy" / "spark" / "pipeline.py", str(file), "--once", at=folder)
        else:
            cluster.run([*connected(cluster), str(file), "--once"], at=folder)
    orders = [json.loads(line) for line in lake.all_values("shop/orders")]
    assert len(orders) == len({order["id"] for order in orders}) > 0
    assert len(lake.all_values("shop/refused")) == 1
    windows = [json.loads(line) for line in lake.all_values("shop/per-minute")]
    assert 0 < sum(window["orders"] for window in windows) <= len(orders)
    files = (folder / "local_lake").rglob("*.parquet")
    stored = polars.concat([polars.read_parquet(file, hive_partitioning=False) for file in files])
    assert sorted(stored["id"]) == sorted(order["id"] for order in orders)


def connected(cluster: Cluster) -> list[str]:
    return [sys.executable, "-m", "whippet.app.cli.main", "pipeline", "run", "--remote", cluster.connect]


PIPELINE = """
key = "numbers"
[iggy]
address = "{url}"
[source]
type = "topic"
stream = "{stream}"
topics = ["t"]
fields = "text string"
poll_interval = "100 ms"
[transforms.sql]
query = "SELECT CAST(text AS INT) AS number FROM input"
[sink]
type = "topic"
stream = "{stream}"
topic = "numbers"
create_topic = 1
"""


def test_over_connect_a_bad_record_stops_a_pipeline_or_becomes_a_dead_letter(
    cluster: Cluster,
) -> None:
    lake, file = cluster.lake, cluster.folder / "numbers.toml"
    source = lake.topic()
    stream = source.partition("/")[0]
    lake.send(source, [f'{{"text": "{number}"}}' for number in (*range(20), "x", *range(20, 30))])
    strict = PIPELINE.format(url=lake.url, stream=stream)
    file.write_text(strict)
    refused = subprocess.run(
        [*connected(cluster), str(file), "--once"],
        cwd=cluster.folder,
        env=cluster.environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    why = f"whippet: {source} partition 0 offset 20: transforms: "
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith(why), refused.stderr
    assert "Traceback" not in refused.stderr

    file.write_text(f'{strict}[dead_letter]\nstream = "{stream}"\ntopic = "bad"\n')
    command = [*connected(cluster), str(file), "--progress", "0.5"]
    numbers = [f'{{"number":{number}}}' for number in range(30)]
    with subprocess.Popen(
        command, cwd=cluster.folder, env=cluster.environment(), stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        heard = next((line for line in running.stderr if "31 rows" in line), "it has ended")
        assert "1 bad record" in heard
        running.terminate()
        rest = running.stderr.read()
    assert running.returncode == 0, rest
    assert "numbers: stopped: 31 rows in 1 batch, 1 bad record" in rest
    assert sorted(lake.all_values(f"{stream}/numbers")) == sorted(numbers)
    assert lake.all_values(f"{stream}/bad") == ['{"text": "x"}']
