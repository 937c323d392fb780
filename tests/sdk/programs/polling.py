"""Fills a partition with numbered messages, then makes the polls of the task in turn."""

from typing import Any

from apache_iggy import PollingStrategy
from scenario import Task, connected, execute, refusal, say, send, text
from versions import poll


def strategy_of(words: list[Any], times: dict[int, int]) -> PollingStrategy:
    """Decodes ["Offset", 5]; ["Timestamp", 5, 1] is 1 us later than the message at offset 5."""
    name, *value = words
    if name == "Timestamp":
        offset, later = value
        return PollingStrategy.Timestamp(times[offset] + later)
    return getattr(PollingStrategy, name)(*value)


async def main(task: Task) -> None:
    client = await connected(task)
    stream, topic = task["stream"], task["topic"]
    await client.create_stream(stream)
    await client.create_topic(stream, topic, 2)
    number = 0
    for size in task["batches"]:
        await send(client, task, 0, [f"{number + index}" for index in range(size)])
        number += size
    everything = await poll(client, stream, topic, 0, PollingStrategy.First(), 10_000, False)
    times = {message.offset(): message.timestamp() for message in everything}
    for words, count, auto_commit in task["polls"]:
        strategy = strategy_of(words, times)
        found = await poll(client, stream, topic, task.get("partition", 0), strategy, count, auto_commit)
        assert all(text(message) == f"{message.offset()}" for message in found)
        say(polled=[message.offset() for message in found])
    for *where, count in task.get("refused", []):
        say(refused=await refusal(poll, client, *where, PollingStrategy.First(), count, False))


execute(main)
