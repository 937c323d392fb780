"""Rates over time and latencies, as the dashboard's charts get them."""

from __future__ import annotations

from itertools import pairwise

from whippet.app.commands.requests import PollMessages, SendMessages
from whippet.app.model.sessions import Transport
from whippet.app.telemetry.activity import WIDTHS, Activity
from whippet.app.telemetry.measurements import Measurements

SECOND = 1_000_000


class World:
    """A server whose seconds pass when a test says so."""

    def __init__(self) -> None:
        self.measurements = Measurements()
        self.seconds = 0.0
        timed = {SendMessages: "send_messages", PollMessages: "poll_messages"}
        self.activity = Activity(
            lambda: self.measurements, lambda: int(self.seconds * SECOND), lambda: self.seconds, timed
        )

    def pass_by(self, seconds: int, messages: int = 0, each: float = 1.0) -> None:
        for _ in range(seconds):
            self.measurements.messages_sent += messages
            self.measurements.messages_polled += 2 * messages
            self.measurements.bytes_sent += 100 * messages
            self.seconds += each
            self.activity.measure()


def test_each_point_has_the_rates_of_its_own_second() -> None:
    world = World()
    world.pass_by(2)
    world.pass_by(1, messages=5)
    world.pass_by(1)
    points = world.activity.points(1)
    assert [point.at for point in points] == [each * SECOND for each in (1, 2, 3, 4)]
    assert [point.messages_in for point in points] == [0, 0, 5, 0]
    assert [point.messages_out for point in points] == [0, 0, 10, 0]
    assert [point.bytes_in for point in points] == [0, 0, 500, 0]
    assert world.activity.latest == points[-1]
    assert world.activity.points(1, since=2 * SECOND) == points[2:]


def test_wider_points_are_averages_and_no_ring_grows_without_end() -> None:
    world = World()
    world.pass_by(24, messages=12)
    assert [(point.at, point.messages_in) for point in world.activity.points(12)] == [
        (12 * SECOND, 12),
        (24 * SECOND, 12),
    ]
    world.pass_by(4000)
    assert {width: len(world.activity.points(width)) for width in WIDTHS} == {1: 300, 12: 300, 300: 13}


def test_a_second_that_was_measured_late_or_early_is_neither_lost_nor_counted_twice() -> None:
    world = World()
    for each in (0.98, 1.02, 3.5, 1.0):
        world.pass_by(1, messages=10, each=each)
    points = world.activity.points(1)
    assert len(points) == 4
    widths = [(after.at - before.at) / SECOND for before, after in pairwise(points)]
    assert round(sum(width * point.messages_in for width, point in zip(widths, points[1:], strict=True))) == 30
    assert points[2].messages_in < 3


def test_latencies_are_those_of_the_last_minute_by_command_and_transport() -> None:
    world = World()
    sends = world.measurements.commands[SendMessages]
    for _ in range(98):
        sends[Transport.TCP].add(0.000_2)
    for _ in range(2):
        sends[Transport.TCP].add(100.0)
    world.measurements.commands[PollMessages][Transport.HTTP].add(0.003)
    (send, poll) = world.activity.latencies()
    assert (send.command, send.transport, send.count, send.p50, send.p99) == (
        "send_messages",
        "tcp",
        100,
        0.000_25,
        None,
    )
    assert (poll.command, poll.transport, poll.p50, poll.p99) == ("poll_messages", "http", 0.005, 0.005)
    world.pass_by(50)
    assert len(world.activity.latencies()) == 2
    world.pass_by(30)
    assert world.activity.latencies() == []


def test_what_was_counted_before_the_server_was_ready_is_no_rate() -> None:
    world = World()
    assert world.activity.latest is None
    world.measurements = Measurements()
    world.pass_by(1)
    assert [point.messages_in for point in world.activity.points(1)] == [0]
