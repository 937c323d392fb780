"""The kinds of load, after those of Iggy's benchmark: which actors each has, its defaults, and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of load. Options that are in neither `counts` nor `others` do not apply to it."""

    name: str
    alias: str
    summary: str
    counts: Mapping[str, int | str]
    """The numbers of things and their defaults; a default may be the name of another number."""
    produces: bool = False
    consumes: bool = False
    is_grouped: bool = False
    """Consumers are members of consumer groups, and producers let the server choose the partition."""
    is_joint: bool = False
    """A producer and a consumer share a connection and take turns."""

    @property
    def applicable(self) -> frozenset[str]:
        """The options that not every kind has."""
        found = set(self.counts)
        if self.produces:
            found |= {"message_size", "message_expiry", "max_topic_size", "reuse_streams", "keep"}
        if self.produces and self.consumes and not self.is_joint:
            found.add("read_amplification")
        return frozenset(found)


PINNED_PRODUCER = Kind(
    "pinned-producer",
    "pp",
    "each producer has a stream with one partition",
    {"streams": "producers", "producers": 8},
    produces=True,
)
PINNED_CONSUMER = Kind(
    "pinned-consumer",
    "pc",
    "each consumer reads a stream that is there",
    {"streams": "consumers", "consumers": 8},
    consumes=True,
)
PINNED_PRODUCER_AND_CONSUMER = Kind(
    "pinned-producer-and-consumer",
    "ppc",
    "the same, while consumers read these streams",
    {"streams": "producers", "partitions": 1, "producers": 8, "consumers": 8},
    produces=True,
    consumes=True,
)
BALANCED_PRODUCER = Kind(
    "balanced-producer",
    "bp",
    "producers send to topics of several partitions in turn",
    {"streams": 1, "partitions": 24, "producers": 8},
    produces=True,
    is_grouped=True,
)
BALANCED_CONSUMER_GROUP = Kind(
    "balanced-consumer-group",
    "bcg",
    "consumer groups read streams that are there",
    {"streams": 1, "consumers": 8, "consumer_groups": 1},
    consumes=True,
    is_grouped=True,
)
BALANCED_PRODUCER_AND_CONSUMER_GROUP = Kind(
    "balanced-producer-and-consumer-group",
    "bpcg",
    "producers send to several partitions while consumer groups read them",
    {"streams": 1, "partitions": 24, "producers": 8, "consumers": 8, "consumer_groups": 1},
    produces=True,
    consumes=True,
    is_grouped=True,
)
END_TO_END_PRODUCING_CONSUMER = Kind(
    "end-to-end-producing-consumer",
    "e2e",
    "each actor sends a batch, reads it back, and sends the next one",
    {"streams": "producers", "producers": 8},
    produces=True,
    consumes=True,
    is_joint=True,
)
END_TO_END_PRODUCING_CONSUMER_GROUP = Kind(
    "end-to-end-producing-consumer-group",
    "e2ecg",
    "each actor sends and polls in turn, as a member of a consumer group",
    {"streams": 1, "partitions": 24, "producers": 8, "consumers": 8, "consumer_groups": 1},
    produces=True,
    consumes=True,
    is_grouped=True,
    is_joint=True,
)
KINDS = (
    PINNED_PRODUCER,
    PINNED_CONSUMER,
    PINNED_PRODUCER_AND_CONSUMER,
    BALANCED_PRODUCER,
    BALANCED_CONSUMER_GROUP,
    BALANCED_PRODUCER_AND_CONSUMER_GROUP,
    END_TO_END_PRODUCING_CONSUMER,
    END_TO_END_PRODUCING_CONSUMER_GROUP,
)
BY_NAME = {name: kind for kind in KINDS for name in (kind.name, kind.alias)}


def broken_rule(kind: Kind, counts: Mapping[str, int]) -> str | None:
    """Returns what is wrong with a combination of numbers, or None. Numbers that a kind does not have are missing."""
    streams, producers = counts["streams"], counts.get("producers", 0)
    consumers, groups = counts.get("consumers", 0), counts.get("consumer_groups", 0)
    partitions = counts.get("partitions")
    if kind is PINNED_CONSUMER and streams != consumers:
        return f"{kind.name} needs a stream for each consumer: --streams {streams} is not --consumers {consumers}"
    if kind in (PINNED_PRODUCER, PINNED_PRODUCER_AND_CONSUMER) and streams != producers:
        return f"{kind.name} needs a stream for each producer: --streams {streams} is not --producers {producers}"
    if kind is PINNED_PRODUCER_AND_CONSUMER and partitions != 1:
        return f"{kind.name} has topics of one partition, not --partitions {partitions}; balanced kinds have several"
    if kind is BALANCED_PRODUCER and partitions is not None and partitions < 2:
        return f"{kind.name} needs at least 2 partitions, not {partitions}; pinned-producer has one"
    if producers and streams > producers:
        return (
            f"producers cannot fill more streams than there are producers: --streams {streams}, --producers {producers}"
        )
    if groups and groups < streams:
        return f"{kind.name} needs a consumer group for each stream: --consumer-groups {groups}, --streams {streams}"
    if groups and consumers < groups:
        return f"each consumer group needs a consumer: --consumers {consumers}, --consumer-groups {groups}"
    if groups and partitions is not None:
        return too_few_partitions(consumers, groups, partitions)
    return None


def too_few_partitions(consumers: int, groups: int, partitions: int) -> str | None:
    members = -(-consumers // groups)
    if members > partitions:
        return f"{members} consumers of a group cannot share {partitions} partitions: some would have nothing to read"
    return None
