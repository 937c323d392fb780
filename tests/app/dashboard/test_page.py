"""The dashboard in a real browser: what a user sees after signing in to a busy server."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.app.dashboard.support.chromium import WAITS_MS, a_page, until
from tests.app.dashboard.support.serving import PASSWORD, USERNAME, Server, base64_of, serving

expect.set_options(timeout=WAITS_MS)
SIZES = {1280: 860, 390: 844}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as found:
        found.make("orders", "eu", "us", partitions=2)
        yield found


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    with a_page(browser, viewport={"width": 1280, "height": 860}) as found:
        yield found


def sign_in(page: Page, server: Server, place: str = "/ui", username: str = USERNAME, password: str = PASSWORD) -> None:
    page.goto(server.url + place)
    page.get_by_label("User").fill(username)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def signed_in(page: Page, server: Server, place: str = "/ui") -> None:
    sign_in(page, server, place)
    expect(page.locator("#connection")).to_have_text("Live")


def messages(page: Page) -> Locator:
    return page.locator("#messages > li")


# ------------------------------------------------------------------------------------------------------------- sign in


def test_a_browser_is_redirected_to_the_page_and_a_wrong_password_is_refused(page: Page, server: Server) -> None:
    sign_in(page, server, "/", password="wrong")
    assert page.url == f"{server.url}/ui"
    expect(page.get_by_role("alert")).to_have_text("Invalid credentials: the user name or the password is wrong.")
    expect(page.get_by_label("Password")).to_have_value("")
    expect(page.locator("#dashboard")).to_be_hidden()
    assert page.evaluate("sessionStorage.length") == 0
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#sign-in")).to_be_hidden()


IMPATIENT = """
from whippet.app.access.throttle import Limits, Throttle
Throttle.__init__.__defaults__ = (Limits(first_wait_s=60.0, address_wait_max_s=60.0, user_wait_max_s=0.0),)
"""
"""A client that would have to wait is refused at once, for a minute."""


def test_after_too_many_guesses_the_page_asks_to_wait_instead_of_blaming_the_password(
    browser: Browser, tmp_path: Path
) -> None:
    with serving(tmp_path, first=IMPATIENT) as server, a_page(browser) as page:
        refused: Any = {"reason": ""}
        while "too many" not in refused["reason"]:
            refused = server.http.post("/users/login", json={"username": USERNAME, "password": "wrong"}).json()
        sign_in(page, server)
        expect(page.get_by_role("alert")).to_contain_text("Too many failed logins from this address")


def test_only_a_token_is_kept_for_this_tab_and_removed_on_signing_out(page: Page, server: Server) -> None:
    signed_in(page, server)
    kept = page.evaluate("JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie])")
    assert "token" in kept
    assert PASSWORD not in kept
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    token = page.evaluate("JSON.parse(sessionStorage['whippet.session']).token")
    page.reload()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#user")).to_have_text(USERNAME)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("User")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0
    assert server.http.get("/streams", headers={"authorization": f"Bearer {token}"}).status_code == 401


def test_a_personal_access_token_signs_in_as_well(page: Page, server: Server) -> None:
    token = server.post("/personal-access-tokens", {"name": "page", "expiry": 0})["token"]
    page.goto(f"{server.url}/ui")
    page.get_by_role("button", name="Sign in with a token instead").click()
    page.get_by_label("Access token").fill("nonsense")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This token is invalid or has expired.")
    page.get_by_label("Access token").fill(token)
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_text("Live")


def test_after_the_end_of_a_session_the_page_asks_to_sign_in_and_says_why(page: Page, server: Server) -> None:
    signed_in(page, server)
    page.evaluate("sessionStorage['whippet.session'] = JSON.stringify({ username: 'iggy', token: 'a.b.c' })")
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("Sign in again.")
    assert page.evaluate("sessionStorage.length") == 0


# ------------------------------------------------------------------------------------------------------------- figures


def test_streams_and_topics_are_shown_with_rates_and_groups_with_lag(page: Page, server: Server) -> None:
    server.make("figures", "busy", "idle")
    server.post("/streams/figures/topics/busy/consumer-groups", {"name": "billing"})
    signed_in(page, server)
    table = page.get_by_role("table").first
    busy = table.get_by_role("row", name="busy")
    expect(busy).to_contain_text("0 B")
    expect(table.get_by_role("rowheader", name="figures")).to_contain_text("2 topics")
    server.send("figures", "busy", *["x"] * 500)
    # The sample after they were sent reports their rate, and the next one that there are no more.
    page.evaluate(
        """() => {
          globalThis.most = 0
          const row = [...document.querySelectorAll("#topics tr")].find((row) => row.textContent.startsWith("busy"))
          const look = () => (most = Math.max(most, parseFloat(row.cells[2].textContent)))
          new MutationObserver(look).observe(row, { childList: true, characterData: true, subtree: true })
        }"""
    )
    server.send("figures", "busy", *["x"] * 500)
    until(page, "most > 0")
    expect(busy.get_by_role("cell").nth(3)).to_have_text("1,000")
    group = page.get_by_role("row", name="billing")
    expect(group).to_contain_text("figures / busy")
    expect(group.get_by_role("cell").nth(0)).to_have_text("none")
    expect(group.get_by_role("cell").nth(1)).to_have_text("1,000")
    expect(page.locator("#total-lag")).to_have_text("1,000")
    lease = "/streams/figures/topics/busy/consumer-groups/billing/leases?expiry=60s"
    server.http.post(lease).raise_for_status()
    expect(group.get_by_role("cell").nth(0)).to_have_text("1")
    page.get_by_label("Show only names").fill("FIGURES / i")
    expect(table.locator("button.topic")).to_have_text(["idle"])


def test_events_are_listed_as_they_happen(page: Page, server: Server) -> None:
    signed_in(page, server)
    expect(page.locator("#topics")).to_be_visible()
    server.make("news", "made here")
    log = page.get_by_role("log", name="Events")
    expect(log.get_by_role("listitem").first).to_contain_text("created topic news / made here")
    server.http.delete("/streams/news").raise_for_status()
    expect(log.get_by_role("listitem").first).to_contain_text("deleted stream news")
    expect(page.get_by_role("rowheader", name="news")).to_have_count(0)


def test_a_user_with_permission_for_one_topic_opens_it_by_name(page: Page, server: Server) -> None:
    server.make("private", "own")
    server.send("private", "own", "for alice")
    stream = server.http.get("/streams/private").json()
    nothing = dict.fromkeys(("manage_stream", "read_stream", "manage_topics", "read_topics"), False)
    topic = {"manage_topic": False, "read_topic": True, "poll_messages": True, "send_messages": False}
    rights = nothing | {"poll_messages": False, "send_messages": False, "topics": {stream["topics"][0]["id"]: topic}}
    everywhere = (
        *("manage_servers", "read_servers", "manage_users", "read_users", "manage_streams", "read_streams"),
        *("manage_topics", "read_topics", "poll_messages", "send_messages"),
    )
    permissions = {"global": dict.fromkeys(everywhere, False), "streams": {stream["id"]: rights}}
    alice = {"username": "alice", "password": "alice's", "status": "active", "permissions": permissions}
    server.post("/users", alice)
    sign_in(page, server, username="alice", password="alice's")
    expect(page.locator("#topics-notice")).to_contain_text("You have no permission to read all streams.")
    page.get_by_label("Stream", exact=True).fill("private")
    page.get_by_label("Topic", exact=True).fill("own")
    page.get_by_role("button", name="Open").click()
    expect(messages(page).first).to_contain_text("for alice")
    expect(page.locator("#tail-about")).to_contain_text("1 message")
    page.reload()
    expect(page.locator("#tail-about")).to_contain_text("1 message")
    expect(page.get_by_role("button", name="own")).to_have_attribute("aria-current", "true")


def figure(page: Page, name: str) -> Locator:
    return page.get_by_role("table").filter(has_text="Free on the disk").get_by_role("row", name=name).locator("td")


def test_a_full_disk_is_shown_with_what_is_free_and_what_is_in_reserve(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        signed_in(page, server)
        expect(page.get_by_role("region", name="Disk and archive")).to_be_visible()
        expect(figure(page, "Free on the disk")).to_contain_text(" of ")
        expect(figure(page, "In reserve")).to_have_attribute(
            "title", re.compile(r"are kept for everything but messages \(system\.disk\.reserve\)")
        )
        expect(page.locator("#storage-problem")).to_be_hidden()
        expect(page.get_by_text("Waiting for the archive")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("region", name="Disk and archive")).to_be_hidden()
    with serving(tmp_path, IGGY_SYSTEM_DISK_RESERVE="8 EB") as server, a_page(browser) as page:
        signed_in(page, server)
        expect(page.get_by_role("alert")).to_have_text(
            "The disk is full: messages are refused until there is more space."
        )
        expect(figure(page, "In reserve")).to_have_text("8000 PB")
        expect(page.locator("#storage-figures .wrong")).to_have_count(1)


def test_failures_of_the_archive_are_shown_until_they_are_over(browser: Browser, tmp_path: Path) -> None:
    archive, aside = tmp_path / "archive", tmp_path / "aside"
    settings = {
        "IGGY_DATA_MAINTENANCE_ARCHIVER_ENABLED": "true",
        "IGGY_DATA_MAINTENANCE_ARCHIVER_DISK_PATH": str(archive),
        "IGGY_DATA_MAINTENANCE_ARCHIVER_INTERVAL": "20 ms",
    }
    with serving(tmp_path, **settings) as server, a_page(browser) as page:
        server.make("s", "t")
        server.send("s", "t", "a", "b")
        signed_in(page, server)
        expect(figure(page, "Archived completely")).to_contain_text("0 s ago")
        expect(figure(page, "Waiting for the archive")).to_have_text("0 messages")
        expect(figure(page, "Failures of the archive")).to_have_text("0")
        expect(page.locator("#storage-problem")).to_be_hidden()
        server.until_archived()
        archive.rename(aside)
        archive.write_text("not a folder")
        server.send("s", "t", "c")
        expect(page.get_by_role("alert")).to_have_text(
            "Not everything could be archived. The log of the server has the reason."
        )
        expect(figure(page, "Waiting for the archive")).to_have_text("1 message")
        expect(figure(page, "Failures of the archive")).not_to_have_text("0")
        archive.unlink()
        aside.rename(archive)
        expect(page.locator("#storage-problem")).to_be_hidden()
        expect(figure(page, "Waiting for the archive")).to_have_text("0 messages")
        (archive / "archive.json").unlink()
        expect(page.get_by_role("alert")).to_have_text("Another server has the archive: nothing is archived any more.")


# ------------------------------------------------------------------------------------------------------------- the tail


def test_messages_sent_over_http_are_shown_with_their_headers_newest_first(page: Page, server: Server) -> None:
    signed_in(page, server)
    page.get_by_role("button", name="eu").click()
    expect(page.locator("#tail-title")).to_have_text("orders / eu")
    key = {"kind": "string", "value": base64_of("attempt")}
    value = {"kind": "int32", "value": base64.b64encode((-7).to_bytes(4, "little", signed=True)).decode()}
    server.send("orders", "eu", "the first")
    expect(messages(page).first).to_contain_text("the first")
    server.send("orders", "eu", "the second", headers=[{"key": key, "value": value}])
    newest = messages(page).first
    expect(newest.locator("pre")).to_have_text("the second")
    expect(newest.locator("dt")).to_have_text("attempt")
    expect(newest.locator("dd")).to_have_text("-7")
    expect(newest).to_contain_text("partition ")
    assert page.url.endswith("#orders/eu")
    page.reload()
    expect(messages(page).nth(1)).to_contain_text("the first")


@pytest.mark.parametrize(
    "payload",
    [
        "<script>document.title = 'taken'</script>",
        "<img src=x onerror=\"document.title='taken'\">",
        '{"<img src=x onerror=document.title=1>": "</pre><script>document.title=1</script>"}',
    ],
)
def test_payloads_are_inserted_as_text_only(page: Page, server: Server, payload: str) -> None:
    markup = {"kind": "string", "value": base64_of("<b>bold</b>")}
    signed_in(page, server, "/ui#orders/us")
    server.send("orders", "us", payload, headers=[{"key": markup, "value": markup}])
    newest = messages(page).first
    for part in payload.split('"'):
        expect(newest.locator("pre")).to_contain_text(part)
    expect(newest.locator("dd")).to_have_text("<b>bold</b>")
    assert page.locator("#messages :is(img, script, b)").count() == 0
    assert page.title() == "Whippet"


def test_names_are_inserted_as_text_only(page: Page, server: Server) -> None:
    server.make("<b>bold</b>", "<img src=x onerror=alert(1)>")
    signed_in(page, server)
    page.get_by_role("button", name="<img src=x onerror=alert(1)>").click()
    expect(page.locator("#tail-title")).to_have_text("<b>bold</b> / <img src=x onerror=alert(1)>")
    assert page.locator("#topics :is(b, img)").count() == 0
    server.http.delete("/streams/%3Cb%3Ebold%3C%2Fb%3E").raise_for_status()
    expect(page.locator("#tail-notice")).to_contain_text("The subscription has ended")


def test_payloads_are_shown_in_the_detected_or_the_selected_format(page: Page, server: Server) -> None:
    server.make("forms", "t")
    signed_in(page, server, "/ui#forms/t")
    exact = '{"total":12345678901234567890.10,"empty":[],"lines":[{"n":1}],"text":"a \\"b\\" : {c}"}'
    server.send("forms", "t", exact, b"\x00\x01\xff<hello>", "žluťoučký 🐕", "x" * 5000)
    expect(messages(page)).to_have_count(4)
    long, text, octets, laid_out = (messages(page).nth(i) for i in range(4))
    assert laid_out.locator("pre").text_content() == (
        '{\n  "total": 12345678901234567890.10,\n  "empty": [],\n'
        '  "lines": [\n    {\n      "n": 1\n    }\n  ],\n  "text": "a \\"b\\" : {c}"\n}'
    )
    expect(octets.locator("pre")).to_have_text("0000  00 01 ff 3c 68 65 6c 6c 6f 3e                    ···<hello>")
    expect(text.locator("pre")).to_have_text("žluťoučký 🐕")
    expect(long.locator("pre")).to_have_text("x" * 2048)
    long.get_by_role("button", name="Show the remaining 3.0 kB").click()
    expect(long.locator("pre")).to_have_text("x" * 5000)
    page.get_by_label("Show as").select_option("text")
    expect(messages(page).nth(3).locator("pre")).to_have_text(exact)
    page.get_by_label("Show as").select_option("hex")
    expect(messages(page).nth(1).locator("pre")).to_contain_text("0000  c5 be 6c 75 c5 a5")


def test_a_pause_freezes_the_list_and_counts_new_messages(page: Page, server: Server) -> None:
    server.make("pauses", "t")
    signed_in(page, server, "/ui#pauses/t")
    server.send("pauses", "t", "before")
    expect(messages(page).first).to_contain_text("before")
    page.get_by_role("button", name="Pause").click()
    server.send("pauses", "t", *map(str, range(300)))
    expect(page.locator("#tail-state")).to_have_text("Paused: 300 new messages")
    assert messages(page).count() == 1
    page.get_by_role("button", name="Resume").click()
    server.send("pauses", "t", "after")
    expect(page.locator("#messages .gap").first).to_contain_text("skipped")
    expect(page.locator("#tail-state")).to_have_text("")


def test_a_burst_ends_with_its_newest_message_and_the_number_skipped(page: Page, server: Server) -> None:
    server.make("bursts", "t")
    signed_in(page, server, "/ui#bursts/t")
    expect(page.locator("#tail-notice")).to_have_text("Waiting for messages.")
    server.send("bursts", "t", *map(str, range(300)))
    expect(messages(page).first).to_contain_text("offset 299")
    shown = page.locator("#messages > li:not(.gap)").count()
    expect(page.locator("#messages .gap")).to_have_text(f"{300 - shown} messages skipped")
    page.get_by_label("Show as").select_option("text")
    expect(messages(page).nth(1)).to_have_text(f"{300 - shown} messages skipped")


def test_the_tail_starts_where_requested_and_follows_one_partition(page: Page, server: Server) -> None:
    server.make("beginnings", "t", partitions=2)
    for number in range(30):
        server.send("beginnings", "t", f"number {number}")
    signed_in(page, server, "/ui#beginnings/t")
    expect(messages(page)).to_have_count(30)
    page.get_by_label("Partition").select_option("1")
    expect(messages(page)).to_have_count(15)
    page.get_by_label("Start at").select_option("new")
    expect(messages(page)).to_have_count(0)
    page.get_by_label("Start at").select_option("first")
    expect(messages(page)).to_have_count(15)
    expect(messages(page).last).to_contain_text("offset 0")


# ------------------------------------------------------------------------------------------------------------- honesty


def test_a_page_without_its_server_shows_that_and_resumes_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        server.make("s", "t")
        server.send("s", "t", "before")
        signed_in(page, server, "/ui#s/t")
        expect(messages(page).first).to_contain_text("before")
        expect(page.locator("#topics")).to_be_visible()
        server.kill()
        expect(page.locator("#banner-text")).to_contain_text("The figures are from")
        expect(page.locator("#connection")).to_have_text("Not connected")
        expect(page.locator("#announcer")).to_have_text("Not connected. The server cannot be reached.")
        expect(page).to_have_title("Not connected – Whippet")
        expect(page.get_by_role("button", name="Try now")).to_be_visible()
        server.come_back()
        server.send("s", "t", "meanwhile")
        # Unless it has tried by itself in this very moment.
        page.get_by_role("button", name="Try now").evaluate_all("found => found.forEach((button) => button.click())")
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#banner")).to_be_hidden()
        expect(messages(page).first).to_contain_text("meanwhile")
        expect(messages(page)).to_have_count(2)


def test_signing_out_without_a_server_leaves_no_trace_of_the_lost_connection(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        signed_in(page, server)
        expect(page.locator("#topics-notice")).to_contain_text("There are no streams yet.")
        server.kill()
        expect(page).to_have_title("Not connected – Whippet")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("User")).to_be_focused()
        expect(page).to_have_title("Whippet")
        server.come_back()
        page.get_by_label("User").fill(USERNAME)
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator("#announcer")).to_have_text("")


# ------------------------------------------------------------------------------------------------------------ its looks


def at_work(server: Server) -> None:
    """Something to look at."""
    server.make("shop", "orders", "payments", partitions=3)
    server.make("sensors", "temperature")
    for group in ("billing", "search-index"):
        server.post("/streams/shop/topics/orders/consumer-groups", {"name": group})
    kind = {
        "key": {"kind": "string", "value": base64_of("kind")},
        "value": {"kind": "string", "value": base64_of("new")},
    }
    for number in range(20):
        order: Any = {"order": 8273450 + number, "total": 129.9, "lines": [{"sku": "W-11", "n": 2}], "express": True}
        server.send("shop", "orders", json.dumps(order), headers=[kind])
    server.send(
        "shop",
        "orders",
        "in plain words, and a long line of them so that it has to be broken somewhere",
        bytes(range(40)),
    )
    server.send("sensors", "temperature", *["21.5"] * 50)


NAMELESS = """() => [...document.querySelectorAll("button, input, select, table, [role=log], [role=img]")]
  .filter((each) => each.checkVisibility() && !each.labels?.length && !each.textContent.trim())
  .filter((each) => !each.ariaLabel && !each.hasAttribute("aria-labelledby"))
  .map((each) => each.outerHTML)"""


def look_at(page: Page, folder: Path, name: str) -> None:
    """The pictures are for people, who find them below pytest's folder."""
    for width, height in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", animations="disabled")
        assert page.evaluate("document.documentElement.scrollWidth") == width, "something is beside the screen"
        assert page.evaluate(NAMELESS) == []


def test_the_page_fits_all_screens_and_colour_schemes_and_labels_everything(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        at_work(server)
        page.goto(f"{server.url}/ui#shop/orders")
        look_at(page, tmp_path, "sign-in")
        signed_in(page, server, "/ui#shop/orders")
        expect(page.locator("#topics")).to_be_visible()
        expect(messages(page).nth(10)).to_be_visible()
        look_at(page, tmp_path, "page")
        page.locator("#tail-title").evaluate("title => title.scrollIntoView()")
        page.screenshot(path=tmp_path / "tail-390-dark.png", animations="disabled")


@pytest.mark.parametrize("width", SIZES)
def test_long_names_do_not_hide_the_figures_next_to_them(browser: Browser, tmp_path: Path, width: int) -> None:
    stream, topic, group = (letter * 255 for letter in "stg")
    with serving(tmp_path) as server, a_page(browser, viewport={"width": width, "height": SIZES[width]}) as page:
        server.make(stream, topic)
        server.post(f"/streams/{stream}/topics/{topic}/consumer-groups", {"name": group})
        server.send(stream, topic, "x")
        signed_in(page, server)
        lag = page.get_by_role("row", name=group).get_by_role("cell").last
        expect(lag).to_have_text("1")
        for cell in (lag, page.get_by_role("row", name=topic).get_by_role("cell").nth(3)):
            box = cell.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= width
            assert box["height"] < 250, "not a line for every few letters"
        page.get_by_role("button", name=topic).click()
        expect(page.locator("#tail-title")).to_have_text(f"{stream} / {topic}")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        server.kill()
        expect(page.locator("#connection")).to_have_text("Not connected")
        assert page.locator(".who").evaluate("({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth")
        box = page.locator("#sign-out").bounding_box()
        assert box is not None
        assert box["height"] < 45, "one line"


def test_the_keyboard_reaches_a_topic_and_its_messages(browser: Browser, server: Server) -> None:
    with a_page(browser, viewport={"width": 390, "height": 844}) as page:
        signed_in(page, server)
        expect(page.locator("#topics")).to_be_visible()
        page.get_by_label("Show only names").fill("orders / us")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="us", exact=True)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#tail-title")).to_be_focused()
        expect(page.get_by_role("button", name="us", exact=True)).to_have_attribute("aria-current", "true")
        page.keyboard.press("Tab")
        expect(page.get_by_role("button", name="Pause")).to_be_focused()
        page.keyboard.press("Space")
        expect(page.locator("#announcer")).to_have_text("Paused")
