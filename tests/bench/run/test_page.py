"""The page is one file that needs nothing else, and runs nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec

from tests.bench.run.support.results import result
from whippet.bench.run.page import as_page
from whippet.bench.run.plot import linear, logarithmic, thinned, timeline
from whippet.bench.run.result import ServerInfo
from whippet.bench.run.table import as_text, duration

EVIL = "<script>alert('x')</script>&\"'"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        # The only one in the page that has no end.
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_has_plots_tables_and_settings_and_nothing_from_elsewhere() -> None:
    text = as_page(result(1))
    page = Page(text)
    assert page.tags.count("svg") == 3
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href", "style"} & page.names
    assert not re.search(r"https?://|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    shown = " ".join(page.texts)
    for expected in (
        "pinned-producer-and-consumer on iggy://127.0.0.1:8090",
        "all producers",
        "consumer 2",
        "a processor",
    ):
        assert expected in shown
    assert "All 10 messages were read once and in order." in shown


def test_everything_that_others_chose_is_escaped() -> None:
    evil = msgspec.structs.replace(
        result(1), remark=EVIL, notes=[EVIL], server=ServerInfo(EVIL, EVIL, EVIL, EVIL, EVIL)
    )
    text = as_page(evil)
    page = Page(text)
    assert "script" not in page.tags
    assert "".join(page.texts).count(EVIL) >= 7


def test_a_failed_verification_is_on_the_page_and_in_the_table() -> None:
    good = result(1)
    assert good.verification is not None
    failed = msgspec.structs.replace(good.verification, is_good=False, problems=["3 messages did not arrive"])
    bad = msgspec.structs.replace(good, verification=failed)
    assert "FAILED: 3 messages did not arrive" in as_page(bad)
    assert "FAILED: 3 messages did not arrive" in as_text(bad, with_actors=False)


def test_a_table_has_a_line_for_all_actors_and_one_for_each_if_it_is_asked_for() -> None:
    assert "producer 1" not in as_text(result(1), with_actors=False)
    assert "producer 1" in as_text(result(1), with_actors=True)
    assert "from send to receipt" in as_text(result(1), with_actors=False)


def test_durations_have_three_digits() -> None:
    assert [duration(each) for each in (0.5, 9.999, 99.96, 999.4, 999.9, 12_345, 1_234_567)] == [
        "0.50 us",
        "10.0 us",
        "100 us",
        "999 us",
        "1.00 ms",
        "12.3 ms",
        "1.23 s",
    ]


def test_axes_have_round_ticks_around_their_values() -> None:
    up = linear("MB/s", 87, str)
    assert [value for value, _ in up.ticks] == [0, 20, 40, 60, 80, 100]
    across = logarithmic("latency", 130, 4_200, str)
    assert (across.low, across.high) == (100, 5_000)
    assert [value for value, _ in timeline(4.9).ticks][-1] <= 4.9
    assert linear("MB/s", 0.0, str).high > 0


def test_long_series_are_thinned_to_what_can_be_seen() -> None:
    points = thinned([1.0, None] * 2000, 0.01)
    assert len(points) <= 600
    assert {value for _, value in points} == {1.0}
    assert thinned([None, 2.0], 1.0) == [(0.5, None), (1.5, 2.0)]
