"""The server's side of a binary protocol on one connection: a frame in, a response out.

TCP, QUIC and WebSocket have one for each connection, created by `create_conversation` from its first bytes. A
conversation decides nothing: transports/wire decodes the frame, the command layer executes the request, and
transports/wire encodes the response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from whippet.app.errors import Code
from whippet.app.gateway import Gateway
from whippet.app.model.sessions import Session
from whippet.storage.batch import Readable
from whippet.transports.classic_conversation import ClassicConversation
from whippet.transports.modern_conversation import ModernConversation
from whippet.transports.reservations import Responder
from whippet.transports.wire.classic import polls

RESPONSE_HEADER_BYTES_MAX = 512
"""No protocol adds more than this to the batches of a response."""
PREAMBLE_BYTES = 4
"""This many bytes are enough to tell the protocols apart."""
MODERN_PREAMBLE = b"\0\0\0\0"
"""The first bytes of a 0.9 client: a checksum that it leaves 0. A classic frame begins with its length, which is never
0."""


class Conversation(Protocol):
    session: Session
    is_over: bool
    """The last response was the final one: the connection ends."""
    poll_bytes_max: int
    """The most bytes of batches that the response to a poll may have."""

    def measure(self, data: memoryview) -> int:
        """Returns the length of the frame that begins here; 0 if there are too few bytes to tell. Raises CommandError
        if this is no frame, so that the next one cannot be found either."""

    def refusal(self, data: memoryview, length: int) -> Code | None:
        """Returns the error for a frame that has to be skipped, or None."""

    def encode_refusal(self, data: memoryview, code: Code) -> list[Readable]:
        """Returns the response to a frame that is skipped; `data` is its beginning."""

    successor: Conversation | None
    """The conversation that takes over after a login, if another one does."""

    def begin_send(self, frame: memoryview, respond: Callable[[list[Readable]], None]) -> list[Readable] | None:
        """Executes a send of one message if that needs nothing but an append, and `frame` is the whole of it. Returns
        the response; an empty list if `respond` is called with it later; None if it is something else, and nothing was
        done."""

    async def respond(self, frame: memoryview, to: Responder) -> list[Readable]:
        """Returns the response to a whole frame, header first; an error is a response too. An empty list: there is
        none, or it follows later."""

    def half_close(self) -> None:
        """The client sends nothing more, but may still receive."""

    def close(self) -> None:
        """The connection is gone, and so are its group memberships."""


def create_conversation(
    gateway: Gateway,
    session: Session,
    preamble: bytes,
    header_size: int | None = None,
    response_bytes_max: int | None = None,
) -> Conversation:
    """`header_size` forces the size of the message headers that a classic client gets. `response_bytes_max` is the most
    that the transport accepts as the response to a poll; a single message may exceed it."""
    is_modern = preamble == MODERN_PREAMBLE
    conversation: Conversation
    conversation = (
        ModernConversation(gateway, session) if is_modern else ClassicConversation(gateway, session, header_size)
    )
    if response_bytes_max is not None:
        most = response_bytes_max - RESPONSE_HEADER_BYTES_MAX
        conversation.poll_bytes_max = min(conversation.poll_bytes_max, most if is_modern else polls.room(most))
    return conversation
