"""The table of tools: those of Iggy's MCP server, with its names and parameters.

What only changes the caller's own tokens and offsets counts as a change here; in Iggy it needs no more than `read`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from whippet.app.cli.remote.failures import Failure
from whippet.app.errors import CommandError
from whippet.app.mcp import bounds, catalogue_tools, changes, message_tools, system_tools, user_tools
from whippet.app.mcp import parameters as given
from whippet.app.mcp.work import Group, Refused, Work, error_name

READ, CREATE, UPDATE, DELETE = Group.READ, Group.CREATE, Group.UPDATE, Group.DELETE


class Tool(NamedTuple):
    group: Group
    function: Callable[[Work, Any], Awaitable[Any]]
    parameters: type[given.Parameters]
    description: str

    @property
    def name(self) -> str:
        return self.function.__name__


T = Tool
c, m, u, s = catalogue_tools, message_tools, user_tools, system_tools
TABLE: tuple[Tool, ...] = (
    T(READ, s.ping, given.Nothing, "Measure the round trip to the server."),
    T(READ, s.get_cluster_metadata, given.Nothing, "Get the nodes of the cluster and their addresses."),
    T(READ, c.get_stream, given.ListedOfStream, "Get a stream and its topics."),
    T(READ, c.get_streams, given.Listed, "List the streams."),
    T(CREATE, c.create_stream, c.NewStream, "Create a stream."),
    T(UPDATE, c.update_stream, c.RenamedStream, "Rename a stream."),
    T(DELETE, c.delete_stream, given.OfStream, "Delete a stream with everything in it."),
    T(DELETE, c.purge_stream, given.OfStream, "Delete all messages of a stream; its topics stay."),
    T(READ, c.get_topics, given.ListedOfStream, "List the topics of a stream."),
    T(READ, c.get_topic, given.ListedOfTopic, "Get a topic and its partitions, with their offsets and sizes."),
    T(CREATE, c.create_topic, c.NewTopic, "Create a topic."),
    T(UPDATE, c.update_topic, c.ChangedTopic, "Rename a topic or change its settings; what is not given stays."),
    T(DELETE, c.delete_topic, given.OfTopic, "Delete a topic with all its messages."),
    T(DELETE, c.purge_topic, given.OfTopic, "Delete all messages of a topic; the topic stays."),
    T(CREATE, c.create_partitions, c.Partitions, "Add partitions to a topic."),
    T(DELETE, c.delete_partitions, c.Partitions, "Delete the last partitions of a topic with their messages."),
    T(DELETE, c.delete_segments, c.Segments, "Delete the oldest closed segments of a partition."),
    T(READ, m.poll_messages, m.Poll, "Read messages of a partition, from an offset, a time, or either end."),
    T(CREATE, m.send_messages, m.Send, "Send messages to a topic."),
    T(READ, s.get_stats, given.Nothing, "Get statistics about the server and its process."),
    T(READ, s.get_me, given.Nothing, "Get this client as the server sees it."),
    T(READ, s.get_clients, given.Listed, "List the clients that are connected."),
    T(READ, s.get_client, s.OfClient, "Get a client and its consumer groups."),
    T(READ, s.snapshot, s.NewSnapshot, "Get texts that describe the server and its machine, for problem reports."),
    T(READ, c.get_consumer_groups, given.ListedOfTopic, "List the consumer groups of a topic."),
    T(READ, c.get_consumer_group, c.DetailsOfGroup, "Get a consumer group, its members and their partitions."),
    T(CREATE, c.create_consumer_group, c.NewGroup, "Create a consumer group."),
    T(DELETE, c.delete_consumer_group, given.OfGroup, "Delete a consumer group with its stored offsets."),
    T(READ, m.get_consumer_offset, m.OfPartition, "Get the offset that is stored for this MCP server's consumer."),
    T(DELETE, m.delete_consumer_offset, m.OfPartition, "Delete the stored offset of this MCP server's consumer."),
    T(UPDATE, m.store_consumer_offset, m.NewOffset, "Store an offset for this MCP server's consumer."),
    T(READ, u.get_personal_access_tokens, given.Listed, "List the user's personal access tokens."),
    T(CREATE, u.create_personal_access_token, u.NewToken, "Create a personal access token and show it, once."),
    T(DELETE, u.delete_personal_access_token, u.OfToken, "Delete a personal access token of the user."),
    T(READ, u.get_users, given.Listed, "List the users."),
    T(READ, u.get_user, u.DetailsOfUser, "Get a user and the permissions."),
    T(CREATE, u.create_user, u.NewUser, "Create a user, who is inactive unless `active` is true."),
    T(UPDATE, u.update_user, u.ChangedUser, "Rename a user, or make the user active or inactive."),
    T(DELETE, u.delete_user, given.OfUser, "Delete a user."),
    T(UPDATE, u.update_permissions, u.ChangedPermissions, "Replace all permissions of a user, or remove them."),
    T(UPDATE, u.change_password, u.ChangedPassword, "Change the password of a user."),
)
BY_NAME = {tool.name: tool for tool in TABLE}


class Answer(NamedTuple):
    text: str
    """JSON."""
    is_error: bool = False


class Problem(msgspec.Struct, frozen=True):
    error: str
    """The name of the error."""
    message: str


async def call(work: Work, tool: Tool, arguments: dict[str, Any]) -> Answer:
    """Calls a tool. Defects leave this as exceptions."""
    outcome = "failed"
    commits = tool.function is m.poll_messages and (
        bool(arguments.get("auto_commit")) or arguments.get("strategy") == "next"
    )
    try:
        work.require(tool.group, f"the tool {tool.name}")
        result = await tool.function(work, given.decode(tool.parameters, arguments))
        answer = Answer(bounds.render(result, work.limits).decode())
        outcome = "done"
    except (CommandError, Refused) as error:
        outcome = error_name(error)
        answer = _failed(outcome, str(error), work)
    except Failure as failure:
        outcome = given.INVALID
        answer = _failed(outcome, str(failure), work)
    finally:
        if tool.group is not READ or commits:
            user, peer = work.user, work.peer
            change = changes.Change(user, peer, tool.name, changes.recordable(arguments), outcome)
            changes.record(change)
            if work.record is not None:
                work.record(change)
    return answer


def _failed(name: str, sentence: str, work: Work) -> Answer:
    return Answer(msgspec.json.encode(Problem(name, sentence[: work.limits.response_bytes])).decode(), is_error=True)
