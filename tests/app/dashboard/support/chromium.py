"""A real browser for the tests of the dashboard: Debian's Chromium, driven by playwright, with a fresh profile."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "there is no Chromium on this machine: apt-get install chromium"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAITS_MS = 30_000
"""Timeout for changes of a page, on a busy machine."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def until(page: Page, condition: str, given: Any = None) -> None:
    """Waits for a JavaScript expression to be true; playwright's own way violates the policy of the page."""
    page.evaluate(
        f"""async (given) => {{
          const deadline = Date.now() + {WAITS_MS}
          while (!({condition})) {{
            if (Date.now() > deadline) throw new Error("it did not come to this")
            await new Promise((resolve) => setTimeout(resolve, 5))
          }}
        }}""",
        given,
    )


NOT_THERE = (
    "WebSocket connection to",
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_CONNECTION_RESET",
    "net::ERR_EMPTY_RESPONSE",
)
"""In messages of the browser itself about a killed server, which cannot be suppressed."""


class Complaints(list[str]):
    """Warnings and errors that a page has written to the console, and exceptions: there should be none."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.append(f"thrown: {error}"))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("warning", "error") and not any(each in message.text for each in NOT_THERE):
            self.append(message.text)


@contextlib.contextmanager
def a_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """Opens a page in a context of its own; it must not complain."""
    context = browser.new_context(**options)
    context.set_default_timeout(WAITS_MS)
    page = context.new_page()
    complaints = Complaints(page)
    try:
        yield page
        assert not complaints, complaints
    finally:
        context.close()
