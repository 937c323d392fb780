"""Pipelines as their users write them, run on what is there, in the Spark and on the gateway that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.pipelines.support.bulk_server import BulkServer
from tests.pipelines.support.postgres_server import Database, running_postgres
from tests.support.lake import PASSWORD, Lake

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from whippet.pipelines.processing import Done


class Ran(NamedTuple):
    done: Done
    said: list[str]


class Job:
    """One pipeline: its file may change between two runs, its state stays."""

    def __init__(self, lake: Lake, folder: Path) -> None:
        self._lake = lake
        self.folder = folder
        self.state = folder / "state" / "job"

    def file(self, text: str) -> str:
        iggy = f'[iggy]\naddress = "{self._lake.url}"\nusername = "iggy"\npassword = "{PASSWORD}"\n'
        return f'key = "job"\n{text}\n{iggy}[state]\npath = "{self.folder / "state"}"\n'

    def __call__(self, text: str) -> Ran:
        from whippet.pipelines import pipeline_file, running  # noqa: PLC0415 -- they need pyspark

        said: list[str] = []
        pipeline = pipeline_file.read(self.file(text))
        return Ran(running.run(pipeline, said.append, once=True, progress_s=60), said)

    def crash(self) -> None:
        """As if the process had been killed between the sinks and Spark's note that the last batch is done."""
        commits = self.state / "checkpoint" / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def job(spark: SparkSession, lake: Lake, tmp_path: Path) -> Job:
    return Job(lake, tmp_path)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Database]:
    with running_postgres() as database:
        yield database


@pytest.fixture
def database(postgres_server: Database) -> Database:
    """With no table in it."""
    postgres_server.run("drop schema public cascade; create schema public")
    return postgres_server


@pytest.fixture
def bulk() -> Iterator[BulkServer]:
    with BulkServer() as server:
        yield server


@pytest.fixture
def source(lake: Lake) -> Callable[..., str]:
    """[source] of a topic."""

    def table(topic: str, fields: str = "id bigint, name string", **more: Any) -> str:
        from whippet.pipelines.keys import written  # noqa: PLC0415

        stream, name = topic.split("/")
        keys = {"stream": stream, "topics": [name], "fields": fields, **more}
        lines = (f"{key} = {written(value)}" for key, value in keys.items() if value is not None)
        return "\n".join(['[source]\ntype = "topic"', *lines, ""])

    return table
