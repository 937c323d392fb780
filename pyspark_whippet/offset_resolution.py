"""Resolves what the options name (earliest, latest, offsets, times) to one offset per partition."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_whippet.errors import DataLossError, OptionError
from pyspark_whippet.offsets import canonical
from pyspark_whippet.partition_bounds import Backend, PartitionBounds, TopicBounds
from pyspark_whippet.settings import EARLIEST, LATEST, Offsets, Point, Settings

At = Callable[[str, int, PartitionBounds], int]


def end_offsets(all_bounds: TopicBounds) -> Offsets:
    return {
        topic: {str(number): each.next_offset for number, each in found.items()} for topic, found in all_bounds.items()
    }


def starting_offsets(backend: Backend, settings: Settings, all_bounds: TopicBounds, default: str) -> Offsets:
    point = settings.starting or Point(offsets=default)
    return _resolve(backend, settings, all_bounds, point, "starting")


def ending_offsets(backend: Backend, settings: Settings, all_bounds: TopicBounds) -> Offsets:
    return _resolve(backend, settings, all_bounds, settings.ending or Point(offsets="latest"), "ending")


def _resolve(backend: Backend, settings: Settings, all_bounds: TopicBounds, point: Point, which: str) -> Offsets:
    def at_time(topic: str, number: int, bounds: PartitionBounds, timestamp_us: int) -> int:
        found = backend.offset_at(topic, number, timestamp_us) if bounds.messages else None
        if found is not None:
            return found
        if which == "starting" and settings.timestamps_without_match == "error":
            raise OptionError(
                f"{topic} partition {number}: no message was appended at {timestamp_us // 1000} ms or later; "
                "set startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return bounds.next_offset

    def first(topic: str, number: int, bounds: PartitionBounds) -> int:
        return backend.first_offset(topic, number, bounds)

    if point.timestamp_us is not None:
        timestamp_us = point.timestamp_us
        return _each(all_bounds, lambda topic, number, bounds: at_time(topic, number, bounds, timestamp_us))
    if point.timestamps_us is not None:
        times = point.timestamps_us
        option = f"{which}OffsetsByTimestamp"
        _check_known(all_bounds, times, option)

        def timed(topic: str, number: int, bounds: PartitionBounds) -> int:
            given = times.get(topic, {}).get(str(number))
            if given is not None:
                return at_time(topic, number, bounds, given)
            return first(topic, number, bounds) if which == "starting" else bounds.next_offset

        return _each(all_bounds, timed)
    if point.offsets == "earliest":
        return _each(all_bounds, first)
    if point.offsets == "latest":
        return end_offsets(all_bounds)
    assert isinstance(point.offsets, dict)
    offsets = point.offsets
    _check_known(all_bounds, offsets, f"{which}Offsets")

    def given(topic: str, number: int, bounds: PartitionBounds) -> int:
        offset = offsets.get(topic, {}).get(str(number), EARLIEST if which == "starting" else LATEST)
        if offset == EARLIEST:
            return first(topic, number, bounds)
        if offset == LATEST:
            return bounds.next_offset
        if offset > bounds.next_offset:
            place = f"option '{which}Offsets': {topic} partition {number}"
            sentence = f"{place}: {offset} is after the end of the log, which is {bounds.next_offset}"
            if settings.fail_on_data_loss:
                raise DataLossError(sentence)
            return bounds.next_offset
        return offset

    return _each(all_bounds, given)


def _each(all_bounds: TopicBounds, at: At) -> Offsets:
    offsets = {
        topic: {str(number): at(topic, number, bounds) for number, bounds in partitions.items()}
        for topic, partitions in all_bounds.items()
    }
    return canonical(offsets)


def _check_known(all_bounds: TopicBounds, offsets: Offsets, option: str) -> None:
    for topic, partitions in offsets.items():
        if topic not in all_bounds:
            raise OptionError(
                f"option '{option}': {topic} is not one of the topics to read: {', '.join(all_bounds) or 'none'}"
            )
        for number in partitions:
            if int(number) not in all_bounds[topic]:
                raise OptionError(
                    f"option '{option}': partition {number} of {topic} is not one of the partitions to read"
                )
