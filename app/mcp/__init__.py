"""The MCP server: tools, resources and prompts with which an assistant works on a server's streams.

`protocol` is the only module that imports the package `mcp`; it is used by `whippet mcp`, whose tools send their
commands to a server, and by `/mcp` of the gateway, whose tools execute them in this process. Neither knows the tools.
"""
