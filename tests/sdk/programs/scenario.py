"""How every program of this folder begins and ends: a task from the first argument, findings as lines of JSON."""

import asyncio
import datetime
import json
import os
import sys

from apache_iggy import IggyClient, SendMessage

SECONDS_MAX = 50


def carry_out(scenario):
    """Runs an async function on the task that this program was given."""

    async def bounded():
        async with asyncio.timeout(SECONDS_MAX):
            await scenario(json.loads(sys.argv[1]))

    asyncio.run(bounded())
    # The threads of the SDK may touch the interpreter while that comes to its end, which then aborts.
    os._exit(0)


def say(**finding):
    print(json.dumps(finding), flush=True)  # noqa: T201 -- this is how it speaks


async def connected(task, options=""):
    """A client that has logged in, as most programs begin."""
    client = IggyClient.from_connection_string(f"iggy+tcp://iggy:iggy@{task['address']}{options}")
    await client.connect()
    return client


async def refusal(method, *arguments, **options):
    """None when a call of the SDK succeeds, else what it says."""
    try:
        await method(*arguments, **options)
    except RuntimeError as error:
        return str(error)
    return None


async def send(client, task, partition, payloads):
    await client.send_messages(task["stream"], task["topic"], partition, [SendMessage(payload) for payload in payloads])


async def heard(word):
    """Waits until the test says a word."""
    while (line := await asyncio.to_thread(sys.stdin.readline)) and line.strip() != word:
        pass


def text(message):
    return message.payload().decode()


def milliseconds(number):
    return datetime.timedelta(milliseconds=number)


async def consumer_group(client, *arguments, **options):
    """The call is a coroutine since 0.7."""
    made = client.consumer_group(*arguments, **options)
    return await made if hasattr(made, "__await__") else made
