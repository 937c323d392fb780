"""Consumers in groups: what every commit mode commits, offsets stored by hand, and where reading starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sdk.support.inspector import Inspector, until
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

MESSAGES = 20
LAST = MESSAGES - 1
BATCH = 10

CALLED_BACK: dict[str, tuple[list[Any], int | None]] = {
    "disabled": (["Disabled"], None),
    "interval": (["Interval", 20], LAST),
    "when polling": (["When", "PollingMessages"], LAST),
    "when all": (["When", "ConsumingAllMessages"], LAST),
    "when each": (["When", "ConsumingEachMessage"], LAST),
    "when every 7th": (["When", "ConsumingEveryNthMessage", 7], 14),
    "after all": (["After", "ConsumingAllMessages"], LAST),
    "after each": (["After", "ConsumingEachMessage"], LAST),
    "after every 7th": (["After", "ConsumingEveryNthMessage", 7], 14),
    "interval or when polling": (["IntervalOrWhen", 20, "PollingMessages"], LAST),
    "interval or when every 7th": (["IntervalOrWhen", 20, "ConsumingEveryNthMessage", 7], LAST),
    "interval or after all": (["IntervalOrAfter", 20, "ConsumingAllMessages"], LAST),
    "interval or after every 7th": (["IntervalOrAfter", 20, "ConsumingEveryNthMessage", 7], LAST),
}
"""Commit modes, and the offset that is committed once everything has been consumed."""

ITERATED = {f"{name}, iterated": mode for name, mode in CALLED_BACK.items() if "after" not in name}


def test_every_mode_commits_what_it_promises_and_the_next_member_resumes_there(
    sdk: Sdk, server: Server, inspector: Inspector, start: Callable[..., Program], name: str
) -> None:
    modes = CALLED_BACK | (ITERATED if sdk.release >= (0, 7) else {})
    # What is not committed is read repeatedly by "next" but shown once, so it gets no further than one batch.
    expected = {group: BATCH if words == ["Disabled"] else MESSAGES for group, (words, _) in modes.items()}
    task = {"address": server.address, "stream": name, "topic": "t"}

    def consume(produce: int, counts: dict[str, int]) -> Program:
        wanted = {
            # The SDK commits "after all" only at the end of the partition: a smaller batch would be read again and
            # again.
            group: (modes[group][0], MESSAGES if group == "after all" else BATCH, count, "iterated" in group)
            for group, count in counts.items()
        }
        return start(sdk, "consuming", **task, produce=produce, modes=wanted)

    def committed() -> dict[str, int | None]:
        return {group: inspector.group_offset(name, "t", group) for group in modes}

    first = consume(MESSAGES, expected)
    consumed = first.until("consumed")["consumed"]
    assert consumed == {group: [f"{number}" for number in range(count)] for group, count in expected.items()}
    promised = {group: offset for group, (_, offset) in modes.items()}
    until(lambda: committed() == promised, f"{promised} is committed")
    first.tell("stop")
    first.end()
    for finding in first.said[1:]:
        assert (finding["stream"], finding["topic"], finding["last_of_other"]) == (name, "t", None)
        assert finding["last_consumed"] == expected[finding["group"]] - 1
    assert {finding["group"] for finding in first.said[1:]} == set(modes)
    assert committed() == promised

    left = {group: 0 if offset is None else offset + 1 for group, offset in promised.items() if offset != LAST}
    second = consume(0, {group: min(MESSAGES - begin, BATCH) for group, begin in left.items()})
    consumed = second.until("consumed")["consumed"]
    for group, begin in left.items():
        assert consumed[group] == [f"{number}" for number in range(begin, min(begin + BATCH, MESSAGES))], group
    second.tell("stop")
    second.end()


def test_offsets_can_be_stored_and_deleted_and_reading_starts_where_the_strategy_says(
    sdk: Sdk, server: Server, inspector: Inspector, start: Callable[..., Program], name: str
) -> None:
    # The SDK 0.6 advances only with "next" and "offset"; with the others it requests the same messages again. A member
    # of 0.9 reads what the group assigns to it, whichever partition it requests.
    beginning = list(range(5 if sdk.release < (0, 7) else 10))
    program = start(sdk, "offsets", address=server.address, stream=name, topic="t", expected=len(beginning))
    assert sdk.error(program.until("no_group")["no_group"]) == "ConsumerGroupNameNotFound"
    assert sdk.error(program.until("absent")["absent"]) == "StreamNameNotFound"
    assert sdk.error(program.until("absent")["absent"]) == "TopicNameNotFound"

    from_strategy = {}
    for _ in range(5):
        finding = program.until("strategy")
        from_strategy[finding["strategy"]] = finding["consumed"]
    assert from_strategy == {
        "First": beginning,
        "Offset": list(range(7, 17)),
        "Last": list(range(15, 20)),
        "Timestamp": beginning,
        "partition 1": list(range(100, 105) if sdk.release < (0, 9) else range(5)),
    }

    expected: dict[str, tuple[str | None, int | None, int | None]] = {
        "store 4": (None, 4, 4),
        "store 2": (None, 4, 2),
        "store 3 elsewhere": (None, 4, 2),
        "store 1000": ("InvalidOffset", 4, 2),
        "store in no partition": ("PartitionNotFound", 4, 2),
        "delete": (None, None, None),
        "delete again": ("ConsumerOffsetNotFound", None, None),
    }
    for replay in (False, True):
        consumed = program.until("consumed")["consumed"]
        # Nothing is committed: "next" starts from the beginning again, which the SDK passes on if replays are allowed.
        assert consumed == (list(range(5)) * 2 if replay else list(range(5)))
        for what, (refusal, stored, stored_with_replay) in expected.items():
            finding = program.until("did")
            group = finding["group"]
            assert (group, finding["did"]) == (f"replay {replay}", what)
            assert sdk.error(finding["answer"]) == refusal, finding
            seen = inspector.group_offset(name, group, group)
            assert seen == (stored_with_replay if replay else stored), finding
            program.tell("go on")
        assert inspector.group_offset(name, group, group, partition=1) == 3
    assert inspector.members(name, "t", "not joined") == []
    assert program.until("patient")["patient"] == [7]
    program.end()


def test_a_consumer_keeps_running_while_its_topic_changes(newest: Sdk, server: Server, name: str) -> None:
    program = newest.finished("changing", address=server.address, name=name)
    after = {finding["after"]: finding["consumed"] for finding in program.said}

    def messages(what: str, partitions: int = 2) -> list[list[int | str]]:
        return [[partition, f"{what} {partition}"] for partition in range(partitions)]

    two = ("joining", "shrinking", "a purge", "the topic was made again")
    expected = {what: messages(what) for what in two} | {"growing": messages("growing", 4)}
    # Deleting a group deletes its offsets: a new group of that name starts from the beginning.
    expected["the group was deleted"] = sorted(messages(two[-1]) + messages("the group was deleted"))
    assert after == expected
