"""Tries everything as several users, one for each set of permissions in the task."""

from typing import Any

from apache_iggy import (
    Consumer,
    GlobalPermissions,
    IggyClient,
    Permissions,
    PollingStrategy,
    SendMessage,
    StreamPermissions,
    TopicPermissions,
)
from scenario import Task, connected, execute, refusal, say


def permissions_of(grants: dict[str, list[str]], stream: int, topic: int) -> Permissions:
    """Decodes {"everywhere": [...], "stream": [...], "topic": [...]}: flags at each level, for this stream and this
    topic."""
    flags = {level: dict.fromkeys(grants.get(level, ()), True) for level in ("everywhere", "stream", "topic")}
    topics = {topic: TopicPermissions(**flags["topic"])} if flags["topic"] else None
    streams = {stream: StreamPermissions(**flags["stream"], topics=topics)} if flags["stream"] or topics else None
    return Permissions(GlobalPermissions(**flags["everywhere"]), streams)


def acts(client: IggyClient, new_name: str, stream: str, topic: str) -> dict[str, tuple[Any, ...]]:
    """Returns everything that needs a permission; nothing is left behind that could affect another user."""
    poll = {"polling_strategy": PollingStrategy.First(), "count": 1, "auto_commit": True, "partition_id": 0}
    return {
        "get_stats": (client.get_stats,),
        "get_users": (client.get_users,),
        "create_user": (client.create_user, f"{new_name}-u", "secret"),
        "get_streams": (client.get_streams,),
        "create_stream": (client.create_stream, new_name),
        "get_stream": (client.get_stream, stream),
        "update_stream": (client.update_stream, stream, stream),
        "purge_stream of other": (client.purge_stream, f"{stream}-other"),
        "get_topics": (client.get_topics, stream),
        "get_topic": (client.get_topic, stream, topic),
        "create_topic": (client.create_topic, stream, "made", 1),
        "update_topic": (client.update_topic, stream, topic, "t"),
        "create_partitions": (client.create_partitions, stream, topic, 1),
        "create_consumer_group": (client.create_consumer_group, stream, topic, "made"),
        "get_consumer_groups": (client.get_consumer_groups, stream, topic),
        "join_consumer_group": (client.join_consumer_group, stream, topic, "g"),
        "send": (client.send_messages, stream, topic, 0, [SendMessage("x")]),
        "poll": (lambda: client.poll_messages(stream, topic, consumer=Consumer.Single("c"), **poll),),
        "poll of other topic": (lambda: client.poll_messages(stream, "other", consumer=Consumer.Single("c"), **poll),),
    }


async def main(task: Task) -> None:
    root, name = await connected(task), task["name"]
    for stream in (name, f"{name}-other"):
        await root.create_stream(stream)
        await root.create_topic(stream, "t", 1)
        await root.create_topic(stream, "other", 1)
    await root.create_consumer_group(name, "t", "g")
    for index, grants in enumerate(task["grants"]):
        user = await root.create_user(
            f"{name[-30:]}-{index}", "secret", permissions=permissions_of(grants, (await root.get_stream(name)).id, 0)
        )
        client = await connected(task, credentials=f"{user.username}:secret")
        answers = {}
        for act, (method, *arguments) in acts(client, user.username, name, "t").items():
            answers[act] = await refusal(method, *arguments)
        say(answers=answers)
        await refusal(root.delete_topic, name, "made")
        await refusal(root.delete_consumer_group, name, "t", "made")


execute(main)
