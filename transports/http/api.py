"""State that all requests of an application share: the gateway, the tokens, the limits and the memory budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from whippet.app.access.access_tokens import AccessTokens
from whippet.app.access.tickets import Tickets
from whippet.app.config.listeners import Http
from whippet.app.gateway import Gateway
from whippet.app.leases import Leases
from whippet.app.quota import Limit, Quota
from whippet.storage.batch import Limits
from whippet.transports.admission.budgets import Budgets
from whippet.transports.http.errors import limit_reached
from whippet.transports.http.handlers.metrics import Scrapes
from whippet.transports.http.search_turns import Searches
from whippet.transports.http.serving.open_tails import Tails


class Api:
    def __init__(self, gateway: Gateway, tokens: AccessTokens, budgets: Budgets | None = None) -> None:
        """`budgets` are shared with all other transports."""
        self.gateway = gateway
        self.access_tokens = tokens
        self.config: Http = gateway.config.http
        self.limits = self.config.limits
        self.batch_limits = Limits.of(gateway.store.options)
        self.budgets = budgets or Budgets(gateway.config)
        self.leases = Leases(gateway, self.config.leases)
        self.scrapes = Scrapes()
        self.searches = Searches()
        readers, channel = self.config.readers, gateway.config.websocket.channel
        self.waiting = Quota(
            "waiting polls",
            Limit("http.readers.waiting", readers.waiting),
            Limit("http.readers.waiting_per_user", readers.waiting_per_user),
            partial(limit_reached, "too_many_waiting"),
        )
        self.subscriptions = Quota(
            "subscriptions",
            Limit("websocket.channel.subscriptions_total", channel.subscriptions_total),
            Limit("websocket.channel.subscriptions_per_user", channel.subscriptions_per_user),
            partial(limit_reached, "too_many_subscriptions"),
        )
        self.tails = Tails(readers)
        self.tickets = Tickets(self.config.readers.ticket_time, gateway.clock)
        self.draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server begins to stop."""
        self._background: set[asyncio.Task[Any]] = set()

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs work whose request has been answered already."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def drain(self) -> None:
        """Answers waiting polls and ends tails, before the listeners stop. Their clients reconnect."""
        if not self.draining.done():
            self.draining.set_result(None)
            self.tails.drain()

    async def close(self) -> None:
        """Waits for the work in the background, which needs the store to be open."""
        self.leases.close()
        self.tails.close()
        await self.access_tokens.close()
        if self._background:
            await asyncio.gather(*self._background, return_exceptions=True)
