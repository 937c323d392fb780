"""The names that other programs may import: few, declared, documented, and the only ones that the documentation
uses."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.app.client.support.server import serving

ROOT = Path(__file__).parents[2]
PYTHON_PAGE = ROOT / "docs" / "python.md"

PAGES_OF = {"whippet.client": "docs/python.md", "whippet.spark": "docs/spark.md"}
"""The public modules, and the page that describes each."""

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]


def public(name: str) -> ModuleType:
    if name == "whippet.spark":
        pytest.importorskip("pyspark", reason="pyspark is not installed: install whippet-gateway[spark]")
    return importlib.import_module(name)


def programs(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def is_ours(value: object) -> bool:
    """Imported modules, and names from typing, are not names of the module that imports them."""
    return not isinstance(value, ModuleType) and getattr(value, "__module__", "") not in ("typing", "__future__")


@pytest.mark.parametrize("name", ["whippet", *PAGES_OF])
def test_the_public_names_are_those_in_all(name: str) -> None:
    module = public(name)
    declared: list[str] = module.__all__
    there = {each: value for each, value in vars(module).items() if not each.startswith("_")}
    # An alias of a union, such as Identifier, comes from typing since Python 3.14.
    assert {each for each, value in there.items() if each in declared or is_ours(value)} == set(declared)
    assert len(declared) == len(set(declared))


@pytest.mark.parametrize(("name", "page"), PAGES_OF.items())
def test_every_public_name_is_on_the_page_of_its_module(name: str, page: str) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", (ROOT / page).read_text()))))
    assert set(public(name).__all__) <= words


def imported(program: str) -> Iterator[tuple[str, str]]:
    """Yields the modules that a program imports, each with the imported name, or with none if the module itself is
    imported."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_documents_use_public_names_only(page: Path) -> None:
    for program in programs(page):
        for module, name in imported(program):
            if module.partition(".")[0] in {"whippet", "pyspark_whippet"}:
                assert module in PAGES_OF, f"{page.name}: {module} is not public"
                assert name in public(module).__all__, f"{page.name}: {module}.{name} is not public"


async def test_the_programs_on_the_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    async with serving(tmp_path / "data") as server:
        credentials, _, at = server.address.removeprefix("iggy://").rpartition("@")
        username, _, password = credentials.partition(":")
        monkeypatch.setenv("WHIPPET_PASSWORD", password)
        for program in programs(PYTHON_PAGE):
            for_here = program.replace("127.0.0.1:8090", at).replace("//iggy:", f"//{username}:")
            code = compile(for_here, PYTHON_PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            # In a thread, because one of them waits for a server that is in this loop.
            running = await asyncio.to_thread(eval, code, names)
            if running is not None:
                await running
    assert len(programs(PYTHON_PAGE)) >= 10
    assert names["count"] > 1000
    everything = [b"of this customer", b"stored exactly once", b"the first order", b"with an id"]
    of_one_partition = names["payloads"][: -len(everything)]
    assert b"with an id" in of_one_partition
    assert sorted(names["payloads"][-len(everything) :]) == everything, "the group has read both partitions"
    assert not names["client"].is_connected


async def test_the_example_in_the_docstring_of_the_client_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = public("whippet.client")
    assert module.__doc__
    shown = "\n".join(line[4:] for line in module.__doc__.splitlines() if line.startswith("    ") or not line)
    async with serving(tmp_path / "data") as server, await server.client() as client:
        await client.create_stream("orders")
        await client.create_topic("orders", "eu")
        program = shown.replace("iggy://iggy:<password>@localhost:8090", server.address)
        running = eval(compile(program, "docstring", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
        assert asyncio.iscoroutine(running)
        await running
    assert capsys.readouterr().out == "0 b'the first order'\n"


async def test_group_members_and_consumers_are_created_by_the_same_function(tmp_path: Path) -> None:
    client = public("whippet.client")
    async with serving(tmp_path / "data") as server, await server.client() as connection:
        assert isinstance(client.consumer(connection, "s", "t", "c"), client.Consumer)
        assert isinstance(client.consumer(connection, "s", "t", "g", group=True), client.GroupConsumer)
