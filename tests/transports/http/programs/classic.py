"""A program with the official SDK 0.6 to 0.8 over HTTP. It prints its results as a line of JSON.

Run with the interpreter of the SDK: classic.py <address of the HTTP port>
"""

import asyncio
import json
import sys

from apache_iggy import IggyClient, PollingStrategy, SendMessage


async def main(address: str) -> None:
    client = IggyClient.from_connection_string(f"iggy+http://iggy:iggy@{address}")
    await client.connect()
    await client.ping()
    await client.login_user("iggy", "iggy")
    await client.create_stream("orders")
    await client.create_topic("orders", "eu", partitions_count=2)
    stream, topic = await client.get_stream("orders"), await client.get_topic("orders", "eu")
    await client.send_messages("orders", "eu", 1, [SendMessage(f"order {i}") for i in range(3)])
    await client.send_messages("orders", "eu", 1, [SendMessage(b"\xff\0")])
    polled = await client.poll_messages("orders", "eu", 1, PollingStrategy.Next(), 10, True)
    again = await client.poll_messages("orders", "eu", 1, PollingStrategy.Next(), 10, True)
    missing = [await client.get_stream("none"), await client.get_topic("orders", "none")]
    try:
        await client.create_stream("orders")
        refused = ""
    except Exception as error:  # noqa: BLE001 -- its text is the result
        refused = str(error)
    found = {
        "stream": [stream.id, stream.name, stream.topics_count],
        "topic": [topic.id, topic.name, topic.partitions_count],
        "polled": [[message.offset(), message.payload().hex(), message.id() > 0] for message in polled],
        "again": len(again),
        "missing": missing,
        "refused": "stream_name_already_exists" in refused,
    }
    sys.stdout.write(json.dumps(found) + "\n")


asyncio.run(main(sys.argv[1]))
