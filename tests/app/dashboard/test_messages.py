"""The messages of a topic on the page: live and browsed, opened, filtered, downloaded and produced."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.app.dashboard.support.chromium import until
from tests.app.dashboard.support.serving import PASSWORD, Server, base64_of
from tests.app.dashboard.support.visits import card, dialog, go_to, messages, opened, signed_in
from tests.support.sizes import mostly_long

# --------------------------------------------------------------------------------------------------------- what is seen


def test_a_message_is_one_line_which_opens_in_place_with_its_headers(page: Page, server: Server) -> None:
    server.make("lines", "t")
    signed_in(page, server, "/ui#/streams/lines/t")
    expect(page.locator("#tail-title")).to_have_text("lines / t")
    key = {"kind": "string", "value": base64_of("attempt")}
    value = {"kind": "int32", "value": base64.b64encode((-7).to_bytes(4, "little", signed=True)).decode()}
    server.send("lines", "t", "the first")
    expect(messages(page).first).to_contain_text("the first")
    server.send("lines", "t", '{\n  "second": true\n}', headers=[{"key": key, "value": value}])
    newest = messages(page).first
    expect(newest.locator("td.payload")).to_have_text('{ "second": true }')
    expect(newest.locator(".chip")).to_have_text("attempt -7")
    detail = opened(page)
    expect(detail.locator("pre")).to_have_text('{\n  "second": true\n}')
    expect(detail.locator(".headers dt")).to_have_text("attempt")
    expect(detail.locator(".headers dd")).to_have_text("-7")
    expect(newest.locator(".opener")).to_have_attribute("aria-expanded", "true")
    newest.locator("td.payload").click()
    expect(page.locator("tr.detail")).to_have_count(0)


MARKUP = (
    "<script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    '{"<img src=x onerror=document.title=1>": "</pre><script>document.title=1</script>"}',
)


@pytest.mark.parametrize("payload", mostly_long(MARKUP, MARKUP[2:]))
def test_payloads_and_headers_are_inserted_as_text_only(page: Page, server: Server, payload: str) -> None:
    if server.http.get("/streams/markup").status_code != 200:
        server.make("markup", "t")
    markup = {"kind": "string", "value": base64_of("<b>bold</b>")}
    signed_in(page, server, "/ui#markup/t")
    server.send("markup", "t", payload, headers=[{"key": markup, "value": markup}])
    line = messages(page).first.locator("td.payload")
    expect(line).to_have_text(payload)
    detail = opened(page)
    for part in payload.split('"'):
        expect(detail.locator("pre")).to_contain_text(part)
    expect(detail.locator(".headers dd")).to_have_text("<b>bold</b>")
    page.get_by_text("Filter, columns").click()
    page.get_by_label("Columns from JSON").fill("$.a, $.<b>")
    page.keyboard.press("Enter")
    assert page.locator("#messages :is(img, script, b)").count() == 0
    assert page.title() == "t – markup – Whippet"


def test_names_are_inserted_as_text_only(page: Page, server: Server) -> None:
    server.make("<b>bold</b>", "<img src=x onerror=alert(1)>")
    group = "/streams/%3Cb%3Ebold%3C%2Fb%3E/topics/%3Cimg%20src=x%20onerror=alert(1)%3E/consumer-groups"
    server.post(group, {"name": "<i>group</i>"})
    signed_in(page, server)
    go_to(page, "#/streams")
    page.get_by_role("link", name="<img src=x onerror=alert(1)>").click()
    expect(page.locator("#tail-title")).to_have_text("<b>bold</b> / <img src=x onerror=alert(1)>")
    page.get_by_role("navigation", name="Topic").get_by_role("link", name="Consumer groups").click()
    expect(page.get_by_role("heading", name="<i>group</i>")).to_be_visible()
    page.get_by_role("navigation", name="Topic").get_by_role("link", name="Messages").click()
    expect(page.locator("#tail-notice")).to_have_text("Waiting for messages.")
    assert page.locator("#view :is(b, img, i)").count() == 0
    server.http.delete("/streams/%3Cb%3Ebold%3C%2Fb%3E").raise_for_status()
    expect(page.locator("#tail-notice")).to_contain_text("The subscription has ended")
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()


def test_payloads_are_shown_in_the_detected_or_the_selected_format(page: Page, server: Server) -> None:
    server.make("forms", "t")
    signed_in(page, server, "/ui#/streams/forms/t")
    exact = '{"total":12345678901234567890.10,"empty":[],"lines":[{"n":1}],"text":"a \\"b\\" : {c}"}'
    server.send("forms", "t", exact, b"\x00\x01\xff<hello>", "žluťoučký 🐕", "x" * 6000)
    expect(messages(page)).to_have_count(4)
    long, text, octets, laid_out = (opened(page, i) for i in range(4))
    assert laid_out.locator("pre").text_content() == (
        '{\n  "total": 12345678901234567890.10,\n  "empty": [],\n'
        '  "lines": [\n    {\n      "n": 1\n    }\n  ],\n  "text": "a \\"b\\" : {c}"\n}'
    )
    expect(octets.locator("pre")).to_have_text("0000  00 01 ff 3c 68 65 6c 6c 6f 3e                    ···<hello>")
    expect(text.locator("pre")).to_have_text("žluťoučký 🐕")
    expect(long.locator("pre")).to_have_text("x" * 4096)
    long.get_by_role("button", name="Show the remaining 1.9 kB").click()
    expect(long.locator("pre")).to_have_text("x" * 6000)
    page.get_by_text("Filter, columns").click()
    page.get_by_label("Show as").select_option("text")
    expect(opened(page, 3).locator("pre")).to_have_text(exact)
    page.get_by_label("Show as").select_option("hex")
    expect(messages(page).nth(1).locator("td.payload")).to_contain_text("c5 be 6c 75 c5 a5")


def test_columns_are_read_from_json_paths(page: Page, server: Server) -> None:
    server.make("columns", "t")
    server.send("columns", "t", '{"id": 7, "customer": {"name": "Ann"}, "tags": ["a", "b"]}', "no JSON")
    signed_in(page, server, "/ui#/streams/columns/t/messages?from=first")
    expect(messages(page)).to_have_count(2)
    page.get_by_text("Filter, columns").click()
    page.get_by_label("Columns from JSON").fill("$.id, $.customer.name, $.tags[1], $.customer")
    page.keyboard.press("Enter")
    expect(messages(page).nth(1).locator("td.value")).to_have_text(["7", "Ann", "b", '{"name":"Ann"}'])
    expect(messages(page).first.locator("td.value")).to_have_text([""] * 4)


# ----------------------------------------------------------------------------------------------------------------- live


def test_a_pause_freezes_the_list_and_counts_new_messages(page: Page, server: Server) -> None:
    server.make("pauses", "t")
    signed_in(page, server, "/ui#/streams/pauses/t")
    server.send("pauses", "t", "before")
    expect(messages(page).first).to_contain_text("before")
    page.get_by_role("button", name="Pause").click()
    server.send("pauses", "t", *map(str, range(300)))
    expect(page.locator("#tail-state")).to_have_text("Paused: 300 new messages")
    assert messages(page).count() == 1
    page.get_by_role("button", name="Resume").click()
    expect(messages(page).first).to_contain_text("299")
    expect(page.locator("#messages .gap").first).to_contain_text("not shown")
    expect(page.locator("#tail-state")).to_have_text("")


def test_the_list_stands_still_while_a_message_is_open(page: Page, server: Server) -> None:
    server.make("open", "t")
    server.send("open", "t", "read me")
    signed_in(page, server, "/ui#/streams/open/t")
    opened(page)
    server.send("open", "t", "another")
    expect(page.locator("#tail-state")).to_have_text("Paused: 1 new message")
    assert messages(page).count() == 1
    messages(page).first.locator(".opener").click()
    expect(messages(page)).to_have_count(2)


def test_messages_that_are_not_shown_can_be_opened(page: Page, server: Server) -> None:
    server.make("bursts", "t")
    signed_in(page, server, "/ui#/streams/bursts/t")
    expect(page.locator("#tail-notice")).to_have_text("Waiting for messages.")
    server.send("bursts", "t", *map(str, range(300)))
    expect(messages(page).first).to_contain_text("299")
    gap = page.locator("#messages .gap")
    shown = messages(page).count()
    expect(gap).to_contain_text(f"{300 - shown} messages not shown")
    gap.get_by_role("button").click()
    expect(messages(page)).to_have_count(shown + 100)
    expect(gap).to_contain_text(f"{200 - shown} messages not shown")
    expect(messages(page).nth(1).locator("td.payload")).to_have_text("298")


def test_only_messages_with_a_header_are_shown(page: Page, server: Server) -> None:
    server.make("filters", "t")
    signed_in(page, server, "/ui#/streams/filters/t")
    page.get_by_text("Filter, columns").click()
    page.get_by_label("Only with header").fill("kind = new")
    page.keyboard.press("Enter")
    # Only a subscription that has begun sees what is sent.
    until(page, "document.querySelector('#tail-notice').textContent === 'Waiting for messages.'")
    kind = {
        "key": {"kind": "string", "value": base64_of("kind")},
        "value": {"kind": "string", "value": base64_of("new")},
    }
    for number in range(100):
        server.send("filters", "t", f"without {number}")
        server.send("filters", "t", f"with {number}", headers=[kind])
        if messages(page).count():
            break
    expect(messages(page).first.locator("td.payload")).to_contain_text("with ")
    assert page.locator("#messages", has_text="without").count() == 0


# -------------------------------------------------------------------------------------------------------------- browsed


def test_messages_are_browsed_from_an_offset_a_time_and_both_ends(page: Page, server: Server) -> None:
    server.make("pages", "t", partitions=2)
    server.send("pages", "t", *[f"number {number}" for number in range(80)])
    server.send("pages", "t", *[f"number {number}" for number in range(80, 160)])
    signed_in(page, server, "/ui#/streams/pages/t")
    expect(messages(page)).to_have_count(20)
    page.get_by_label("Start at").select_option("first")
    expect(messages(page)).to_have_count(50)
    expect(messages(page).last.locator("td.payload")).to_have_text("number 0")
    page.get_by_role("button", name="Newer").click()
    expect(messages(page).last.locator("td.payload")).to_have_text("number 50")
    page.get_by_role("button", name="Older").click()
    expect(messages(page).last.locator("td.payload")).to_have_text("number 0")
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    page.get_by_label("Start at").select_option("newest")
    expect(messages(page).first.locator("td.payload")).to_have_text("number 159")
    page.get_by_label("Partition", exact=True).select_option("1")
    page.get_by_label("Start at").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("41")
    page.keyboard.press("Enter")
    expect(messages(page).last.locator(".opener")).to_have_text("41")
    assert page.url.endswith("?from=offset&at=41&partition=1")
    page.reload()
    expect(messages(page).last.locator(".opener")).to_have_text("41")
    go_to(page, "#/streams/pages/t/messages?from=time&at=2100-01-01T00:00:00")
    expect(page.locator("#tail-notice")).to_have_text("There are no messages here.")
    go_to(page, "#/streams/pages/t/messages?from=time&at=2001-01-01T00:00:00")
    expect(messages(page).last.locator("td.payload")).to_have_text("number 0")


def test_a_message_leads_to_its_neighbours_its_readers_and_a_curl_command(page: Page, server: Server) -> None:
    server.make("around", "t")
    server.send("around", "t", *[f"number {number}" for number in range(100)])
    offsets = "/streams/around/topics/t/consumer-offsets"
    for consumer, offset in (("ahead", 90), ("behind", 10)):
        body = {"consumer_id": consumer, "partition_id": 0, "offset": offset}
        server.http.put(offsets, json=body).raise_for_status()
    signed_in(page, server, "/ui#/streams/around/t/messages?from=offset&at=50&partition=0&open=55")
    detail = page.locator("tr.detail")
    expect(detail.locator("pre")).to_have_text("number 55")
    detail.get_by_role("button", name="Who has read it?").click()
    expect(detail.locator(".readers")).to_contain_text("Consumer ahead has read it (committed 90)")
    expect(detail.locator(".readers")).to_contain_text("Consumer behind has not read it: 45 messages to go")
    detail.get_by_role("button", name="As curl").click()
    command = detail.locator(".snippet pre").text_content() or ""
    run = subprocess.run(["bash", "-c", f"TOKEN={server.token}; {command}"], capture_output=True, check=True, text=True)
    assert json.loads(run.stdout)["messages"][0]["payload"] == base64_of("number 55")
    detail.get_by_role("link", name="Show in context").click()
    expect(messages(page).last.locator(".opener")).to_have_text("45")


def test_what_is_listed_can_be_downloaded_as_ndjson(page: Page, server: Server) -> None:
    server.make("downloads", "t")
    server.send("downloads", "t", "text", b"\xff\x00")
    signed_in(page, server, "/ui#/streams/downloads/t/messages?from=newest")
    expect(messages(page)).to_have_count(2)
    page.get_by_text("Filter, columns").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "t.ndjson"
    octets, text = (json.loads(line) for line in Path(download.value.path()).read_text().splitlines())
    assert (text["offset"], text["payload"], text["headers"]) == (0, "text", {})
    assert octets["payload_base64"] == base64_of(b"\xff\x00")


# ---------------------------------------------------------------------------------------------------------------- found


def test_a_message_is_found_with_its_neighbours_and_a_link_repeats_the_search(page: Page, server: Server) -> None:
    server.make("finds", "t", partitions=2)
    for start in range(0, 400, 100):
        server.send("finds", "t", *[f'{{"n": {number}}}' for number in range(start, start + 100)])
    signed_in(page, server, "/ui#/streams/finds/t")
    page.get_by_role("navigation", name="Topic").get_by_role("link", name="Find").click()
    page.get_by_label("Search for").select_option("where")
    page.get_by_label("Value").fill("$.n == 123")
    page.keyboard.press("Enter")
    expect(page.locator("#find-state")).to_contain_text("1 match in 400 messages")
    expect(page.locator("#find-state")).to_contain_text("everything was examined")
    expect(messages(page).locator("td.payload")).to_have_text(['{"n": 123}'])
    page.reload()
    expect(messages(page).locator("td.payload")).to_have_text(['{"n": 123}'])
    detail = opened(page)
    detail.get_by_role("link", name="Show in context").click()
    expect(page.locator("tr.named td.payload")).to_have_text('{"n": 123}')
    expect(messages(page).first.locator("td.payload")).to_have_text('{"n": 162}')
    page.go_back()
    expect(page.locator("#find-state")).to_contain_text("everything was examined")
    page.get_by_label("Search for").select_option("id")
    page.get_by_label("Value").fill("not an id")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no message id")
    page.get_by_label("Search for").select_option("any")
    page.get_by_label("Until").fill("2001-01-01T00:00:00")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#find-state")).to_have_text("No match in 0 messages (0 B), everything was examined.")


def test_a_search_stops_at_its_budget_which_can_be_extended(page: Page, server: Server) -> None:
    server.make("budgets", "t")
    body = b"\n".join([b"line"] * 8000)
    for _ in range(15):
        headers = {"content-type": "text/plain"}
        server.http.post("/streams/budgets/topics/t/messages", content=body, headers=headers).raise_for_status()
    signed_in(page, server, "/ui#/streams/budgets/t/find?by=text&what=nothing")
    expect(page.locator("#find-state")).to_contain_text("No match in 100,000 messages")
    expect(page.locator("#find-state")).to_contain_text("20,000 not examined")
    page.get_by_role("button", name="Examine 20,000 more").click()
    expect(page.locator("#find-state")).to_contain_text("No match in 120,000 messages")
    expect(page.locator("#find-state")).to_contain_text("everything was examined")


# ------------------------------------------------------------------------------------------------------------- produced


def test_a_message_is_produced_with_key_headers_or_a_partition(page: Page, server: Server) -> None:
    server.make("produce", "t", partitions=2)
    signed_in(page, server, "/ui#/streams/produce/t")
    expect(page.locator("#tail-about")).to_contain_text("2 partitions")
    page.get_by_role("button", name="Produce").click()
    form = dialog(page)
    form.get_by_label("Payload").fill('{"made": "here"}')
    form.get_by_label("Partition").select_option("1")
    form.get_by_label("Key").fill("k")
    form.get_by_label("User headers").fill("kind: new\nno colon")
    form.get_by_role("button", name="Send").click()
    expect(form.get_by_role("alert")).to_have_text("Choose a key or a partition, not both.")
    form.get_by_label("Key").fill("")
    form.get_by_role("button", name="Send").click()
    expect(form.get_by_role("alert")).to_have_text("A header is written as name: value, not no colon.")
    form.get_by_label("User headers").fill("kind: new")
    form.get_by_role("button", name="Send").click()
    expect(form).to_have_count(0)
    expect(messages(page).first.locator(".offset")).to_contain_text("p1")
    expect(messages(page).first.locator(".chip")).to_have_text("kind new")


def test_an_empty_topic_shows_how_to_send_the_first_message(page: Page, server: Server) -> None:
    server.make("it's", "a $topic")
    signed_in(page, server, "/ui#/streams/it's/a%20$topic")
    box = card(page, "Messages")
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()
    command = (box.get_by_label("curl").text_content() or "").replace("...", PASSWORD.replace("'", "'\\''"))
    subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    expect(messages(page).first.locator("td.payload")).to_have_text("hello")
    expect(box.get_by_label("curl")).to_have_count(0)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert re.search(r"[?&]token=", page.url) is None
