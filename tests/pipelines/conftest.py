"""Pipelines as users write them, run with --once, on the Spark session and the gateway that all tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipelines.support.bulk_server import BulkServer
from tests.pipelines.support.job import Job
from tests.pipelines.support.postgres_server import Database, running_postgres
from tests.support.lake import Lake

pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def job(spark: SparkSession, lake: Lake, tmp_path: Path) -> Job:
    return Job(lake, tmp_path)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Database]:
    with running_postgres() as database:
        yield database


@pytest.fixture
def database(postgres_server: Database) -> Database:
    """Drops all tables first."""
    postgres_server.run("drop schema public cascade; create schema public")
    return postgres_server


@pytest.fixture
def bulk() -> Iterator[BulkServer]:
    with BulkServer() as server:
        yield server


@pytest.fixture
def source(lake: Lake) -> Callable[..., str]:
    """Returns a [source] for a topic."""

    def table(topic: str, fields: str = "id bigint, name string", **more: Any) -> str:
        from whippet.pipelines.keys import toml_text  # noqa: PLC0415

        stream, name = topic.split("/")
        keys = {"stream": stream, "topics": [name], "fields": fields, **more}
        lines = (f"{key} = {toml_text(value)}" for key, value in keys.items() if value is not None)
        return "\n".join(['[source]\ntype = "topic"', *lines, ""])

    return table
