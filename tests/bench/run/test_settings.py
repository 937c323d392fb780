"""Options of a run: what applies to which kind, and which combinations are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from whippet.bench.run.kinds import KINDS
from whippet.bench.run.settings import Range, Wrong, settings_of

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("pp", {"streams": 3}, "a stream for each producer: --streams 3 is not --producers 8"),
    ("pp", {"consumers": 3}, "--consumers does not apply to pinned-producer"),
    ("pp", {"partitions": 1}, "--partitions does not apply"),
    ("pc", {"streams": 3}, "a stream for each consumer"),
    ("pc", {"message_size": "5"}, "--message-size does not apply"),
    ("pc", {"keep": True}, "--keep does not apply"),
    ("ppc", {"partitions": 2}, "topics of one partition"),
    ("ppc", {"streams": 2}, "a stream for each producer"),
    ("bp", {"partitions": 1}, "at least 2 partitions"),
    ("bp", {"streams": 9}, "more streams than there are producers"),
    ("bp", {"read_amplification": 2.0, "rate_limit": 1}, "--read-amplification does not apply"),
    ("bcg", {"streams": 2}, "a consumer group for each stream"),
    ("bcg", {"consumers": 2, "consumer_groups": 3}, "each consumer group needs a consumer"),
    ("bcg", {"partitions": 2}, "--partitions does not apply"),
    ("bpcg", {"partitions": 4}, "8 consumers of a group cannot share 4 partitions"),
    ("bpcg", {"streams": 3, "consumer_groups": 2}, "a consumer group for each stream"),
    ("e2e", {"streams": 9}, "more streams than there are producers"),
    ("e2e", {"consumers": 2}, "--consumers does not apply"),
    ("e2e", {"read_amplification": 2.0, "rate_limit": 1}, "--read-amplification does not apply"),
    ("e2ecg", {"streams": 9, "consumer_groups": 9}, "more streams than there are producers"),
    ("e2ecg", {"consumers": 9, "partitions": 8}, "9 consumers of a group cannot share 8 partitions"),
    ("ppc", {"read_amplification": 2.0}, "needs --rate-limit"),
    ("pp", {"total_data": 10**6, "message_batches": 3}, "exclude each other"),
    ("pp", {"total_data": 1999}, "at least two messages"),
    ("pp", {"message_size": "500..200"}, "the smaller number first"),
    ("pp", {"message_size": "0"}, "from 1 up"),
    ("pp", {"messages_per_batch": "many"}, "a number or a range"),
    ("pp", {"messages_per_batch": "1..5", "high_level_api": True}, "a fixed number of messages"),
    ("pp", {"processes": 9}, "--processes 9 is more than there are connections, 8"),
    ("nonsense", {}, "there is no kind 'nonsense'; there are pinned-producer (pp)"),
]


@pytest.mark.parametrize(("kind", "given", "sentence"), REFUSED)
def test_a_combination_without_a_meaning_is_refused(kind: str, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Wrong) as refused:
        settings_of(kind, given, cores=4)
    assert sentence in str(refused.value)


def test_every_kind_has_the_defaults_of_the_official_tool() -> None:
    found = {
        kind.alias: (made.streams, made.partitions, made.producers, made.consumers, made.consumer_groups)
        for kind in KINDS
        for made in [settings_of(kind.name, {}, cores=4)]
    }
    assert found == {
        "pp": (8, 0, 8, 0, 0),
        "pc": (8, 0, 0, 8, 0),
        "ppc": (8, 1, 8, 8, 0),
        "bp": (1, 24, 8, 0, 0),
        "bcg": (1, 0, 0, 8, 1),
        "bpcg": (1, 24, 8, 8, 1),
        "e2e": (8, 0, 8, 0, 0),
        "e2ecg": (1, 24, 8, 8, 1),
    }
    made = settings_of("pp", {}, cores=4)
    assert (str(made.message_bytes), str(made.batch_messages), made.batches) == ("1000", "1000", 1000)
    assert (made.warmup_s, made.sampling_s, made.moving_average, made.rate_bytes_s) == (0.0, 0.01, 20, None)
    assert settings_of("ppc", {"rate_limit": 10}, cores=4).read_amplification == 1.05


def test_streams_follow_the_number_of_actors() -> None:
    assert settings_of("pp", {"producers": 3}, cores=4).streams == 3
    assert settings_of("pc", {"consumers": 5}, cores=4).streams == 5
    assert settings_of("e2e", {"producers": 5, "streams": 2}, cores=4).streams == 2


@pytest.mark.parametrize(("cores", "actors", "processes"), [(1, 8, 1), (2, 8, 1), (8, 8, 4), (64, 3, 3)])
def test_the_load_leaves_half_of_the_cores_to_the_server(cores: int, actors: int, processes: int) -> None:
    assert settings_of("pp", {"producers": actors}, cores).processes == processes
    assert settings_of("pp", {"producers": actors, "processes": 2}, cores).processes == 2


def test_a_range_includes_both_of_its_ends() -> None:
    source = random.Random(1)
    assert {Range.parse("2..4", "-m").draw(source) for _ in range(100)} == {2, 3, 4}
    assert Range.parse("7", "-m") == Range(7, 7)
    assert str(Range(2, 4)) == "2..4"
