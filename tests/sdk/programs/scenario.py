"""How every program of this folder begins and ends: a task from the first argument, findings as lines of JSON."""

import asyncio
import datetime
import json
import os
import sys
import time
import traceback

from apache_iggy import AutoCommit, AutoCommitAfter, AutoCommitWhen, IggyClient, SendMessage
from versions import MODERN

SECONDS_MAX = 40
PATIENT = "?reconnection_retries=unlimited&reconnection_interval=20ms&reestablish_after=20ms"
"""Of a client that waits for a server that restarts, and is there at once when it is back."""
ATTENTIVE = "&heartbeat_interval=100ms" if MODERN else ""
"""Of one who is in a group: members of 0.9 ask at their heartbeats which partitions are theirs by now."""
GIVE_UP_SECONDS = 2


def carry_out(scenario):
    """Runs an async function on the task that this program was given."""

    async def bounded():
        code = 1
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await scenario(json.loads(sys.argv[1]))
            code = 0
        except BaseException:  # noqa: BLE001 -- told to the test, whatever it is
            traceback.print_exc()
        # Without ado: a thread may wait for a word still, and those of the SDK abort when they find no interpreter.
        sys.stderr.flush()
        os._exit(code)

    asyncio.run(bounded())


def say(**finding):
    print(json.dumps(finding), flush=True)  # noqa: T201 -- this is how it speaks


async def connected(task, options="", credentials="iggy:iggy"):
    """A client that has logged in, as most programs begin."""
    scheme = f"iggy+{task.get('transport', 'tcp')}"
    if scheme == "iggy+quic":
        # Two options have names of their own there.
        options = options.replace("reconnection_retries", "reconnection_max_retries")
        options = options.replace("reestablish_after", "reconnection_reestablish_after")
    client = IggyClient.from_connection_string(f"{scheme}://{credentials}@{task['address']}{options}")
    await client.connect()
    return client


class Lasting:
    """A client for as long as it works, and then another one.

    When the server dies at the wrong moment the SDK ends up "connecting" and stays that, 0.6 for ever. A program that
    has to go on makes a new client then.
    """

    def __init__(self, task):
        self.task = task
        self.client = None
        self.worked()

    def worked(self):
        self.worked_at = time.monotonic()

    def works(self):
        return time.monotonic() - self.worked_at < GIVE_UP_SECONDS

    async def connect(self):
        self.client = await connected(self.task, PATIENT + ATTENTIVE)
        self.worked()

    async def failed(self, error):
        """Whether there is a new client."""
        say(interrupted=str(error))
        await asyncio.sleep(0.01)
        return not self.works() and await refusal(self.connect) is None


async def refusal(method, *arguments, **options):
    """None when a call of the SDK succeeds, else what it says."""
    try:
        await method(*arguments, **options)
    except RuntimeError as error:
        return str(error)
    return None


async def send(client, task, partition, payloads):
    await send_all(client, task, partition, [SendMessage(payload) for payload in payloads])


async def send_all(client, task, partition, messages):
    await client.send_messages(task["stream"], task["topic"], partition, messages)


async def heard(word):
    """Waits until the test says a word."""
    while (line := await asyncio.to_thread(sys.stdin.readline)) and line.strip() != word:
        pass


def text(message):
    return message.payload().decode()


def milliseconds(number):
    return datetime.timedelta(milliseconds=number)


def auto_commit(words):
    """["When", "ConsumingEachMessage"], ["IntervalOrAfter", 20, "ConsumingEveryNthMessage", 7]: interval in ms."""
    kind, *rest = words
    interval = [milliseconds(rest.pop(0))] if "Interval" in kind else []
    if not rest:
        return getattr(AutoCommit, kind)(*interval)
    mode, *number = rest
    modes = AutoCommitAfter if kind.endswith("After") else AutoCommitWhen
    return getattr(AutoCommit, kind)(*interval, getattr(modes, mode)(*number))
