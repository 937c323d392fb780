"""The metrics for Prometheus: the names of Apache Iggy, and more about this server.

`sample` gathers numbers from the live state on the event loop, for each scrape; `render` formats them, on any thread.
Nothing is kept in between, so nothing can drift. The number of series that grow with the catalogue, about single groups
and partitions, is limited by the configuration, and the number of omitted ones is exported.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.openmetrics import exposition as openmetrics

from whippet.app.commands.catalogue_info import held_back
from whippet.app.commands.registry import BY_REQUEST
from whippet.app.model.sessions import Transport
from whippet.app.telemetry.measurements import BOUNDS, Histogram
from whippet.app.version import IGGY_VERSION, version
from whippet.storage.offsets import Kind

if TYPE_CHECKING:
    from whippet.app.gateway import Gateway
    from whippet.storage.engine import Partition

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST

SERIES_PER_TOPIC = 3
SUCCESS = 2
"""The first digit of the status of a success."""

Labels = tuple[str, ...]
Values = list[tuple[Labels, float]]


class Series(NamedTuple):
    """A metric with one number for each combination of its labels."""

    name: str
    help: str
    values: Values
    labels: Labels = ()
    counts: bool = False
    """A counter: its samples have the suffix `_total`."""

    def family(self) -> Metric:
        family = (CounterMetricFamily if self.counts else GaugeMetricFamily)(self.name, self.help, labels=self.labels)
        for labels, value in self.values:
            family.add_metric(labels, value)
        return family


class Timings(NamedTuple):
    """A histogram for each combination of its labels: the counts by bound, and the sum of the seconds."""

    name: str
    help: str
    values: list[tuple[Labels, list[int], float]]
    labels: Labels

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, counts, seconds in self.values:
            buckets = list(zip(_BOUNDS, map(float, accumulate(counts)), strict=True))
            family.add_metric(labels, buckets, seconds)
        return family


EXPORTED_BOUNDS = (0.000_25, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Fewer than are measured: each costs a line for every command and transport."""
_BOUNDS = (*map(str, EXPORTED_BOUNDS), "+Inf")
_ENDS = (*(BOUNDS.index(bound) + 1 for bound in EXPORTED_BOUNDS), len(BOUNDS) + 1)
Sampled = Sequence[Series | Timings]


def sample(gateway: Gateway) -> Sampled:
    parts = (
        _of_iggy,
        _build,
        _http,
        _topics,
        _commands,
        _storage,
        _deduplication,
        _clients,
        _certificates,
        _disk,
        _archive,
        _audit,
        _telemetry,
        _readers,
    )
    return [series for part in parts for series in part(gateway)]


def render(sampled: Sampled, *, as_openmetrics: bool = False) -> bytes:
    """Both formats end with the mark of OpenMetrics, which is a comment in the other one: clients of Iggy look for
    it."""
    collected = _Collected(sampled)
    if as_openmetrics:
        return _plain_integers(openmetrics.generate_latest(collected))
    return _plain_integers(as_text(collected)) + b"# EOF\n"


class _Collected:
    """The registry that the renderers expect."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled

    def collect(self) -> Iterable[Metric]:
        for each in self._sampled:
            yield each.family()
        yield from ProcessCollector(registry=None).collect()


_WHOLE = re.compile(rb"(?<= \d)(\d*)\.0$", re.MULTILINE)


def _plain_integers(text: bytes) -> bytes:
    """`streams 1`, as Iggy writes it; the package writes 1.0."""
    return _WHOLE.sub(rb"\1", text)


# ---------------------------------------------------------------------------------------------------------- the series


def _gauge(name: str, sentence: str, value: float) -> Series:
    return Series(name, sentence, [((), value)])


def _counter(name: str, sentence: str, value: float) -> Series:
    return Series(name, sentence, [((), value)], counts=True)


def _build(gateway: Gateway) -> Iterator[Series]:
    labels = ("version", "iggy_version", "python_version")
    values: Values = [((version(), IGGY_VERSION, platform.python_version()), 1)]
    yield Series("whippet_build_info", "The versions of this server.", values, labels)


def _http(gateway: Gateway) -> Iterator[Series]:
    measurements = gateway.measurements
    sends = measurements.http_sends_at_once - measurements.http_sends_refused
    values: Values = [
        ((f"{digit}xx",), count + (sends if digit == SUCCESS else 0))
        for digit, count in enumerate(measurements.http_responses)
        if digit
    ]
    yield Series("whippet_http_responses", "Responses over HTTP, by class of status.", values, ("status",), counts=True)


def _topics(gateway: Gateway) -> Iterator[Series]:
    """Not all topics if there are very many; `whippet_topic_series_left_out` counts the omitted series."""
    budget = _SeriesBudget(gateway.config.http.metrics.series)
    appended: Values = []
    sizes: Values = []
    kept: Values = []
    for stream in gateway.streams:
        for topic in stream.topics:
            if budget.takes(SERIES_PER_TOPIC):
                place, served = (stream.name, topic.name), topic.served
                appended.append((place, sum(partition.appended for partition in served)))
                sizes.append((place, sum(partition.size_bytes for partition in served)))
                kept.append((place, sum(partition.messages_count for partition in served)))
    labels = ("stream", "topic")
    sentence = "Messages that were ever appended to a topic; a purge begins anew."
    yield Series("whippet_topic_appended_messages", sentence, appended, labels, counts=True)
    yield Series("whippet_topic_bytes", "Bytes of the batches of a topic, as clients get them.", sizes, labels)
    yield Series("whippet_topic_messages", "Messages that a topic has.", kept, labels)
    yield _gauge("whippet_topic_series_left_out", "Series about topics that were omitted.", budget.left_out)


def _of_iggy(gateway: Gateway) -> Iterator[Series]:
    """The eight of Iggy's server, in its words, then those of its founding documents."""
    measurements = gateway.measurements
    topics = [topic for stream in gateway.streams for topic in stream.topics]
    partitions = [partition for topic in topics for partition in topic.served]
    segments = sum(partition.segments_count for partition in partitions)
    at_once = measurements.http_sends_at_once
    yield _counter("http_requests", "total count of http_requests.", measurements.http_requests + at_once)
    for name, value in (
        ("streams", len(gateway.streams)),
        ("topics", len(topics)),
        ("partitions", sum(len(topic.partitions) for topic in topics)),
        ("segments", segments),
        ("messages", sum(partition.messages_count for partition in partitions)),
        ("users", len(gateway.users)),
        ("clients", len(gateway.sessions)),
    ):
        yield _gauge(name, f"total count of {name}.", value)
    yield _counter("iggy_messages_sent", "Messages that producers have sent.", measurements.messages_sent)
    yield _counter("iggy_messages_received", "Messages that consumers have received.", measurements.messages_polled)
    yield _counter("iggy_bytes_sent", "Bytes of the batches that producers have sent.", measurements.bytes_sent)
    yield _gauge("iggy_segments_count", "Segments of all partitions.", segments)
    disk = sum(partition.disk_bytes for partition in partitions)
    yield _gauge("iggy_disk_usage_bytes", "Bytes of the logs of all partitions.", disk)
    plain = sum(partition.size_bytes for partition in partitions)
    yield _gauge("whippet_uncompressed_bytes", "Bytes that these logs would have without compression.", plain)


def _deduplication(gateway: Gateway) -> Iterator[Series]:
    deduplication = gateway.deduplication
    yield _counter(
        "whippet_messages_left_out", "Messages that were dropped as duplicates by their ids.", deduplication.left_out
    )
    yield _gauge("whippet_deduplication_ids", "Message ids in the deduplication windows.", deduplication.ids)
    yield _gauge("whippet_deduplication_bytes", "Memory of the deduplication windows.", deduplication.size_bytes)


def _commands(gateway: Gateway) -> Iterator[Series | Timings]:
    measurements = gateway.measurements
    yield Timings(
        "whippet_command_seconds",
        "Time to execute a command, without what the transport does before and after.",
        [
            ((BY_REQUEST[request].name, transport.name.lower()), *_copied(by_transport[transport]))
            for request, by_transport in measurements.commands.items()
            for transport in Transport
            if any(by_transport[transport].counts)
        ],
        ("command", "transport"),
    )
    refusals = [(labels, count) for labels, count in measurements.refusals.items()]
    yield Series(
        "whippet_command_refusals", "Commands that were refused.", list(refusals), ("command", "error"), counts=True
    )


def _copied(histogram: Histogram) -> tuple[list[int], float]:
    counts = histogram.counts.copy()
    merged = [sum(counts[start:end]) for start, end in zip((0, *_ENDS), _ENDS, strict=False)]
    return merged, histogram.seconds


def _storage(gateway: Gateway) -> Iterator[Series | Timings]:
    measurements = gateway.measurements
    yield Timings(
        "whippet_fsync_seconds",
        "Time to sync a file or a folder.",
        [(("file",), *_copied(measurements.file_syncs)), (("folder",), *_copied(measurements.folder_syncs))],
        ("kind",),
    )
    yield from (Series(*reading) for reading in gateway.store.readings())


def _clients(gateway: Gateway) -> Iterator[Series]:
    yield Series(
        "whippet_connections",
        "Open connections.",
        [((transport.name.lower(),), count()) for transport, count in gateway.connections.items()],
        ("transport",),
    )
    sessions = Counter(session.transport for session in gateway.sessions)
    logged_in = Counter(session.transport for session in gateway.sessions if session.login is not None)
    for name, sentence, counted in (
        ("whippet_sessions", "Sessions; over HTTP those of leases.", sessions),
        ("whippet_sessions_logged_in", "Sessions that have logged in.", logged_in),
    ):
        values: Values = [((transport.name.lower(),), counted[transport]) for transport in Transport]
        yield Series(name, sentence, values, ("transport",))


def _certificates(gateway: Gateway) -> Iterator[Series]:
    days: Values = [
        ((section,), round(left, 3)) for section, left in gateway.readiness.certificates.days_left().items()
    ]
    sentence = "Days until the certificate of a listener expires; negative if it has expired."
    yield Series("whippet_certificate_days_left", sentence, days, ("section",))


def _disk(gateway: Gateway) -> Iterator[Series]:
    """Nothing if the space is not checked."""
    disk = gateway.store.disk
    if disk is None or disk.space is None:
        return
    sentence = "Bytes that are free on the disk of the data folder."
    yield _gauge("whippet_disk_free_bytes", sentence, disk.space.free)
    sentence = "Bytes of it that messages may not use."
    yield _gauge("whippet_disk_reserve_bytes", sentence, disk.reserve)
    sentence = "Whether messages are refused because less is free."
    yield _gauge("whippet_disk_full", sentence, disk.is_full)
    sentence = (
        "Bytes of archived segments and of the archive's cache that were deleted here for the sake of the reserve."
    )
    yield _counter("whippet_disk_relief_bytes", sentence, disk.deleted_bytes)


def _audit(gateway: Gateway) -> Iterator[Series]:
    """Nothing if no audit log is kept."""
    trail = gateway.audit
    if trail is None:
        return
    yield _counter("whippet_audit_entries", "Entries of the audit log since the start.", trail.entries)
    sentence = "Entries of the audit log that are missing in its file or its topic."
    yield _counter("whippet_audit_lost", sentence, trail.lost)
    sentence = "Whether the audit log cannot be written at the moment."
    yield _gauge("whippet_audit_failing", sentence, trail.is_failing)


def _telemetry(gateway: Gateway) -> Iterator[Series]:
    """Nothing if nothing is exported."""
    if gateway.exporter is not None:
        sentence = "Spans, lines of the log and samples that no collector has taken."
        values: Values = [((signal,), count) for signal, count in gateway.exporter.lost.items()]
        yield Series("whippet_telemetry_lost", sentence, values, ("signal",), counts=True)


def _archive(gateway: Gateway) -> Iterator[Series]:
    """Nothing if there is no archive."""
    archiver = gateway.archiver
    if archiver is None:
        return
    sentence = "Whether the last round of the archiver archived everything."
    yield _gauge("whippet_archive_healthy", sentence, archiver.problem is None)
    sentence = "Whether another server has the archive, so that nothing is archived."
    yield _gauge("whippet_archive_refused", sentence, archiver.refused)
    sentence = "Messages that are not in the archive yet."
    yield _gauge("whippet_archive_waiting_messages", sentence, archiver.waiting_messages)
    if archiver.completed_at is not None:
        age = max(gateway.clock() - archiver.completed_at, 0) / 1e6
        sentence = (
            "Seconds since the last round began that archived everything: what the loss of the machine would cost."
        )
        yield _gauge("whippet_archive_age_seconds", sentence, round(age, 3))
    yield _counter("whippet_archive_uploaded_bytes", "Bytes that were sent to the archive.", archiver.uploaded_bytes)
    sentence = "Rounds in which something could not be archived."
    yield _counter("whippet_archive_failures", sentence, archiver.failures)


def _readers(gateway: Gateway) -> Iterator[Series]:
    """The lag of groups and consumers."""
    budget = _SeriesBudget(gateway.config.http.metrics.series)
    members: Values = []
    lags: Values = []
    consumers: Values = []
    kept: Values = []
    for stream in gateway.streams:
        for topic in stream.topics:
            served = topic.served
            for group in topic.groups:
                if budget.takes(1 + len(served)):
                    place = (stream.name, topic.name, group.name)
                    members.append((place, len(group.members)))
                    lags += [((*place, str(each.place.partition)), _lag(each, Kind.GROUP, group.id)) for each in served]
            for partition in served:
                if (held := held_back(topic, partition)) is not None and budget.takes(1):
                    who = stream.name, topic.name, str(partition.place.partition), held.consumer_kind, held.consumer
                    kept.append((who, held.bytes))
                readers = partition.readers(Kind.CONSUMER)
                if budget.takes(len(readers)):
                    names = [partition.reader_name(Kind.CONSUMER, reader) or str(reader) for reader in readers]
                    number = str(partition.place.partition)
                    consumers += [
                        ((stream.name, topic.name, name, number), _lag(partition, Kind.CONSUMER, reader))
                        for name, reader in zip(names, readers, strict=True)
                    ]
    labels = ("stream", "topic", "group")
    yield Series("whippet_group_members", "Members of a consumer group.", members, labels)
    yield Series("whippet_group_lag", "Messages that a consumer group has yet to commit.", lags, (*labels, "partition"))
    sentence = "Messages after the stored offset of a consumer, which is shown by number until it commits by name."
    yield Series("whippet_consumer_lag", sentence, consumers, ("stream", "topic", "consumer", "partition"))
    sentence = "Bytes that retention would have deleted if this consumer had read them."
    yield Series("whippet_retention_held_bytes", sentence, kept, ("stream", "topic", "partition", "kind", "consumer"))
    sentence = "Series about groups and consumers that were omitted because of http.metrics.series."
    yield _gauge("whippet_series_left_out", sentence, budget.left_out)


def _lag(partition: Partition, kind: Kind, identity: int) -> int:
    stored = partition.offset_of(kind, identity)
    read = partition.first_offset if stored is None else max(stored + 1, partition.first_offset)
    return max(partition.readable - read, 0)


class _SeriesBudget:
    """The budget for series that grow with the catalogue."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self.left_out = 0

    def takes(self, count: int) -> bool:
        if count > self._left:
            self.left_out += count
            return False
        self._left -= count
        return True
