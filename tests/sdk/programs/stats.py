"""Reads the statistics of the server, does things that they count, and reads them again."""

from typing import Any

from apache_iggy import IggyClient, SendMessage
from scenario import Task, connected, execute, say

NUMBERS = (
    "process_id",
    "cpu_usage",
    "total_cpu_usage",
    "memory_usage",
    "total_memory",
    "available_memory",
    "start_time",
    "read_bytes",
    "written_bytes",
    "messages_size_bytes",
    "streams_count",
    "topics_count",
    "partitions_count",
    "segments_count",
    "messages_count",
    "clients_count",
    "consumer_groups_count",
    "iggy_server_semver",
    "threads_count",
    "free_disk_space",
    "total_disk_space",
)
TEXTS = ("hostname", "os_name", "os_version", "kernel_version", "iggy_server_version")


async def seen(client: IggyClient) -> dict[str, Any]:
    stats = await client.get_stats()
    return {name: getattr(stats, name) for name in NUMBERS + TEXTS} | {
        "run_time": stats.run_time.total_seconds(),
        "cache_metrics": [
            [key.stream_id, key.topic_id, key.partition_id, metrics.hits, metrics.misses, metrics.hit_ratio]
            for key, metrics in stats.cache_metrics.items()
        ],
    }


async def main(task: Task) -> None:
    client, name = await connected(task), task["name"]
    say(before=await seen(client))
    await client.create_stream(name)
    await client.create_topic(name, "t", 3)
    await client.create_consumer_group(name, "t", "g")
    await client.send_messages(name, "t", 1, [SendMessage("x" * 100) for _ in range(5)])
    other = await connected(task)
    say(during=await seen(other))
    await client.delete_stream(name)
    say(after=await seen(client))


execute(main)
