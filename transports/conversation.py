"""One client's side of the classic binary protocol, on whatever transport carries it: a request in, a response out.

TCP, QUIC and WebSocket each have one for a connection. It decides nothing: requests are decoded by transports.wire,
carried out by the command layer, and the answer is encoded again.
"""

from __future__ import annotations

import logging
import os

from app.commands import groups
from app.commands.registry import carry_out
from app.errors import Code, CommandError
from app.gateway import Gateway
from app.model.sessions import Session
from storage.batch import Limits, Readable
from transports.wire.classic import answers, frames, requests
from transports.wire.classic.dialect import Dialect

_log = logging.getLogger(__name__)

FAREWELLS = frozenset({Code.STALE_CLIENT, Code.CLIENT_NOT_FOUND})
"""After these the connection ends: the client has to begin anew."""


class Conversation:
    def __init__(self, gateway: Gateway, session: Session, header_size: int | None) -> None:
        """`header_size` forces the size of the message headers that the client gets."""
        self.gateway = gateway
        self.session = session
        host = session.address.rpartition(":")[0]
        self.dialect = Dialect(gateway.clock(), header_size, gateway.returning_clients, host)
        self._limits = Limits.of(gateway.store.options)
        self.over = False
        """The last answer was a farewell."""
        gateway.sessions.add(session)

    async def answer(self, code: int, payload: memoryview) -> list[Readable]:
        """The response to one request, its header first; an error is a response too."""
        try:
            request = requests.decode(code, payload, self.dialect, os.urandom, self._limits)
            answer = await carry_out(self.gateway, self.session, request)
            if code != frames.SEND_MESSAGES:
                # A send was noticed when it was decoded.
                self.dialect.on_request(request, self.gateway.clock())
            return frames.success(answers.encode(code, answer, self.dialect))
        except CommandError as refused:
            self.over = refused.code in FAREWELLS
            _log.debug("%s: command %d refused: %s", self.session.address, code, refused)
            return [frames.failure(refused.code)]
        except Exception:  # noqa: BLE001 -- a defect of ours is logged once, here, and is no reason to drop a client
            _log.exception("%s: command %d ended in a defect", self.session.address, code)
            return [frames.failure(Code.ERROR)]

    def close(self) -> None:
        """The connection is gone: its memberships go with it."""
        self.dialect.close()
        groups.leave_all(self.gateway, self.session)
        self.gateway.sessions.remove(self.session)
