"""Prompts: how an assistant finds a message with the tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from whippet.app.mcp.parameters import INVALID
from whippet.app.mcp.work import Refused

ARGUMENT_MAX = 2000


class Argument(NamedTuple):
    name: str
    description: str
    required: bool = False


class Prompt(NamedTuple):
    name: str
    description: str
    arguments: tuple[Argument, ...]
    text: Callable[[Mapping[str, str]], str]


def _find_message(given: Mapping[str, str]) -> str:
    place = _place(given)
    between = " and ".join(
        f"{word} {given[name]}" for name, word in (("since", "sent after"), ("until", "sent before")) if name in given
    )
    return f"""Find the message that is described here: {given["what"]}
It is in {place}{f", and it was {between}" if between else ""}.

1. If the topic is not known, read the resource whippet://streams or call get_streams and get_topics, and choose the
   topics whose names fit.
2. Call get_topic: each partition has messages from offset 0, or later if old ones were deleted, to current_offset.
3. If there is a time, poll each partition with strategy=timestamp and that time in microseconds since 1970.
   Otherwise begin at the end: strategy=last, then earlier offsets with strategy=offset.
4. Compare the payloads and headers. If a response has left_out, follow what it says under `more`.
5. Do not use strategy=next or auto_commit: they change the stored offset.

Report the stream, the topic, the partition, the offset, the time and the payload, or which ranges you have searched
without success."""


def _message_at(given: Mapping[str, str]) -> str:
    return f"""Show what was sent to {_place(given)} around this time: {given["when"]}

Convert the time to microseconds since 1970 (UTC unless it says otherwise). Call get_topic for the partitions, then
poll_messages for each with strategy=timestamp, that time and a small count. To see what came before, poll with
strategy=offset from a few offsets earlier. Do not use strategy=next or auto_commit. Report the messages of all
partitions in the order of their timestamps, with partition and offset."""


def _place(given: Mapping[str, str]) -> str:
    stream, topic = given.get("stream"), given.get("topic")
    if stream and topic:
        return f"the topic {topic} of the stream {stream}"
    if stream:
        return f"a topic of the stream {stream}"
    return f"a topic called {topic}" if topic else "a topic that is not known yet"


_STREAM, _TOPIC = Argument("stream", "its name or id, if it is known"), Argument("topic", "its name or id, if known")
PROMPTS = (
    Prompt(
        "find_message",
        "Find my message: search topics for a message by its content.",
        (
            Argument("what", "what is known about the message: a text, an id, a field and its value", required=True),
            _STREAM,
            _TOPIC,
            Argument("since", "the earliest time"),
            Argument("until", "the latest time"),
        ),
        _find_message,
    ),
    Prompt(
        "messages_at",
        "Find my message by its time: show what was sent to a topic then.",
        (Argument("when", "the time, such as 2026-07-31T12:00:00Z", required=True), _STREAM, _TOPIC),
        _message_at,
    ),
)
BY_NAME = {prompt.name: prompt for prompt in PROMPTS}


def text(name: str, arguments: Mapping[str, str]) -> str:
    prompt = BY_NAME.get(name)
    if prompt is None:
        raise Refused(INVALID, f"there is no prompt {name[:100]!r}: choose from {', '.join(BY_NAME)}")
    known = {argument.name for argument in prompt.arguments}
    for argument, value in arguments.items():
        if argument not in known:
            raise Refused(INVALID, f"the prompt {name} has no argument {argument[:100]!r}")
        if len(value) > ARGUMENT_MAX:
            raise Refused(INVALID, f"the argument {argument} has more than {ARGUMENT_MAX} characters")
    for required in prompt.arguments:
        if required.required and not arguments.get(required.name):
            raise Refused(INVALID, f"the prompt {name} needs the argument {required.name}")
    return prompt.text({argument: value for argument, value in arguments.items() if value})
