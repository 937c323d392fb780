"""What the tests do on the page: sign in, go to a view, and find what is there."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.app.dashboard.support.chromium import WAITS_MS
from tests.app.dashboard.support.serving import PASSWORD, USERNAME, Server

expect.set_options(timeout=WAITS_MS)
SIZES = {1280: 860, 390: 844, 2560: 1440}


def sign_in(page: Page, server: Server, place: str = "/ui", username: str = USERNAME, password: str = PASSWORD) -> None:
    page.goto(server.url + place)
    page.get_by_label("User").fill(username)
    page.get_by_label("Password").fill(password)
    page.keyboard.press("Enter")


def signed_in(page: Page, server: Server, place: str = "/ui") -> None:
    sign_in(page, server, place)
    expect(page.locator("#connection")).to_have_text("Live")


def go_to(page: Page, address: str) -> None:
    page.evaluate("hash => { location.hash = hash }", address)


def messages(page: Page) -> Locator:
    return page.locator("#messages tr.message")


def opened(page: Page, number: int = 0) -> Locator:
    """Opens a message, and returns its details."""
    row = messages(page).nth(number)
    row.locator(".opener").click()
    return row.locator("+ tr.detail")


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")
