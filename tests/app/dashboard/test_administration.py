"""What users change on the page: streams, topics, partitions, consumer groups, users and tokens."""

from __future__ import annotations

from playwright.sync_api import Browser, Page, expect

from tests.app.dashboard.support.chromium import a_page
from tests.app.dashboard.support.serving import Server
from tests.app.dashboard.support.visits import card, dialog, go_to, messages, sign_in, signed_in


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def finish(page: Page, name: str, **fields: str) -> None:
    """Fills the form of the dialog, and submits it."""
    form = dialog(page)
    for label, value in fields.items():
        form.get_by_label(label.replace("_", " ")).fill(value)
    form.get_by_role("button", name=name, exact=True).click()
    expect(form.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_a_new_user_creates_a_stream_and_a_topic_produces_and_deletes_both(page: Page, server: Server) -> None:
    signed_in(page, server)
    card(page, "Start here").get_by_role("button", name="Create the first stream").click()
    dialog(page).get_by_label("Name").fill("shop")
    dialog(page).get_by_role("button", name="Create").click()
    # The next step follows at once.
    expect(dialog(page)).to_contain_text("New topic")
    finish(page, "Create", Name="orders", Partitions="2", Delete_messages_after="7 days")
    expect(page.locator("#tail-title")).to_have_text("shop / orders")
    press(page, "Produce")
    finish(page, "Send", Payload="the first order")
    expect(messages(page).first).to_contain_text("the first order")
    topic = page.get_by_role("navigation", name="Topic")
    topic.get_by_role("link", name="Settings").click()
    expect(card(page, "Settings")).to_contain_text("7 days")
    press(page, "Edit")
    finish(page, "Save", Name="sales", Delete_messages_after="never")
    expect(page.locator("#tail-title")).to_have_text("shop / sales")
    expect(card(page, "Settings")).to_contain_text("never")
    press(page, "Purge")
    erase = dialog(page).get_by_role("button", name="Delete all messages")
    dialog(page).get_by_label("Type its name").fill("sale")
    erase.click()
    expect(erase).to_be_visible()
    finish(page, "Delete all messages", Type_its_name="sales")
    expect(page.locator("#tail-about")).to_contain_text("0 messages")
    press(page, "Delete")
    finish(page, "Delete topic", Type_its_name="sales")
    page.get_by_text("Actions").click()
    press(page, "Rename")
    finish(page, "Rename", Name="store")
    page.get_by_label("Actions for stream store").click()
    press(page, "Delete")
    finish(page, "Delete stream", Type_its_name="store")
    expect(page.get_by_text("There are no streams yet.")).to_be_visible()


def test_partitions_are_added_and_removed_and_shown_with_their_offsets(page: Page, server: Server) -> None:
    server.make("parts", "t", partitions=2)
    server.send("parts", "t", "a", "b", "c")
    signed_in(page, server, "/ui#/streams/parts/t/partitions")
    table = page.get_by_role("table", name="Partitions")
    first = table.get_by_role("row", name="0 ").first
    expect(first).to_contain_text("3")
    press(page, "Add partitions")
    finish(page, "Add", How_many="3")
    expect(table.get_by_role("row")).to_have_count(6)
    expect(page.locator(".heat > span")).to_have_count(5)
    press(page, "Remove partitions")
    dialog(page).get_by_label("How many").fill("6")
    dialog(page).get_by_label("Type the name").fill("t")
    dialog(page).get_by_role("button", name="Delete partitions").click()
    expect(dialog(page)).to_be_visible()
    finish(page, "Delete partitions", How_many="4")
    expect(table.get_by_role("row")).to_have_count(2)


def test_a_refusal_keeps_the_dialog_open_with_the_words_of_the_server(page: Page, server: Server) -> None:
    server.make("taken")
    signed_in(page, server, "/ui#/streams")
    press(page, "New stream")
    dialog(page).get_by_label("Name").fill("taken")
    dialog(page).get_by_role("button", name="Create").click()
    expect(dialog(page).get_by_role("alert")).to_contain_text("taken")
    expect(dialog(page).get_by_label("Name")).to_have_value("taken")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)


def test_offsets_of_a_group_are_reset_after_a_preview(page: Page, server: Server) -> None:
    server.make("resets", "t")
    server.send("resets", "t", *map(str, range(10)))
    signed_in(page, server, "/ui#/streams/resets/t/groups")
    press(page, "New group")
    finish(page, "Create", Name="billing")
    row = page.get_by_role("table", name="Partitions of billing").get_by_role("row").last
    expect(row.get_by_role("cell").nth(1)).to_have_text("none yet")
    for where, effect, stored, lag in (
        ("end", "10 messages skipped", "9", "0"),
        ("offset", "7 messages again", "2", "7"),
        ("time", "7 messages skipped", "9", "0"),
        ("first", "10 messages again", "none yet", "10"),
    ):
        press(page, "Reset offsets")
        form = dialog(page)
        form.get_by_label("Continue with").select_option(where)
        if where == "offset":
            form.get_by_label("Offset", exact=True).fill("3")
        if where == "time":
            form.get_by_label("Time", exact=True).fill("2100-01-01T00:00:00")
        page.keyboard.press("Tab")
        expect(form.get_by_role("table", name="Preview")).to_contain_text(effect)
        form.get_by_role("button", name="Reset").click()
        expect(row.get_by_role("cell").nth(1)).to_have_text(stored)
        expect(row.get_by_role("cell").nth(2)).to_have_text(lag)
    lease = server.http.post("/streams/resets/topics/t/consumer-groups/billing/leases?expiry=60s").json()
    press(page, "Reset offsets")
    form.get_by_role("button", name="Reset").click()
    expect(form.get_by_role("alert")).to_contain_text("The group has 1 member")
    page.keyboard.press("Escape")
    expect(page.get_by_text("1 member · lag 10")).to_be_visible()
    server.http.delete(
        f"/streams/resets/topics/t/consumer-groups/billing/leases/{lease['lease_id']}"
    ).raise_for_status()
    press(page, "Delete")
    finish(page, "Delete group", Type_its_name="billing")
    expect(page.get_by_text("This topic has no consumer groups.")).to_be_visible()


def test_a_user_gets_permissions_for_one_topic_and_is_disabled(browser: Browser, page: Page, server: Server) -> None:
    server.make("shared", "open", "secret")
    server.send("shared", "open", "for all")
    signed_in(page, server, "/ui#/users")
    press(page, "New user")
    dialog(page).get_by_label("Name").fill("carol")
    dialog(page).get_by_label("Password").fill("carol's")
    dialog(page).get_by_role("button", name="Create").click()
    expect(dialog(page)).to_contain_text("Permissions of carol")
    for right in ("read topic", "poll messages"):
        dialog(page).get_by_label(f"{right}: shared / open").check()
    dialog(page).get_by_role("button", name="Save").click()
    expect(dialog(page)).to_have_count(0)
    with a_page(browser) as other:
        sign_in(other, server, "/ui#/streams/shared/open", "carol", "carol's")
        expect(messages(other).first).to_contain_text("for all")
        for tab, refused in (("settings", ""), ("groups", "This topic has no consumer groups.")):
            go_to(other, f"#/streams/shared/open/{tab}")
            expect(other.locator("#view")).to_contain_text(refused)
        go_to(other, "#/streams/shared/secret")
        expect(other.locator("#view")).to_contain_text("may not")
        go_to(other, "#/users")
        expect(other.get_by_text("You have no permission to see other users.")).to_be_visible()
        go_to(other, "#/clients")
        expect(other.get_by_text("may not get_clients")).to_be_visible()
        row = page.get_by_role("row", name="carol")
        row.get_by_role("button", name="Permissions").click()
        expect(dialog(page).get_by_label("poll messages: shared / open")).to_be_checked()
        expect(dialog(page).get_by_label("poll messages: shared / secret")).not_to_be_checked()
        page.keyboard.press("Escape")
        row.get_by_role("button", name="Disable").click()
        dialog(page).get_by_role("button", name="Disable").click()
        expect(row).to_contain_text("inactive")
        expect(other.locator("#sign-in")).to_be_visible()
    row.get_by_role("button", name="Delete").click()
    finish(page, "Delete user", Type_its_name="carol")
    expect(row).to_have_count(0)


def test_a_token_is_shown_once_and_works_until_it_is_deleted(page: Page, server: Server) -> None:
    signed_in(page, server, "/ui#/users")
    press(page, "New token")
    dialog(page).get_by_label("Expires after").select_option("1 day")
    finish(page, "Create", Name="scripts")
    token = page.get_by_label("Token", exact=True).text_content() or ""
    login = {"token": token}
    assert server.http.post("/personal-access-tokens/login", json=login).status_code == 200
    press(page, "I have copied it")
    assert token not in page.content()
    page.get_by_role("row", name="scripts").get_by_role("button", name="Delete").click()
    dialog(page).get_by_role("button", name="Delete token").click()
    expect(page.get_by_text("You have no personal access tokens.")).to_be_visible()
    assert server.http.post("/personal-access-tokens/login", json=login).status_code == 401
    kept = page.evaluate("JSON.stringify([{ ...sessionStorage }, { ...localStorage }, location.href])")
    assert token not in kept


def test_clients_are_listed_with_their_user(page: Page, server: Server) -> None:
    signed_in(page, server, "/ui#/clients")
    expect(page.get_by_role("table", name="Clients").get_by_role("row", name="WEBSOCKET")).to_contain_text("iggy")
    page.get_by_label("Show only clients").fill("nothing like this")
    expect(page.get_by_text("No client matches the filter.")).to_be_visible()


def test_the_server_is_shown_with_its_machine_and_its_limits(page: Page, server: Server) -> None:
    signed_in(page, server, "/ui#/server")
    expect(card(page, "Server")).to_contain_text("Open files")
    limits = page.get_by_role("table", name="Limits")
    expect(limits.get_by_role("row", name="system.limits.connections").first).to_be_visible()
    page.get_by_label("Show only limits").fill("http.leases")
    expect(limits.get_by_role("row", name="system.limits")).to_have_count(0)
    expect(limits.get_by_role("row", name="http.leases").first).to_be_visible()
