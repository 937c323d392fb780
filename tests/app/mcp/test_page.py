"""docs/mcp.md: its tools are those that there are, and its snippets are configurations that assistants can use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from whippet.app.cli.main import SUBCOMMANDS
from whippet.app.mcp import prompts, resources, tools
from whippet.transports.http.serving.assistants import PATH

PAGE = (Path(__file__).parents[3] / "docs" / "mcp.md").read_text()


def snippets() -> list[Any]:
    return [json.loads(text) for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]


def test_the_page_has_every_tool_with_the_permission_that_it_needs() -> None:
    for group in ("read", "create", "update", "delete"):
        (line,) = re.findall(rf"^\| {group} \| (.*) \|$", PAGE, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", line)) == {tool.name for tool in tools.TABLE if tool.group == group}


def test_the_page_has_every_resource_and_prompt() -> None:
    for uri, _, _ in resources.TEMPLATES:
        assert f"| `{uri}` |" in PAGE
    for prompt in prompts.PROMPTS:
        assert f"`{prompt.name}` (`{prompt.arguments[0].name}`" in PAGE


def test_the_snippets_name_a_command_or_an_address_that_there_is() -> None:
    servers = [next(iter((each.get("mcpServers") or each["servers"]).values())) for each in snippets()[:4]]
    assert len(servers) == 4
    words = {subcommand.words for subcommand in SUBCOMMANDS}
    for server in servers:
        if "url" in server:
            assert server["type"] == "http"
            assert server["url"] == f"http://127.0.0.1:3000{PATH}"
            assert server["headers"]["Authorization"].startswith("Bearer ${")
        else:
            assert server["command"] == "whippet"
            assert tuple(server["args"]) in words
