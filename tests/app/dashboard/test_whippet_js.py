"""whippet.js in a real browser, on a real server: commands, subscriptions, and its reaction to a server that stops."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from tests.app.dashboard.support.chromium import a_page, until
from tests.app.dashboard.support.serving import PASSWORD, USERNAME, Producer, Server, serving

PROJECT = Path(__file__).parents[3]
ROOT = {"username": USERNAME, "password": PASSWORD}
HOURS_AHEAD = (0, 2, -2)
"""What the clocks of browsers may say."""

CONNECT = """async (options) => {
  Object.assign(globalThis, await import("/ui/whippet.js"))
  globalThis.client = await connect(options)
}"""

FOLLOW = """async ([name, wanted]) => {
  const subscription = client.subscribe(wanted)
  const seen = []
  globalThis[name] = { subscription, seen, end: null }
  const read = async () => {
    for await (const message of subscription) seen.push(textOf(message.payload))
  }
  read().then(() => "done", (error) => [error.name, error.code]).then((end) => (globalThis[name].end = end))
  await subscription.ready
}"""
"""Reads what is subscribed to into `<name>.seen`."""


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with a_page(browser) as found:
        found.goto(f"{server.url}/ui")
        yield found


def connect(page: Page, **options: Any) -> None:
    page.evaluate(CONNECT, options or ROOT)


def follow(page: Page, name: str, **wanted: Any) -> None:
    page.evaluate(FOLLOW, [name, wanted])


def refusal(page: Page, expression: str) -> Any:
    return page.evaluate(f"""async () => {{
      const error = await ({expression}).then(() => null, (error) => error)
      return [error instanceof Error, error.name, error.code, error.id, error.message, error.field]
    }}""")


# ------------------------------------------------------------------------------------------------- commands, signing in


def test_a_command_resolves_or_rejects_with_a_typed_error(page: Page) -> None:
    connect(page)
    assert page.evaluate("client.call('ping')") == "pong"
    assert page.evaluate("client.call('create_stream', { name: 'made' }).then(({ name }) => name)") == "made"
    assert refusal(page, "client.call('create_stream', { name: 'made' })") == [
        *(True, "WhippetError", "stream_name_already_exists", 1012),
        *("Stream with name: made already exists.", "name"),
    ]
    assert refusal(page, "client.call('fly')")[2:4] == ["not_found", 404]


def test_a_lone_surrogate_is_refused_at_once_and_nothing_hangs(page: Page) -> None:
    connect(page)
    half = r"'half a \ud83d'"
    assert refusal(page, f"client.call('create_stream', {{ name: {half} }})")[1:] == [
        *("WhippetError", "bad_request", 400, "`name` contains a lone surrogate", "name"),
    ]
    absent = f"client.subscribe({{ to: 'topic', stream: {half}, topic: 't' }})"
    assert refusal(page, f"{absent}.next()")[2] == "bad_request"
    assert page.evaluate(r"client.call('create_stream', { name: 'a whole \ud83d\udc15' }).then(({ name }) => name)")
    assert page.evaluate("client.state") == "connected"


def test_a_wrong_password_is_final(page: Page) -> None:
    page.evaluate("import('/ui/whippet.js').then((found) => Object.assign(globalThis, found))")
    wrong = "{ username: 'iggy', password: 'wrong' }"
    assert refusal(page, f"connect({wrong})")[1:3] == ["WhippetError", "invalid_credentials"]
    page.evaluate(f"void (globalThis.client = new Client({wrong}))")
    assert refusal(page, "client.ready")[2] == "invalid_credentials"
    assert page.evaluate("client.state") == "closed"
    assert refusal(page, "client.call('ping')")[2] == "disconnected"


def test_a_token_or_a_ticket_signs_in_as_well(page: Page, server: Server) -> None:
    connect(page, token=server.token)
    assert page.evaluate("client.call('get_session').then(({ user_id }) => user_id)") == 0
    page.evaluate("client.close()")
    page.evaluate(
        """async (authorization) => {
          const ticket = async () => {
            const answer = await fetch("/tickets", { method: "POST", headers: { authorization } })
            return (await answer.json()).ticket
          }
          globalThis.client = await connect({ ticket })
        }""",
        f"Bearer {server.token}",
    )
    assert page.evaluate("client.call('get_session').then(({ user_id }) => user_id)") == 0
    assert page.evaluate("client.token") is None


@pytest.mark.parametrize(
    ("document", "stream", "topic", "last"),
    [("README.md", "clicks", "eu", "0 40 40"), ("docs/websocket.md", "orders", "new", "0 41 the first order")],
)
def test_the_snippets_of_the_documents_work(
    page: Page, server: Server, document: str, stream: str, topic: str, last: str
) -> None:
    server.make(stream, topic)
    server.send(stream, topic, *map(str, range(41)))
    blocks = re.findall(r"```js\n(.*?)```", (PROJECT / document).read_text(), re.S)
    (shown,) = (block for block in blocks if "whippet.js" in block)
    script = re.sub(r"^import (.*?) from (.*)$", r"const \1 = await import(\2)", shown, count=1, flags=re.M)
    page.on("dialog", lambda dialog: dialog.accept(PASSWORD))
    page.evaluate(f"""() => {{
      globalThis.said = []
      console.log = (...words) => said.push(words.join(" "))
      const run = async () => {{ {script} }}
      void run()
    }}""")
    until(page, "said.at(-1) === given", last)


# ------------------------------------------------------------------------------------------------- subscriptions


def test_messages_of_a_topic_arrive_one_by_one_with_exact_numbers(page: Page, server: Server) -> None:
    server.make("exact", "t")
    big = 2**100 + 1
    message = {"id": str(big), "payload": "eA==", "user_headers": []}
    server.post(
        "/streams/exact/topics/t/messages", {"partitioning": {"kind": "balanced", "value": ""}, "messages": [message]}
    )
    connect(page)
    found = page.evaluate("""async () => {
      const subscription = client.subscribe({ to: "topic", stream: "exact", topic: "t", from: "first" })
      const { value } = await subscription.next()
      const cursor = subscription.cursor
      await subscription.return()
      return { id: value.header.id, offset: value.header.offset, cursor, after: await subscription.next() }
    }""")
    assert found.pop("cursor").startswith("0:1:")
    assert found == {"id": str(big), "offset": 0, "after": {"done": True, "value": None}}


def test_leaving_the_loop_ends_the_subscription(page: Page, server: Server) -> None:
    server.make("left", "t")
    server.send("left", "t", *"abcde")
    connect(page)
    seen = page.evaluate("""async () => {
      const seen = []
      for await (const { payload } of client.subscribe({ to: "topic", stream: "left", topic: "t", from: "first" })) {
        if (seen.push(textOf(payload)) === 3) break
      }
      await client.call("ping")
      return seen
    }""")
    assert seen == ["a", "b", "c"]
    assert refusal(page, "client.call('grant', { sub: 1, credit: 1 })")[2:4] == ["not_found", 404]


def test_an_unexpected_end_is_thrown_after_the_messages_before_it(page: Page, server: Server) -> None:
    server.make("gone", "t")
    server.send("gone", "t", *"abc")
    connect(page)
    follow(page, "read", to="topic", stream="gone", topic="t", **{"from": "first"})
    until(page, "read.seen.length === 3")
    server.http.delete("/streams/gone").raise_for_status()
    until(page, "read.end")
    assert page.evaluate("read.end")[0] == "WhippetError"
    assert page.evaluate("[read.seen.join(''), client.state]") == ["abc", "connected"]


def test_a_refused_subscription_throws(page: Page) -> None:
    connect(page)
    absent = "client.subscribe({ to: 'topic', stream: 'none', topic: 't' })"
    assert refusal(page, f"{absent}.next()")[1:4] == ["WhippetError", "stream_id_not_found", 1009]
    assert refusal(page, f"{absent}.ready")[2] == "stream_id_not_found"


WATCHED = """() => {
  globalThis.wire = { granted: 0, came: 0, most: 0 }
  globalThis.WebSocket = class extends WebSocket {
    constructor(url) {
      super(url)
      this.addEventListener("message", ({ data }) => {
        wire.came += JSON.parse(data).messages?.length ?? 0
        wire.most = Math.max(wire.most, wire.came - wire.granted)
      })
    }
    send(text) {
      wire.granted += JSON.parse(text).credit ?? 0
      super.send(text)
    }
  }
}"""
"""Counts on the way what is granted and what comes."""


def test_a_slow_reader_receives_within_its_credit_and_finally_everything(page: Page, server: Server) -> None:
    server.make("slow", "t")
    server.send("slow", "t", *map(str, range(1000)))
    page.evaluate(WATCHED)
    connect(page)
    page.evaluate("""async () => {
      globalThis.slow = client.subscribe({ to: "topic", stream: "slow", topic: "t", from: "first" }, { window: 10 })
      globalThis.read = async (count) => {
        const seen = []
        while (seen.length < count) seen.push(textOf((await slow.next()).value.payload))
        // All that the server has said before the answer is here then.
        await client.call("ping")
        return seen
      }
    }""")
    until(page, "wire.came === 10")
    assert page.evaluate("read(4)") == ["0", "1", "2", "3"]
    assert page.evaluate("[wire.granted, wire.came]") == [10, 10], "too few to grant more"
    assert page.evaluate("read(3)") == ["4", "5", "6"]
    until(page, "wire.came === 15")
    assert page.evaluate("read(993)") == [str(number) for number in range(7, 1000)]
    assert page.evaluate("wire.most") == 0
    assert page.evaluate("wire.granted") <= 1010


def test_skipped_messages_are_counted(page: Page, server: Server) -> None:
    server.make("quick", "t")
    connect(page)
    page.evaluate("""async () => {
      globalThis.quick = client.subscribe({ to: "topic", stream: "quick", topic: "t", behind: "skip" }, { window: 10 })
      await quick.ready
    }""")
    server.send("quick", "t", *map(str, range(100)))
    read = """async (count) => {
      const seen = []
      while (seen.length < count) seen.push(textOf((await quick.next()).value.payload))
      await client.call("ping")
      return [seen, quick.skipped]
    }"""
    assert page.evaluate(read, 10) == [[str(number) for number in range(10)], 0]
    assert page.evaluate(read, 1) == [["99"], 89]
    server.send("quick", "t", "the newest")
    assert page.evaluate(read, 1) == [["the newest"], 89]


def test_rates_and_events_have_subscriptions_too(page: Page, server: Server) -> None:
    connect(page)
    found = page.evaluate("""async () => {
      const events = client.subscribe({ to: "events" })
      const rates = client.subscribe({ to: "stats" })
      await events.ready
      await client.call("create_stream", { name: "new" })
      const { value: event } = await events.next()
      const { value: sample } = await rates.next()
      return [event.what, event.kind, event.stream.name, sample.streams.some(({ name }) => name === "new")]
    }""")
    assert found == ["created", "stream", "new", True]


def test_a_closed_client_ends_its_loops(page: Page, server: Server) -> None:
    server.make("closed", "t")
    connect(page)
    follow(page, "read", to="topic", stream="closed", topic="t")
    page.evaluate("client.close()")
    until(page, "read.end === 'done'")
    assert page.evaluate("client.state") == "closed"


# ------------------------------------------------------------------------------------------------- going, coming back


def test_nothing_is_lost_or_duplicated_when_the_server_is_killed_under_a_producer(
    browser: Browser, tmp_path: Any
) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        server.make("s", "numbers", "quiet")
        page.goto(f"{server.url}/ui")
        connect(page)
        follow(page, "numbers", to="topic", stream="s", topic="numbers", **{"from": "first"})
        follow(page, "quiet", to="topic", stream="s", topic="quiet")
        producer = Producer(server, "/streams/s/topics/numbers/messages")
        try:
            for _ in range(2):
                producer.wait_for(50)
                until(page, "numbers.seen.length > given", producer.sent)
                server.kill()
                until(page, "client.state === 'waiting'")
                server.come_back()
            # Whether it has reconnected or not, it has received nothing of this topic yet, and knows its position.
            server.send("s", "quiet", "said meanwhile")
            producer.wait_for(50)
        finally:
            count = producer.stop()
        page.evaluate("client.retry()")
        until(page, "numbers.seen.length >= given", count)
        until(page, "quiet.seen.length")
        page.evaluate("client.call('ping')")
        assert page.evaluate("numbers.seen") == [str(number) for number in range(count)]
        assert page.evaluate("quiet.seen") == ["said meanwhile"]
        assert page.evaluate("[numbers.end, numbers.subscription.skipped, client.state]") == [None, 0, "connected"]


def test_an_unreachable_server_is_reported_at_once_or_waited_for(browser: Browser, tmp_path: Any) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        # Whole, with its icon: what is cut off while it loads is complained of.
        page.goto(f"{server.url}/ui", wait_until="networkidle")
        page.evaluate("import('/ui/whippet.js').then((found) => Object.assign(globalThis, found))")
        server.kill()
        root = msgspec.json.encode(ROOT).decode()
        assert refusal(page, f"connect({root})")[1:3] == ["WhippetError", "disconnected"]
        page.evaluate(f"void (globalThis.client = new Client({root}))")
        until(page, "client.state === 'waiting'")
        server.come_back()
        page.evaluate("client.ready")
        assert page.evaluate("client.call('ping')") == "pong"


def test_a_member_of_a_group_receives_again_what_it_has_not_acknowledged(browser: Browser, tmp_path: Any) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        server.make("s", "t")
        server.post("/streams/s/topics/t/consumer-groups", {"name": "g"})
        server.send("s", "t", *"abcde")
        page.goto(f"{server.url}/ui")
        connect(page)
        page.evaluate("""async () => {
          globalThis.group = client.subscribe({ to: "group", stream: "s", topic: "t", group: "g" })
          const seen = []
          while (seen.length < 4) seen.push((await group.next()).value)
          await group.ack(seen[1])
        }""")
        server.kill()
        until(page, "client.state === 'waiting'")
        assert refusal(page, "group.ack({ partition_id: 0, header: { offset: 2 } })")[2] == "disconnected"
        asked = page.evaluate_handle("() => ({ answer: client.call('ping') })")
        server.come_back()
        page.evaluate("client.retry()")
        assert asked.evaluate("({ answer }) => answer") == "pong", "a command that is called meanwhile waits"
        again = page.evaluate("""async () => {
          const seen = []
          while (seen.length < 3) seen.push(textOf((await group.next()).value.payload))
          return [seen.join(""), group.assigned.partitions]
        }""")
        assert again == ["cde", [0]]


def test_a_token_is_exchanged_in_time_without_interruption_whatever_the_clock_says(
    browser: Browser, tmp_path: Any
) -> None:
    life = {"IGGY_HTTP_JWT_ACCESS_TOKEN_EXPIRY": "4s", "IGGY_HTTP_JWT_CLOCK_SKEW": "0s"}
    with serving(tmp_path, **life) as server, contextlib.ExitStack() as stack:
        # They wait for the end of their tokens together.
        pages = [stack.enter_context(a_page(browser)) for _ in HOURS_AHEAD]
        for page, hours_ahead in zip(pages, HOURS_AHEAD, strict=True):
            page.goto(f"{server.url}/ui")
            page.evaluate(
                """(hours) => {
                  const now = Date.now
                  globalThis.serversNow = () => now()
                  Date.now = () => now() + hours * 3_600_000
                }""",
                hours_ahead,
            )
            connect(page)
            page.evaluate("""() => {
              Object.assign(globalThis, { first: client.expiry, tokens: 0, states: [] })
              client.addEventListener("token", () => tokens++)
              client.addEventListener("state", ({ detail }) => states.push(detail.state))
              globalThis.rates = client.subscribe({ to: "stats" }, { window: 1 })
            }""")
        for page, hours_ahead in zip(pages, HOURS_AHEAD, strict=True):
            until(page, "serversNow() > first * 1000")
            assert page.evaluate("tokens") in (1, 2), f"{hours_ahead} hours: not again and again"
            # One of them was measured before.
            assert page.evaluate("rates.next().then(() => rates.next()).then(({ done }) => done)") is False
            assert page.evaluate("[states, client.expiry > first]") == [[], True], f"{hours_ahead} hours"
