"""GET /limits: what a client can come up against here, and which setting of the server it is."""

from __future__ import annotations

from whippet.app.config.limits import Limit, limits
from whippet.transports.http.operation import Call


async def get_limits(call: Call) -> list[Limit]:
    return list(limits(call.api.gateway.config))
