"""Resolves what the options name (earliest, latest, offsets, times) to one offset per partition."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_whippet.errors import DataLossError, OptionError
from pyspark_whippet.offsets import Position, canonical
from pyspark_whippet.partition_bounds import Backend, PartitionBounds, TopicBounds
from pyspark_whippet.settings import EARLIEST, LATEST, Offsets, Point, Settings

At = Callable[[str, int, PartitionBounds], int]


def end_offsets(all_bounds: TopicBounds) -> Offsets:
    return {
        topic: {str(number): each.next_offset for number, each in found.items()} for topic, found in all_bounds.items()
    }


def epochs(all_bounds: TopicBounds) -> Offsets:
    return {
        topic: {str(number): each.epoch for number, each in found.items() if each.epoch is not None}
        for topic, found in all_bounds.items()
    }


def end_position(all_bounds: TopicBounds) -> Position:
    return Position(end_offsets(all_bounds), epochs(all_bounds))


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
        _check_named(all_bounds, times, option, "")
        return _each(
            all_bounds, lambda topic, number, bounds: at_time(topic, number, bounds, times[topic][str(number)])
        )
    if point.offsets == "earliest":
        return _each(all_bounds, first)
    if point.offsets == "latest":
        return end_offsets(all_bounds)
    assert isinstance(point.offsets, dict)
    offsets = point.offsets
    words = " (-2 is earliest, -1 latest)" if which == "starting" else " (-1 is latest)"
    _check_named(all_bounds, offsets, f"{which}Offsets", words)

    def given(topic: str, number: int, bounds: PartitionBounds) -> int:
        offset = offsets[topic][str(number)]
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


def _check_named(all_bounds: TopicBounds, offsets: Offsets, option: str, others: str) -> None:
    """As in Kafka's source, all partitions are named, and no others: nobody has to know what happens to the rest."""
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
    for topic, there in all_bounds.items():
        missing = [number for number in there if str(number) not in offsets.get(topic, {})]
        if missing:
            raise OptionError(f"option '{option}': name all partitions; {topic} has {missing}, too{others}")
