"""The Model Context Protocol, by the official package `mcp`, which is imported here only.

`create` returns a server of that package, whose handlers call the tools. For each request it asks for the `Work`, which
has the rights of the request's user.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from mcp import types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError

from whippet.app.errors import CommandError
from whippet.app.mcp import parameters, prompts, resources, tools
from whippet.app.mcp.work import Group, Refused, Work, error_name
from whippet.app.version import version

_log = logging.getLogger(__name__)

JSON = "application/json"
INSTRUCTIONS = """Whippet keeps messages in streams > topics > partitions; a message has an offset in its partition.
Names or numbers identify things. Results are bounded: `left_out` says what is missing and how to get it."""


def create(work_of: Callable[[Any], Work]) -> Server[Any]:
    """`work_of` returns the work for a request of the transport; over stdio there is none."""

    async def list_tools(context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        allowed = work_of(context.request).allowed
        return types.ListToolsResult(tools=[_described(tool) for tool in tools.TABLE if tool.group in allowed])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = tools.BY_NAME.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:100]!r}")
        try:
            answer = await tools.call(work_of(context.request), tool, params.arguments or {})
        except Exception:  # noqa: BLE001 -- a bug; the assistant learns no details, the connection stays open
            _log.exception("the tool %s failed because of a defect", tool.name)
            raise MCPError(types.INTERNAL_ERROR, f"the tool {tool.name} failed because of a defect") from None
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer.text)], is_error=answer.is_error
        )

    async def list_resources(context: Any, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        cursor = None if params is None else params.cursor
        try:
            found, following = await resources.page(work_of(context.request), cursor)
        except (CommandError, Refused) as error:
            raise _refused(error) from None
        shown = [types.Resource(uri=uri, name=name, description=text, mime_type=JSON) for uri, name, text in found]
        return types.ListResourcesResult(resources=shown, next_cursor=following)

    async def read_resource(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            text = await resources.read(work_of(context.request), str(params.uri))
        except (CommandError, Refused) as error:
            raise _refused(error) from None
        contents = types.TextResourceContents(uri=params.uri, mime_type=JSON, text=text)
        return types.ReadResourceResult(contents=[contents])

    async def get_prompt(context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        try:
            text = prompts.text(params.name, params.arguments or {})
        except Refused as error:
            raise _refused(error) from None
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(description=prompts.BY_NAME[params.name].description, messages=[message])

    server: Server[Any] = Server(
        "whippet",
        version=version(),
        instructions=INSTRUCTIONS,
        get_tool_input_schema=_schema,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=read_resource,
        on_list_prompts=_list_prompts,
        on_get_prompt=get_prompt,
    )
    # It opens a span of OpenTelemetry for each request, which nobody collects.
    server.middleware.clear()
    return server


@functools.cache
def _described(tool: tools.Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        read_only_hint=tool.group is Group.READ, destructive_hint=tool.group in (Group.UPDATE, Group.DELETE)
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=parameters.schema(tool.parameters),
        annotations=hints,
    )


def _schema(name: str) -> dict[str, Any] | None:
    tool = tools.BY_NAME.get(name)
    return None if tool is None else parameters.schema(tool.parameters)


async def _list_templates(
    context: Any, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    found = [
        types.ResourceTemplate(uri_template=uri, name=name, description=text, mime_type=JSON)
        for uri, name, text in resources.TEMPLATES
    ]
    return types.ListResourceTemplatesResult(resource_templates=found)


async def _list_prompts(context: Any, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    found = []
    for prompt in prompts.PROMPTS:
        arguments = [
            types.PromptArgument(name=each.name, description=each.description, required=each.required)
            for each in prompt.arguments
        ]
        found.append(types.Prompt(name=prompt.name, description=prompt.description, arguments=arguments))
    return types.ListPromptsResult(prompts=found)


def _refused(error: CommandError | Refused) -> MCPError:
    return MCPError(types.INVALID_PARAMS, str(error), {"error": error_name(error)})
