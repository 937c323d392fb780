"""Connects in every way that the task names, and uses each connection."""

from apache_iggy import IggyClient
from scenario import Task, execute, refusal, say


async def by_string(string: str) -> None:
    client = IggyClient.from_connection_string(string)
    await client.connect()
    await client.ping()
    assert await client.get_stream("nobody made this") is None


async def by_constructor(address: str, logins: list[tuple[str, str]]) -> list[str | None]:
    """Returns the response to each login in turn; the connection is used before the first and after each one."""
    client = IggyClient(address)
    await client.connect()
    await client.ping()
    answers = [await refusal(client.get_stream, 0)]
    for user, password in logins:
        answers.append(await refusal(client.login_user, user, password))
        answers.append(await refusal(client.get_stream, 0))
    await client.ping()
    return answers


async def main(task: Task) -> None:
    if "logins" in task:
        say(answers=await by_constructor(task["address"], task["logins"]))
    else:
        say(answers={string: await refusal(by_string, string) for string in task["strings"]})


execute(main)
