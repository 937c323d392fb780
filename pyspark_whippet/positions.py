"""From what was asked for (earliest, latest, offsets, times) to the offset at which each partition begins or ends."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_whippet.errors import DataLossError, OptionError
from pyspark_whippet.extents import Extent, Extents, Origin
from pyspark_whippet.offsets import canonical
from pyspark_whippet.settings import EARLIEST, LATEST, Offsets, Point, Settings

At = Callable[[str, int, Extent], int]


def ends(extents: Extents) -> Offsets:
    return {
        topic: {str(number): each.next_offset for number, each in found.items()} for topic, found in extents.items()
    }


def starting(origin: Origin, settings: Settings, extents: Extents, default: str) -> Offsets:
    point = settings.starting or Point(offsets=default)
    return _resolve(origin, settings, extents, point, "starting")


def ending(origin: Origin, settings: Settings, extents: Extents) -> Offsets:
    return _resolve(origin, settings, extents, settings.ending or Point(offsets="latest"), "ending")


def _resolve(origin: Origin, settings: Settings, extents: Extents, point: Point, which: str) -> Offsets:
    def at_time(topic: str, number: int, extent: Extent, timestamp_us: int) -> int:
        found = origin.offset_at(topic, number, timestamp_us) if extent.messages else None
        if found is not None:
            return found
        if which == "starting" and settings.timestamps_without_match == "error":
            raise OptionError(
                f"{topic} partition {number}: no message is from {timestamp_us // 1000} ms or later; "
                "set startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return extent.next_offset

    def first(topic: str, number: int, extent: Extent) -> int:
        return origin.first_offset(topic, number, extent)

    if point.timestamp_us is not None:
        timestamp_us = point.timestamp_us
        return _each(extents, lambda topic, number, extent: at_time(topic, number, extent, timestamp_us))
    if point.timestamps_us is not None:
        times = point.timestamps_us
        option = f"{which}OffsetsByTimestamp"
        _check_known(extents, times, option)

        def timed(topic: str, number: int, extent: Extent) -> int:
            given = times.get(topic, {}).get(str(number))
            if given is not None:
                return at_time(topic, number, extent, given)
            return first(topic, number, extent) if which == "starting" else extent.next_offset

        return _each(extents, timed)
    if point.offsets == "earliest":
        return _each(extents, first)
    if point.offsets == "latest":
        return ends(extents)
    assert isinstance(point.offsets, dict)
    offsets = point.offsets
    _check_known(extents, offsets, f"{which}Offsets")

    def given(topic: str, number: int, extent: Extent) -> int:
        offset = offsets.get(topic, {}).get(str(number), EARLIEST if which == "starting" else LATEST)
        if offset == EARLIEST:
            return first(topic, number, extent)
        if offset == LATEST:
            return extent.next_offset
        if offset > extent.next_offset:
            place = f"option '{which}Offsets': {topic} partition {number}"
            sentence = f"{place}: {offset} is beyond the end of the log, which is {extent.next_offset}"
            if settings.fail_on_data_loss:
                raise DataLossError(sentence)
            return extent.next_offset
        return offset

    return _each(extents, given)


def _each(extents: Extents, at: At) -> Offsets:
    offsets = {
        topic: {str(number): at(topic, number, extent) for number, extent in partitions.items()}
        for topic, partitions in extents.items()
    }
    return canonical(offsets)


def _check_known(extents: Extents, offsets: Offsets, option: str) -> None:
    for topic, partitions in offsets.items():
        if topic not in extents:
            raise OptionError(
                f"option '{option}': {topic} is not among what is read: {', '.join(extents) or 'nothing'}"
            )
        for number in partitions:
            if int(number) not in extents[topic]:
                raise OptionError(f"option '{option}': {topic} has no partition {number} that is read")
