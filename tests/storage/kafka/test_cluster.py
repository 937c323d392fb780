"""Requests to brokers: under which name they come, how they fail, and what is said about it."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import errors

from tests.storage.kafka.support.broker import Broker
from whippet.storage.errors import ClusterUnavailable
from whippet.storage.kafka.cluster import GROUP, Cluster, Coordinated, Refused, said
from whippet.storage.kafka.options import KafkaOptions


async def test_brokers_see_the_name_of_the_gateway(broker: Broker) -> None:
    cluster = await Cluster.open(KafkaOptions(servers=(broker.server,), client_id="gateway 7"))
    try:
        assert (await cluster.new_producer()).id >= 0
        (connection,) = cluster._client._conns.values()
        assert connection._client_id == "gateway 7"
    finally:
        await cluster.close()


async def test_one_reachable_server_is_enough(broker: Broker) -> None:
    cluster = await Cluster.open(KafkaOptions(servers=("127.0.0.1:1", broker.server)))
    await cluster.close()


async def test_a_request_that_is_refused_is_not_repeated(broker: Broker) -> None:
    cluster = await Cluster.open(KafkaOptions(servers=(broker.server,)))
    sent = []

    def request() -> object:
        sent.append(1)
        raise errors.IncompatibleBrokerVersion("too old")

    try:
        with pytest.raises(Refused, match="a test: Kafka refuses: IncompatibleBrokerVersion: too old"):
            await cluster.anywhere("a test", request, lambda _: 0)
        assert sent == [1]
    finally:
        await cluster.close()


async def test_a_request_that_may_succeed_later_is_repeated_until_its_deadline(broker: Broker) -> None:
    cluster = await Cluster.open(KafkaOptions(servers=(broker.server,), timeout_s=1.0))
    sent = []

    def request() -> object:
        sent.append(1)
        raise errors.GroupLoadInProgressError

    try:
        with pytest.raises(ClusterUnavailable, match=r"group g: no answer from the brokers within 1 s: GroupLoadIn"):
            await cluster.at_coordinator(Coordinated(GROUP, "g"), request, lambda _: 0)
        assert len(sent) > 2
        assert cluster.problem is not None
        await cluster.new_producer()
        assert cluster.problem is None
    finally:
        await cluster.close()


async def test_connections_of_those_who_wait_are_used_again(broker: Broker) -> None:
    cluster = Cluster(KafkaOptions())
    async with cluster.own_link() as first, cluster.own_link() as second:
        assert first != second
    async with cluster.own_link() as again:
        assert again == first
    await cluster.close()
    await asyncio.sleep(0)


def test_errors_of_kafka_are_one_line() -> None:
    assert said(errors.TopicAlreadyExistsError()).startswith("TopicAlreadyExistsError: ")
    assert said(errors.KafkaError("two\n  lines")) == "KafkaError: two lines"
    assert said(TimeoutError()) == "TimeoutError"
