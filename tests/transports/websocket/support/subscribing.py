"""Helpers for tests of subscriptions."""

from __future__ import annotations

from typing import Any

from tests.transports.websocket.support.browsing import Browser, sending


async def sent(browser: Browser, count: int, *, partition: int = 0, **more: Any) -> None:
    await browser.ask("send_messages", **sending(*["AAAA"] * count, partition=partition, **more))


async def subscribed(browser: Browser, **wanted: Any) -> int:
    found: int = (await browser.ask("subscribe", **wanted))["sub"]
    return found


def everything() -> dict[str, bool]:
    names = "manage_servers read_servers manage_users read_users manage_streams read_streams manage_topics read_topics"
    return dict.fromkeys((*names.split(), "poll_messages", "send_messages"), False)
