"""A program with the official SDK 0.9 over HTTP. It prints its results as a line of JSON.

Run with the interpreter of the SDK: modern.py <address of the HTTP port> <a personal access token>
"""

import asyncio
import json
import sys
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from apache_iggy import (
    Consumer,
    Durability,
    GlobalPermissions,
    HeaderKey,
    HeaderValue,
    HttpConfig,
    IggyClient,
    Partitioning,
    Permissions,
    PollingStrategy,
    SendMessage,
)


def headers_of(message: Any) -> list[str] | None:
    headers = message.user_headers()
    return None if headers is None else sorted(map(str, headers.to_scalar_dict().items()))


async def refusal(requested: Awaitable[object]) -> str:
    try:
        await requested
    except Exception as error:  # noqa: BLE001 -- its text is the result
        return str(error)
    return ""


async def catalogue(client: IggyClient, found: dict[str, Any]) -> None:
    await client.create_stream("orders")
    await client.create_topic("orders", "eu", partitions_count=2)
    topic = await client.get_topic("orders", "eu")
    found["topic"] = [topic.id, topic.name, topic.partitions_count, sorted(topic.options.to_scalar_dict())]
    await client.create_topic("orders", "own", 1, durability=Durability.PERSISTED, segment_size=1 << 20)
    own = await client.get_topic("orders", "own")
    found["own"] = own.options.to_scalar_dict()
    await client.update_topic("orders", "own", "renamed")
    found["topics"] = [topic.name for topic in await client.get_topics("orders")]
    found["no topics"] = await client.get_topics("none")
    found["missing"] = [await client.get_stream("none"), await client.get_topic("orders", "none")]
    found["unknown option"] = "4041" in await refusal(client.create_topic("orders", "x", 1, options={"color": "red"}))
    await client.create_partitions("orders", "eu", 1)
    await client.delete_partitions("orders", "eu", 1)
    found["options"] = [option.key for option in await client.describe_options("topic")]
    await client.create_consumer_group("orders", "eu", "g")
    group = await client.get_consumer_group("orders", "eu", "g")
    found["group"] = [group.id, group.name, group.partitions_count, group.members_count]
    found["groups"] = len(await client.get_consumer_groups("orders", "eu"))
    await client.delete_consumer_group("orders", "eu", "g")
    found["streams"] = [stream.name for stream in await client.get_streams()]
    found["server"] = (await client.get_stats()).streams_count


async def messages(client: IggyClient, found: dict[str, Any]) -> None:
    sent = await client.send_messages(
        "orders",
        "eu",
        Partitioning.partition_id(1),
        [
            SendMessage("first", {"who": "me", "n": 7, HeaderKey.UnsignedInt8(3): HeaderValue.Float64(1.5)}, 12345),
            SendMessage("second"),
        ],
    )
    found["sent"] = [[each.partition_id, each.base_offset] for each in sent.confirmations]
    sent = await client.send_messages("orders", "eu", Partitioning.messages_key("k"), [SendMessage("third")])
    found["by key"] = len(sent.confirmations)
    await client.send_messages("orders", "eu", Partitioning.balanced(), [SendMessage("fourth")])
    polled = await client.poll_messages(
        "orders",
        "eu",
        consumer=Consumer.Single("me"),
        polling_strategy=PollingStrategy.Offset(0),
        count=2,
        auto_commit=False,
        partition_id=1,
    )
    found["polled"] = [[each.offset(), each.payload().decode(), headers_of(each)] for each in polled]
    found["id"] = polled[0].id()
    producer = await client.producer("made", "along")
    await producer.send([SendMessage(str(i)) for i in range(1500)])
    found["produced"] = (await client.get_topic("made", "along")).messages_count


async def users(client: IggyClient, found: dict[str, Any]) -> None:
    everything = GlobalPermissions(read_streams=True)
    await client.create_user("alice", "secret", permissions=Permissions(everything, None))
    await client.update_user("alice", username="bob")
    await client.change_password("bob", "secret", "another")
    found["user"] = (await client.get_user("bob")).username
    found["users"] = len(await client.get_users())
    found["me"] = (await client.get_user("me")).username
    await client.update_permissions("bob", None)
    await client.delete_user("bob")
    found["gone"] = await client.get_user("bob")


async def main(address: str, token: str) -> None:
    found: dict[str, Any] = {}
    client = IggyClient(HttpConfig(api_url=f"http://{address}", heartbeat_interval=timedelta(seconds=1)))
    await client.connect()
    await client.login_user("iggy", "iggy")
    await catalogue(client, found)
    await messages(client, found)
    await users(client, found)
    await client.logout_user()
    with_token = IggyClient(HttpConfig(api_url=f"http://{address}", jwt=f"{token}\n"))
    await with_token.connect()
    found["with a token"] = len(await with_token.get_streams())
    with_another = IggyClient(HttpConfig(api_url=f"http://{address}", jwt="nonsense"))
    found["with another"] = await refusal(with_another.get_streams())
    sys.stdout.write(json.dumps(found) + "\n")


asyncio.run(main(*sys.argv[1:]))
