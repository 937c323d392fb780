"""The official client of the Model Context Protocol, as an assistant uses it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

MAIN = "import sys; from whippet.app.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Assistant:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, /, **arguments: Any) -> Any:
        """Returns the result of a tool, which is one JSON text."""
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        assert not result.is_error, content.text
        return json.loads(content.text)

    async def refused(self, tool: str, /, **arguments: Any) -> str:
        """Returns the name of the error."""
        return str((await self.failure(tool, **arguments))["error"])

    async def failure(self, tool: str, /, **arguments: Any) -> Any:
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert content.type == "text"
        assert result.is_error, content.text
        return json.loads(content.text)

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}


@asynccontextmanager
async def over_stdio(*words: str, log: Path, mode: str = "auto", **environment: str) -> AsyncIterator[Assistant]:
    """Starts `whippet mcp` as an assistant does. Its standard error is in `log`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPYCACHEPREFIX", "WHIPPET_CONFIG") if name in os.environ}
    program = StdioServerParameters(
        command=sys.executable,
        args=["-c", MAIN, "mcp", *words],
        env={**kept, "WHIPPET_KEYRING": "off", **environment},
    )
    with log.open("w") as errors:
        async with Client(stdio_client(program, errlog=errors), mode=mode) as client:
            yield Assistant(client)
