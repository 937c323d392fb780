"""Members of a consumer group that join one after the other."""

from __future__ import annotations

from tests.app.commands.support.reading import Reader


async def two_members_and_a_promise(first: Reader, second: Reader) -> None:
    """The first member has polled from all three partitions and committed nothing when the second joins."""
    await first.join()
    for partition in range(3):
        await first.poll(partition)
    await second.join()
