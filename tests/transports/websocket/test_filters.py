"""Filters find what checking every message would find; whatever their number, each message is decoded once."""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import gc
import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.support.world import partition_in
from tests.transports.support.cursors import places
from tests.transports.websocket.support.browsing import Browser, root, sending, with_topic
from tests.transports.websocket.support.talking import Talking, talking
from whippet.app.shared_feeds import SharedFeed, SharedFeeds
from whippet.storage.batch import Message, build
from whippet.storage.partition import Partition
from whippet.transports.http.forms import batch_decoder, user_headers
from whippet.transports.http.forms.user_headers import HeaderEntry, HeaderPart
from whippet.transports.websocket import filters
from whippet.transports.websocket.filters import EncodedPiece, Filter, encoder
from whippet.transports.websocket.topic_subscription import TopicSubscription

ROOT = Path(__file__).parents[3]
TOPIC = {"to": "topic", "stream": "s", "topic": "t"}
KEYS = ("kind", "größe", "k" * 255)
VALUES: tuple[tuple[user_headers.Kind, bytes, Any], ...] = (
    ("string", b"bill", "bill"),
    ("raw", "Straße 東京 🚀".encode(), "Straße 東京 🚀"),
    ("string", b"v" * 255, "v" * 255),
    ("string", b"1", "1"),
    ("int8", b"\x01", 1),
    ("int8", b"\xff", -1),
    ("uint8", b"\xff", 255),
    ("int128", (-(2**127)).to_bytes(16, "little", signed=True), -(2**127)),
    ("uint128", b"\xff" * 16, 2**128 - 1),
    ("bool", b"\x01", True),
    ("bool", b"\x00", False),
    ("float32", bytes(4), None),
)


def entry(key: str, kind: user_headers.Kind, octets: bytes) -> HeaderEntry:
    return HeaderEntry(HeaderPart("string", key.encode()), HeaderPart(kind, octets))


def matches(wanted: Filter, headers: Sequence[HeaderEntry]) -> bool:
    """The same once more, without an index."""
    for each in headers:
        if each.key.value.decode() != wanted.header:
            continue
        if wanted.value is None:
            return True
        for kind, octets, value in VALUES:
            same = type(value) is type(wanted.value) and value == wanted.value
            if same and (kind, octets) == (each.value.kind, each.value.value):
                return True
            if same and isinstance(value, str) and each.value.kind in ("string", "raw") and octets == each.value.value:
                return True
    return False


@contextlib.asynccontextmanager
async def indexed(partition: Partition) -> AsyncIterator[SharedFeed[EncodedPiece]]:
    feeds = SharedFeeds()
    feed = feeds.join("x", (partition,), encoder((0,), is_indexed=True))
    yield feed
    feeds.leave("x", feed)


@pytest.mark.parametrize("seed", range(10))
async def test_a_filter_finds_what_checking_every_message_finds(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sent: list[list[HeaderEntry]] = []
    async with partition_in(tmp_path) as partition, indexed(partition) as feed:
        for _ in range(chance.randrange(1, 5)):
            some = []
            for _ in range(chance.randrange(1, 30)):
                chosen = {chance.choice(KEYS): chance.choice(VALUES) for _ in range(chance.randrange(4))}
                some.append([entry(key, kind, octets) for key, (kind, octets, _) in chosen.items()])
            made = [Message(b"x", user_headers=user_headers.encode(headers)) for headers in some]
            await partition.append(build(made, 1, random.randbytes))
            sent += some
        piece = (await feed.next_piece(feed.cursor((0,)))).content
        offsets = [behind - 1 for _, _, behind in piece.cuts]
        assert offsets == [offset for offset, headers in enumerate(sent) if headers]
        values = [None, *(value for _, _, value in VALUES if value is not None)]
        for wanted in (Filter(header=key, value=value) for key in (*KEYS, "none") for value in values):
            numbers = piece.matching(wanted.selector)
            expected = [offset for offset, headers in enumerate(sent) if matches(wanted, headers)]
            assert [offsets[number] for number in numbers] == expected, wanted
            for count in {len(numbers), len(numbers) // 2} - {0}:
                said = msgspec.json.decode(b"[%b]" % bytes(piece.joined(wanted.selector, numbers[:count])))
                assert [each["header"]["offset"] for each in said] == expected[:count]


async def test_copies_for_many_filters_are_not_kept(tmp_path: Path) -> None:
    keys = [f"key {number}" for number in range(100)]
    headers = user_headers.encode([entry(key, "string", b"x") for key in keys])
    async with partition_in(tmp_path) as partition, indexed(partition) as feed:
        await partition.append(build([Message(b"x" * 100, user_headers=headers)] * 5, 1, random.randbytes))
        piece = (await feed.next_piece(feed.cursor((0,)))).content
        first = Filter(header=keys[0]).selector
        for selector in [Filter(header=key).selector for key in keys]:
            piece.joined(selector, piece.matching(selector))
        assert sum(map(len, piece._joined.values())) <= len(piece.octets)
        # Subscribers with the same filter share a copy.
        assert piece.joined(first, piece.matching(first)) is piece.joined(first, piece.matching(first))


@pytest.mark.parametrize("headers_of_each", [0, 400])
async def test_slow_encoding_runs_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers_of_each: int
) -> None:
    threads: list[int] = []
    making = filters._made

    def made(*given: Any) -> EncodedPiece:
        threads.append(threading.get_ident())
        return making(*given)

    monkeypatch.setattr(filters, "_made", made)
    headers = user_headers.encode([entry(f"{number:03}", "raw", b"x") for number in range(headers_of_each)])
    async with partition_in(tmp_path) as partition, indexed(partition) as feed:
        for count in (1, 5_000 // max(headers_of_each // 40, 1)):
            cursor = feed.cursor((partition.readable,))
            await partition.append(build([Message(b"x", user_headers=headers)] * count, 1, random.randbytes))
            await feed.next_piece(cursor)
        first, second = threads
        assert first == threading.get_ident() != second


# ------------------------------------------------------------------------------------------------- hostile clients


def too_long(name: str, text: str) -> dict[str, Any]:
    return {"header": "h", name: text}


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (too_long("value", "x" * 256), "`value` has 256 bytes"),
        (too_long("value", "é" * 128), "`value` has 256 bytes"),
        (too_long("value", "🚀" * 400_000), "`value` has 1600000 bytes"),
        (too_long("header", "é" * 128), "`header` has 256 bytes"),
        (too_long("key", "x" * 256), "`key` has 256 bytes"),
        (too_long("value", 2**128), "128 bits"),  # type: ignore[arg-type]
        (too_long("value", -(2**127) - 1), "128 bits"),  # type: ignore[arg-type]
    ],
)
async def test_a_filter_that_cannot_match_is_refused_and_the_limit_is_named(
    tmp_path: Path, wanted: Any, named: str
) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        text = b'{"id":1,"cmd":"subscribe","filter":%b,%b' % (_json(wanted), msgspec.json.encode(TOPIC)[1:])
        await browser.link.send(text.decode())
        error = (await browser.answer(1))["error"]
        assert (error["id"], error["field"]) == (422, "filter")
        assert named in error["reason"]
        assert len(error["reason"]) < 200
        fits = {"header": "é" * 127, "value": "é" * 127, "key": "x" * 255}
        await browser.ask("subscribe", **TOPIC, filter=fits)


def _json(wanted: dict[str, Any]) -> bytes:
    """Numbers of any length, too."""
    return b"{%b}" % b",".join(
        msgspec.json.encode(name) + b":" + (b"%d" % value if isinstance(value, int) else msgspec.json.encode(value))
        for name, value in wanted.items()
    )


@pytest.mark.parametrize(
    ("beginning", "status"),
    [
        ({"cursor": "0:1," * 100_000}, 400),
        ({"offsets": {str(number): 1 for number in range(129)}}, 422),
        ({"offsets": {"1" * 5000: 1}}, 400),
    ],
)
async def test_a_list_of_offsets_that_is_too_long_is_refused(tmp_path: Path, beginning: Any, status: int) -> None:
    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        assert (await browser.refused("subscribe", **TOPIC, **beginning))[0] == status
        assert await browser.is_alive()


async def filtering(world: Talking, browser: Browser, values: Sequence[str]) -> dict[str, int]:
    """A subscription for each value of the user header `h`."""
    subs: dict[str, int] = {}
    for value in values:
        wanted = {"header": "h", "value": value}
        subs[value] = (await browser.ask("subscribe", **TOPIC, filter=wanted, credit=10_000))["sub"]
    return subs


async def sent(browser: Browser, *values: str) -> None:
    """A message with each value of the header `h`, one send for each."""
    for value in values:
        part = [{"kind": "string", "value": base64.b64encode(each.encode()).decode()} for each in ("h", value)]
        await browser.ask("send_messages", **sending("AAAA", headers=[{"key": part[0], "value": part[1]}]))


async def test_each_message_is_decoded_once_for_all_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, encoded, selected = [0], [0], [0]
    decoding, encoding, selecting = batch_decoder.iterate_messages, filters._encode, filters._selectors

    def iterate_messages(buffers: Any) -> Any:
        for each in decoding(buffers):
            looked_at[0] += 1
            yield each

    def encode(message: Any) -> bytes:
        encoded[0] += 1
        return encoding(message)

    def selectors(one: HeaderEntry) -> Any:
        selected[0] += 1
        return selecting(one)

    monkeypatch.setattr(filters, "iterate_messages", iterate_messages)
    monkeypatch.setattr(filters, "_encode", encode)
    monkeypatch.setattr(filters, "_selectors", selectors)
    async with talking(tmp_path) as world:
        sender = await with_topic(world)
        browsers = [await root(world) for _ in range(5)]
        subs = [await filtering(world, each, [f"{i}" for i in range(40)]) for each in browsers]
        assert len(world.serves.api.tails.feeds) == 1
        await sent(sender, *[f"{number}" for number in range(30)])
        await sender.ask("send_messages", **sending("AAAA"))
        for browser, each in zip(browsers, subs, strict=True):
            for number in range(30):
                assert await browser.offsets(each[f"{number}"], 1) == [(0, number)]
        while looked_at[0] < 31:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (looked_at[0], encoded[0], selected[0]) == (31, 30, 30)


async def test_nothing_of_a_filter_remains_after_its_subscription(tmp_path: Path) -> None:
    async with talking(tmp_path) as world:
        sender, browser = await with_topic(world), await root(world)
        subs = await filtering(world, browser, ["a", "b", "c"])
        await sent(sender, "a", "b")
        assert await browser.offsets(subs["b"], 1) == [(0, 1)]
        # The feed was created for the first of them.
        ended = await browser.ask("unsubscribe", sub=subs["a"])
        assert places(ended["cursor"]) == "0:2"
        later = await filtering(world, browser, ["d"])
        await sent(sender, "d", "a", "c")
        assert await browser.offsets(later["d"], 1) == [(0, 2)]
        assert await browser.offsets(subs["c"], 1) == [(0, 4)]
        await sender.ask("purge_topic", stream="s", topic="t")
        await sent(sender, "b", "d")
        assert await browser.offsets(subs["b"], 1) == [(0, 0)]
        message = await browser.push(later["d"])
        assert [each["header"]["offset"] for each in message["messages"]] == [1]
        await browser.link.close()
        while len(world.serves.api.subscriptions):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(world.serves.api.tails.feeds) == 0
        while any(type(each) in (TopicSubscription, EncodedPiece) for each in gc.get_objects()):
            gc.collect()
            await asyncio.sleep(0)


async def test_a_grant_of_a_few_credits_reads_and_encodes_no_more_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = [0]
    encoding = filters._encode

    def encode(message: Any) -> bytes:
        encoded[0] += 1
        return encoding(message)

    async with talking(tmp_path) as world:
        browser = await with_topic(world)
        await browser.ask("send_messages", **sending(*["AAAA"] * 500))
        monkeypatch.setattr(filters, "_encode", encode)
        sub = (await browser.ask("subscribe", **TOPIC, **{"from": "first"}, credit=1))["sub"]
        for offset in range(20):
            assert await browser.offsets(sub, 1) == [(0, offset)]
            await browser.ask("grant", sub=sub, credit=1)
        assert encoded[0] <= 21
        await browser.ask("grant", sub=sub, credit=1000)
        assert await browser.offsets(sub, 480) == [(0, offset) for offset in range(20, 500)]


# ------------------------------------------------------------------------------------------------- caches


CACHES = {
    "app/client/batching.py": "the type of a message as numpy has it",
    "transports/wire/classic/sends.py": "types of numpy, one of each",
    "app/config/keys.py": "the tables of settings",
    "app/mcp/protocol.py": "the tools as the protocol describes them",
    "transports/http3_exchange.py": "the date of responses, the newest alone",
    "transports/http/serving/exchange.py": "the headers of 256 responses, encoded; clients choose none of them",
    "transports/http/forms/parameters.py": "types of queries, which are the program's own",
    "transports/http/handlers/reference.py": "the OpenAPI document",
    "transports/http/handlers/reference_page.py": "the OpenAPI document as a page",
    "transports/http/field_sentences.py": "the docstrings of the program's own modules",
    "transports/http/forms/valid_values.py": "the values that types have, which are the program's own",
    "transports/wire/classic/message.py": "types of numpy for 256 lengths of messages, each a few hundred bytes",
}
"""Modules of the server with cached functions, and what these are for."""


def test_no_cache_keeps_what_clients_send() -> None:
    found = set()
    for package in ("app", "transports"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text())))
            names = {
                f"functools.{alias.name}"
                for node in nodes
                if isinstance(node, ast.ImportFrom) and node.module == "functools"
                for alias in node.names
            }
            names |= {
                f"{node.value.id}.{node.attr}"
                for node in nodes
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            }
            if names & {"functools.lru_cache", "functools.cache"}:
                found.add(str(path.relative_to(ROOT)))
    assert found == set(CACHES)
