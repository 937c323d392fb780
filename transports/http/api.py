"""What all requests share: the gateway, the tokens, the limits and the rooms of memory. One for an application."""

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
from whippet.transports.http.serving.open_tails import Tails


class Api:
    def __init__(self, gateway: Gateway, tokens: AccessTokens, budgets: Budgets | None = None) -> None:
        """`rooms` are shared with all other transports."""
        self.gateway = gateway
        self.access_tokens = tokens
        self.config: Http = gateway.config.http
        self.limits = self.config.limits
        self.batch_limits = Limits.of(gateway.store.options)
        self.budgets = budgets or Budgets(gateway.config)
        self.leases = Leases(gateway, self.config.leases)
        self.scrapes = Scrapes()
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
        self.parting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server is about to stop."""
        self._unwatched: set[asyncio.Task[Any]] = set()

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """For what was answered before it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._unwatched.add(task)
        task.add_done_callback(self._unwatched.discard)

    def part(self) -> None:
        """Before the listeners stop: who waits is answered, and tails end. Their clients come back."""
        if not self.parting.done():
            self.parting.set_result(None)
            self.tails.part()

    async def close(self) -> None:
        """Waits for what goes on in the background. The store must not be closed before."""
        self.leases.close()
        self.tails.close()
        await self.access_tokens.close()
        if self._unwatched:
            await asyncio.gather(*self._unwatched, return_exceptions=True)
