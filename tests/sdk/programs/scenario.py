"""Starts and ends every program in this folder: a task in the first argument, findings as lines of JSON."""

import asyncio
import datetime
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from apache_iggy import AutoCommit, AutoCommitAfter, AutoCommitWhen, IggyClient, PollingStrategy, SendMessage
from versions import MODERN, poll

Task = dict[str, Any]
"""The task as the test wrote it; its content is an agreement between the test and the program."""
SECONDS_MAX = 40
PATIENT = "?reconnection_retries=unlimited&reconnection_interval=20ms&reestablish_after=20ms"
"""The options of a client that waits while the server restarts, and reconnects at once."""
ATTENTIVE = "&heartbeat_interval=100ms" if MODERN else ""
"""For members of a group: members of 0.9 ask at their heartbeats which partitions are theirs now."""
GIVE_UP_SECONDS = 2


def execute(scenario: Callable[[Task], Coroutine[Any, Any, None]]) -> None:
    """Runs an async function on the task of this program."""

    async def bounded() -> None:
        code = 1
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await scenario(json.loads(sys.argv[1]))
            code = 0
        except BaseException:  # noqa: BLE001 -- told to the test, whatever it is
            traceback.print_exc()
        # Exits at once: a thread may still wait for a word, and the SDK's threads abort when they find no interpreter.
        sys.stderr.flush()
        os._exit(code)

    asyncio.run(bounded())


def say(**finding: object) -> None:
    print(json.dumps(finding), flush=True)  # noqa: T201 -- this is how it speaks


async def connected(task: Task, options: str = "", credentials: str = "iggy:iggy") -> IggyClient:
    """Returns a client that has logged in."""
    scheme = f"iggy+{task.get('transport', 'tcp')}"
    if scheme == "iggy+quic":
        # Two options have other names there.
        options = options.replace("reconnection_retries", "reconnection_max_retries")
        options = options.replace("reestablish_after", "reconnection_reestablish_after")
    client = IggyClient.from_connection_string(f"{scheme}://{credentials}@{task['address']}{options}")
    await client.connect()
    return client


class Lasting:
    """A client for as long as it works, and then a new one.

    If the server dies at the wrong moment, the SDK stays in the state "connecting"; 0.6 stays there forever. A program
    that has to continue then creates a new client.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.client: IggyClient = None
        self.worked()

    def worked(self) -> None:
        self.worked_at = time.monotonic()

    def works(self) -> bool:
        return time.monotonic() - self.worked_at < GIVE_UP_SECONDS

    async def connect(self) -> None:
        self.client = await connected(self.task, PATIENT + ATTENTIVE)
        self.worked()

    async def failed(self, error: object) -> bool:
        """Returns whether there is a new client."""
        say(interrupted=str(error))
        await asyncio.sleep(0.01)
        return not self.works() and await refusal(self.connect) is None


async def refusal(method: Callable[..., Awaitable[object]], *arguments: Any, **options: Any) -> str | None:
    """Returns None if a call of the SDK succeeds, and its error otherwise."""
    try:
        await method(*arguments, **options)
    except RuntimeError as error:
        return str(error)
    return None


async def send(client: IggyClient, task: Task, partition: int, payloads: Sequence[str | bytes]) -> None:
    await send_all(client, task, partition, [SendMessage(payload) for payload in payloads])


async def send_all(client: IggyClient, task: Task, partition: int, messages: list[SendMessage]) -> None:
    await client.send_messages(task["stream"], task["topic"], partition, messages)


async def poll_all(client: IggyClient, task: Task, partition: int) -> list[Any]:
    """Returns everything in a partition, however few messages each response holds."""
    found: list[Any] = []
    while True:
        strategy = PollingStrategy.Offset(len(found))
        answer = await poll(client, task["stream"], task["topic"], partition, strategy, 1000, False)
        if not answer:
            assert [message.offset() for message in found] == list(range(len(found)))
            return found
        found += answer


async def heard(word: str) -> None:
    """Waits until the test sends a word."""
    while (line := await asyncio.to_thread(sys.stdin.readline)) and line.strip() != word:
        pass


def text(message: Any) -> str:
    return str(message.payload(), "utf-8")


def milliseconds(number: float) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=number)


def auto_commit(words: Sequence[Any]) -> AutoCommit:
    """Decodes ["When", "ConsumingEachMessage"], ["IntervalOrAfter", 20, "ConsumingEveryNthMessage", 7]; intervals
    are in ms."""
    kind, *rest = words
    interval = [milliseconds(rest.pop(0))] if "Interval" in kind else []
    if not rest:
        return getattr(AutoCommit, kind)(*interval)
    mode, *number = rest
    modes = AutoCommitAfter if kind.endswith("After") else AutoCommitWhen
    return getattr(AutoCommit, kind)(*interval, getattr(modes, mode)(*number))
