"""Sends the messages of the task to their partitions, and reads them back."""

import hashlib
import time
from typing import Any

from apache_iggy import SendMessage
from scenario import Task, connected, execute, poll_all, refusal, say, send
from versions import where


def made(payload: str | dict[str, Any]) -> str | bytes:
    """Builds a payload of the task: text as it is, bytes as {"hex": ...}, a large one as {"size": ...} or
    {"text_size": ...}."""
    if isinstance(payload, str):
        return payload
    if "hex" in payload:
        return bytes.fromhex(str(payload["hex"]))
    if "text_size" in payload:
        return "x" * int(payload["text_size"])
    return bytes(range(256)) * (int(payload["size"]) // 256)


def digest(payload: str | bytes) -> str:
    return hashlib.sha256(payload.encode() if isinstance(payload, str) else payload).hexdigest()


def seen(message: Any) -> dict[str, Any]:
    content = message.payload()
    short = {"payload": content.hex()} if len(content) < 256 else {}
    return {
        "offset": message.offset(),
        "id": str(message.id()),
        "timestamp": message.timestamp(),
        "checksum": message.checksum(),
        "length": message.length(),
        "digest": digest(content),
        **short,
        **where(message),
    }


async def main(task: Task) -> None:
    client = await connected(task)
    await client.create_stream(task["stream"])
    await client.create_topic(task["stream"], task["topic"], task["partitions"])
    for partition, payloads in task["batches"]:
        batch = [made(payload) for payload in payloads]
        say(sent=partition, digests=[digest(payload) for payload in batch], lengths=[len(part) for part in batch])
        begin = time.perf_counter()
        say(answer=await refusal(send, client, task, partition, batch), seconds=time.perf_counter() - begin)
    for stream, topic, partition in task.get("elsewhere", []):
        say(elsewhere=await refusal(client.send_messages, stream, topic, partition, [SendMessage("lost")]))
    for partition in range(task["partitions"]):
        say(partition=partition, messages=[seen(message) for message in await poll_all(client, task, partition)])
    again = [message.checksum() for message in await poll_all(client, task, 0)]
    say(checksums_again=again, messages_count=(await client.get_topic(task["stream"], task["topic"])).messages_count)


execute(main)
