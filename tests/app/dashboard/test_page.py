"""The dashboard in a real browser: what a user sees after signing in to a busy server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.app.dashboard.support.chromium import a_page, until
from tests.app.dashboard.support.serving import PASSWORD, USERNAME, Server, base64_of, serving
from tests.app.dashboard.support.visits import SIZES, card, go_to, messages, sign_in, signed_in
from tests.support.sizes import mostly_long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as found:
        found.make("orders", "eu", "us", partitions=2)
        yield found


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


# ---------------------------------------------------------------------------------------------------------- addresses


def test_links_into_an_open_tab_and_the_back_button_change_the_view(page: Page, server: Server) -> None:
    signed_in(page, server)
    expect(page).to_have_title("Overview – Whippet")
    go_to(page, "#/streams/orders/eu")
    expect(page.locator("#tail-title")).to_have_text("orders / eu")
    expect(page).to_have_title("eu – orders – Whippet")
    go_to(page, "#/streams/orders/us/partitions")
    expect(page.locator("#tail-title")).to_have_text("orders / us")
    expect(page.get_by_role("table", name="Partitions")).to_be_visible()
    page.go_back()
    expect(page.locator("#tail-title")).to_have_text("orders / eu")
    page.go_back()
    expect(card(page, "Rates")).to_be_visible()
    page.go_forward()
    expect(page.locator("#tail-title")).to_have_text("orders / eu")
    page.reload()
    expect(page.locator("#tail-title")).to_have_text("orders / eu")


def test_a_topic_that_does_not_exist_offers_nothing_but_the_way_back(page: Page, server: Server) -> None:
    signed_in(page, server, "/ui#/streams/orders/none")
    expect(page.get_by_role("alert")).to_contain_text("none")
    for name in ("Pause", "Produce"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    page.get_by_role("link", name="All streams and topics").click()
    expect(page.locator("#topics")).to_be_visible()


def test_charts_begin_in_the_past_after_a_reload(page: Page, server: Server) -> None:
    signed_in(page, server)
    line = page.locator(".time-chart .line").first
    drawn = "document.querySelector('.time-chart .line')?.getAttribute('d')?.split('L').length > 2"
    until(page, drawn)
    page.reload()
    expect(line).to_be_attached()
    # The first answer has all points: the server kept them.
    until(page, drawn)
    page.get_by_label("Charts of the last").select_option("24h")
    expect(page.locator(".time-chart .axis").first).to_contain_text("now")
    rows = page.get_by_role("table", name="Messages per second")
    expect(rows).to_have_count(1)


# ------------------------------------------------------------------------------------------------------------- figures


def test_streams_and_topics_are_shown_with_rates_and_groups_with_lag(page: Page, server: Server) -> None:
    server.make("figures", "busy", "idle")
    server.post("/streams/figures/topics/busy/consumer-groups", {"name": "billing"})
    signed_in(page, server, "/ui#/streams")
    table = page.locator("#topics")
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
    go_to(page, "#/groups")
    group = page.locator("#groups").get_by_role("row", name="billing")
    expect(group).to_contain_text("figures / busy")
    expect(group.get_by_role("cell").nth(0)).to_have_text("none")
    expect(group.get_by_role("cell").nth(1)).to_have_text("1,000")
    lease = "/streams/figures/topics/busy/consumer-groups/billing/leases?expiry=60s"
    server.http.post(lease).raise_for_status()
    expect(group.get_by_role("cell").nth(0)).to_have_text("1")
    go_to(page, "#/streams")
    page.get_by_label("Show only names").fill("FIGURES / i")
    expect(table.locator("a.topic")).to_have_text(["idle"])


def test_events_are_listed_as_they_happen(page: Page, server: Server) -> None:
    signed_in(page, server)
    expect(card(page, "Busiest topics").get_by_role("table")).to_be_visible()
    server.make("news", "made here")
    log = page.get_by_role("log", name="Events")
    expect(log.get_by_role("listitem").first).to_contain_text("created topic news / made here")
    server.http.delete("/streams/news").raise_for_status()
    expect(log.get_by_role("listitem").first).to_contain_text("deleted stream news")


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
    expect(card(page, "Busiest topics")).to_contain_text("You have no permission to read all streams.")
    expect(card(page, "Rates")).to_be_hidden()
    page.get_by_label("Stream", exact=True).fill("private")
    page.get_by_label("Topic", exact=True).fill("own")
    page.get_by_role("button", name="Open").click()
    expect(messages(page).first).to_contain_text("for alice")
    expect(page.locator("#tail-about")).to_contain_text("1 message")
    page.reload()
    expect(page.locator("#tail-about")).to_contain_text("1 message")
    expect(page.locator("#tail-title")).to_have_text("private / own")


def figure(page: Page, name: str) -> Locator:
    return page.get_by_role("table").filter(has_text="Free on the disk").get_by_role("row", name=name).locator("td")


def test_a_full_disk_is_shown_with_what_is_free_and_what_is_in_reserve(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        signed_in(page, server)
        expect(page.get_by_role("region", name="Disk and archive")).to_be_visible()
        expect(figure(page, "Free on the disk")).to_contain_text(" of ")
        expect(figure(page, "In reserve")).to_have_attribute(
            "title", re.compile(r"are reserved for data other than messages \(system\.disk\.reserve\)")
        )
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.get_by_text("Waiting for the archive")).to_have_count(0)
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
        expect(page.get_by_role("alert")).to_be_hidden()
        server.until_archived()
        archive.rename(aside)
        archive.write_text("not a folder")
        server.send("s", "t", "c")
        expect(page.get_by_role("alert")).to_have_text(
            "Not everything could be archived. The log of the server contains the reason."
        )
        expect(figure(page, "Waiting for the archive")).to_have_text("1 message")
        expect(figure(page, "Failures of the archive")).not_to_have_text("0")
        archive.unlink()
        aside.rename(archive)
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(figure(page, "Waiting for the archive")).to_have_text("0 messages")
        (archive / "archive.json").unlink()
        expect(page.get_by_role("alert")).to_have_text(
            "Another server uses the archive: this server no longer archives anything."
        )


# ------------------------------------------------------------------------------------------------------------- honesty


def test_a_page_without_its_server_shows_that_and_resumes_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        server.make("s", "t")
        server.send("s", "t", "before")
        signed_in(page, server, "/ui#s/t")
        expect(messages(page).first).to_contain_text("before")
        expect(page.locator("#tail-about")).to_contain_text("1 message")
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
        expect(card(page, "Start here")).to_be_visible()
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


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
SERIOUS = """async () => (await axe.run()).violations
  .filter(({ impact }) => ["serious", "critical"].includes(impact))
  .map(({ id, nodes }) => [id, nodes.map(({ html }) => html)])"""


def look_at(page: Page, folder: Path | None, name: str) -> None:
    """The pictures are for people, who find them below pytest's folder; None: nobody looks at them."""
    page.evaluate(AXE)
    for width, height in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        if folder is not None:
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", animations="disabled")
        assert page.evaluate("document.documentElement.scrollWidth") == width, "something is beside the screen"
        assert page.evaluate(NAMELESS) == []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        # What is in motion has no settled colours.
        page.evaluate("Promise.all(document.getAnimations().map((each) => each.finished)).then(() => {})")
        assert page.evaluate(SERIOUS) == [], (name, scheme)


VIEWS = {
    "overview": "#/",
    "streams": "#/streams",
    "messages": "#/streams/shop/orders/messages?from=newest",
    "find": "#/streams/shop/orders/find?by=text&what=order",
    "partitions": "#/streams/shop/orders/partitions",
    "groups of topic": "#/streams/shop/orders/groups",
    "settings of topic": "#/streams/shop/orders/settings",
    "groups": "#/groups",
    "users": "#/users",
    "clients": "#/clients",
    "server": "#/server",
}
SETTLED = """() => !document.querySelector("#view").textContent.match(/Reading\\.|Waiting for figures\\./)"""


@pytest.mark.parametrize("views", mostly_long([("overview", "messages"), tuple(VIEWS)], [("overview", "messages")]))
def test_every_view_fits_all_screens_and_colour_schemes_and_labels_everything(
    browser: Browser, tmp_path: Path, views: tuple[str, ...]
) -> None:
    with serving(tmp_path) as server, a_page(browser) as page:
        pictures = tmp_path if len(views) == len(VIEWS) else None
        at_work(server)
        page.goto(f"{server.url}/ui")
        look_at(page, pictures, "sign-in")
        signed_in(page, server)
        for view in views:
            go_to(page, VIEWS[view])
            until(page, f"({SETTLED})()")
            if view == "messages":
                messages(page).nth(3).locator(".opener").click()
            look_at(page, pictures, view)


@pytest.mark.parametrize("width", mostly_long([1280, 390], [390]))
def test_long_names_do_not_hide_the_figures_next_to_them(browser: Browser, tmp_path: Path, width: int) -> None:
    stream, topic, group = (letter * 255 for letter in "stg")
    with serving(tmp_path) as server, a_page(browser, viewport={"width": width, "height": SIZES[width]}) as page:
        server.make(stream, topic)
        server.post(f"/streams/{stream}/topics/{topic}/consumer-groups", {"name": group})
        server.send(stream, topic, "x")
        signed_in(page, server)
        lag = page.get_by_role("row", name=group).get_by_role("cell").last
        expect(lag).to_have_text("1")
        busiest = card(page, "Busiest topics").get_by_role("row", name=topic).get_by_role("cell").last
        cells = [lag, busiest]
        boxes = [cell.bounding_box() for cell in cells]
        go_to(page, "#/streams")
        boxes.append(page.locator("#topics").get_by_role("row", name=topic).get_by_role("cell").last.bounding_box())
        for box in boxes:
            assert box is not None
            assert box["x"] + box["width"] <= width
            assert box["height"] < 250, "not a line for every few letters"
        page.get_by_role("link", name=topic).click()
        expect(page.locator("#tail-title")).to_have_text(f"{stream} / {topic}")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        server.kill()
        expect(page.locator("#connection")).to_have_text("Not connected")
        assert page.locator(".who").evaluate("({ scrollWidth, clientWidth }) => scrollWidth <= clientWidth")
        box = page.locator("#sign-out").bounding_box()
        assert box is not None
        assert box["height"] < 45, "one line"


def test_the_keyboard_reaches_a_topic_and_its_messages(page: Page, server: Server) -> None:
    server.make("keys", "t")
    server.send("keys", "t", "older", "newer")
    signed_in(page, server)
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page.locator("#topics")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("keys / t")
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="t", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#tail-title")).to_be_focused()
    expect(messages(page)).to_have_count(2)
    messages(page).first.locator(".opener").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("tr.detail pre")).to_have_text("older")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("go to streams and topics")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(card(page, "Rates")).to_be_visible()
