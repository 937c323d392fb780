"""Sends requests as bytes, for which the SDK has no call. The test builds them and decodes the responses."""

from apache_iggy import SendMessage
from scenario import Task, connected, execute, say


async def main(task: Task) -> None:
    client = await connected(task)
    await client.create_stream(task["name"])
    await client.create_topic(task["name"], "t", 1)
    await client.send_messages(task["name"], "t", 0, [SendMessage(f"{number}") for number in range(5)])
    for code, payload in task["requests"]:
        try:
            say(answer=(await client.send_binary_request(code, bytes.fromhex(payload))).hex())
        except RuntimeError as error:
            say(answer={"refused": str(error)})


execute(main)
