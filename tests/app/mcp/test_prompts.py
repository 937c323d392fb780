"""Prompts: their texts and their arguments."""

from __future__ import annotations

import re

import pytest

from whippet.app.mcp import prompts, tools
from whippet.app.mcp.work import Refused


def test_the_arguments_appear_in_the_text_of_find_message() -> None:
    given = {"what": "order 4711", "stream": "orders", "topic": "eu", "since": "monday", "until": "today"}
    text = prompts.text("find_message", given)
    assert "described here: order 4711\n" in text
    assert "the topic eu of the stream orders, and it was sent after monday and sent before today." in text
    assert "a topic that is not known yet." in prompts.text("find_message", {"what": "x"})
    assert "a topic of the stream orders." in prompts.text("find_message", {"what": "x", "stream": "orders"})
    assert "a topic called eu." in prompts.text("find_message", {"what": "x", "topic": "eu", "since": ""})
    assert "around this time: noon" in prompts.text("messages_at", {"when": "noon"})


def test_prompts_name_only_tools_that_there_are_and_need_no_change() -> None:
    for prompt in prompts.PROMPTS:
        text = prompt.text({argument.name: "x" for argument in prompt.arguments})
        named = set(re.findall(r"\b(?:get|poll)_[a-z_]+", text))
        assert named <= tools.BY_NAME.keys()
        assert {tools.BY_NAME[name].group.value for name in named} == {"read"}


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("none", {}, "there is no prompt"),
        ("find_message", {}, "needs the argument what"),
        ("find_message", {"what": ""}, "needs the argument what"),
        ("find_message", {"what": "x", "where": "y"}, "no argument 'where'"),
        ("find_message", {"what": "x" * 2001}, "more than 2000"),
    ],
)
def test_other_prompts_and_arguments_are_refused(name: str, given: dict[str, str], why: str) -> None:
    with pytest.raises(Refused, match=why):
        prompts.text(name, given)
