"""The names of topics and groups in Kafka, as pure functions over text.

Kafka's names of topics have letters, digits, `.`, `_` and `-`, and at most 249 of them. A name of a stream or a topic
that fits is part of that of Kafka's topic as it is. Of any other name, the characters that fit are, then `--` and its
hash; so a name that has `--` itself does not fit. The first dot after the prefix ends the name of the stream, so a
stream's name with a dot does not fit.

Slashes, which no topic has, separate the parts of a group's name.
"""

from __future__ import annotations

import re

import xxhash

from whippet.storage.offsets import Kind

PART_MAX = 70
"""The most characters of a stream's name, and of a topic's, in a name in Kafka. The prefix has at most 100."""
_STREAM = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_TOPIC = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
_MARK = "--"
_KINDS = {Kind.CONSUMER: "consumer", Kind.GROUP: "group", Kind.EXTERNAL_GROUP: "external"}


def _part(name: str, fits: re.Pattern[str]) -> str:
    if fits.fullmatch(name) and _MARK not in name and len(name) <= PART_MAX:
        return name
    mark = f"{_MARK}{xxhash.xxh3_64_hexdigest(name.encode())}"
    return _UNFIT.sub("_", name)[: PART_MAX - len(mark)].rstrip("-") + mark


def topic(prefix: str, stream: str, name: str) -> str:
    """Returns the name of a topic in Kafka."""
    return f"{prefix}{_part(stream, _STREAM)}.{_part(name, _TOPIC)}"


def catalogue(prefix: str) -> str:
    """The topic of the catalogue. No stream's topic has this name: it has no dot after the prefix."""
    return f"{prefix}_catalogue"


def group(topic_name: str, kind: Kind, who: str) -> str:
    """The group of Kafka in which the offsets of a consumer or a group are stored."""
    return f"{topic_name}/{_KINDS[kind]}/{who}"
