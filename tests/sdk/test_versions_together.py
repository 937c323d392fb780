"""A producer of one version, a consumer of another: messages are the same for all, although their headers differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.sdk.support.environments import VERSIONS
from tests.sdk.support.program import Program, Sdk
from tests.sdk.support.server import Server

PAIRS = list(itertools.product(VERSIONS, VERSIONS))


def produce(start: Callable[..., Program], sdk: Sdk, task: dict[str, object], **more: object) -> None:
    producer = start(sdk, "producer", **task, **more, batch=10)
    producer.tell("go")
    producer.end()


@pytest.mark.parametrize(("of_producer", "of_consumer"), PAIRS, ids=str)
def test_what_one_version_sends_another_polls_and_consumes(
    sdks: dict[str, Sdk], server: Server, start: Callable[..., Program], name: str, of_producer: str, of_consumer: str
) -> None:
    task: dict[str, object] = {"address": server.address, "stream": name, "topic": "t", "partitions": 2}
    produce(start, sdks[of_producer], task, count=50)
    reader = start(sdks[of_consumer], "reading", **task, group="g")
    reader.end()
    sent = [[f"{partition}:{number}" for number in range(50)] for partition in range(2)]
    assert reader.all("polled") == [sent]
    assert sorted(reader.all("consumed")[0]) == sorted(itertools.chain(*sent))


def test_a_partition_filled_by_all_versions_is_read_by_all(
    sdks: dict[str, Sdk], server: Server, start: Callable[..., Program], name: str
) -> None:
    task: dict[str, object] = {"address": server.address, "stream": name, "topic": "t", "partitions": 1}
    for round_number, sdk in enumerate([*sdks.values(), *sdks.values()]):
        produce(start, sdk, task, count=20, first=20 * round_number, create=round_number == 0)
    sent = [f"0:{number}" for number in range(120)]
    for version, sdk in sdks.items():
        reader = start(sdk, "reading", **task, group=f"of {version}")
        reader.end()
        assert reader.all("polled") == [[sent]], version
        assert reader.all("consumed") == [sent], version
