"""Sends and creates on a server whose disk may be full, and reads all the same."""

from scenario import Task, connected, execute, poll_all, refusal, say, send, text


async def main(task: Task) -> None:
    client = await connected(task)
    if task["create"]:
        await client.create_stream(task["stream"])
        await client.create_topic(task["stream"], task["topic"], 1)
        await send(client, task, 0, ["before"])
        return
    say(
        sent=await refusal(send, client, task, 0, ["refused"]),
        created=await refusal(client.create_topic, task["stream"], "another", 1),
        again=await refusal(send, client, task, 0, ["refused, too"]),
        stored=[text(message) for message in await poll_all(client, task, 0)],
    )


execute(main)
