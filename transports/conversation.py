"""One client's side of a binary protocol, on whatever transport carries it: a frame in, a response out.

TCP, QUIC and WebSocket each have one for a connection, and get it from `begin` when they have seen its first bytes. A
conversation decides nothing: it has a frame decoded by transports/wire, the request carried out by the command layer,
and the answer encoded again.
"""

from __future__ import annotations

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
"""More than any protocol has around the batches of an answer."""
PREAMBLE_BYTES = 4
"""So many bytes tell the protocols apart."""
MODERN_PREAMBLE = b"\0\0\0\0"
"""How a connection of a 0.9 client begins: with a checksum that it leaves 0, as the length that a classic frame begins
with never is."""


class Conversation(Protocol):
    session: Session
    is_over: bool
    """The last answer was the last one: the connection ends."""
    poll_bytes_max: int
    """How many bytes of batches the response to a poll may have."""

    def measure(self, data: memoryview) -> int:
        """How many bytes the frame has that begins here; 0: that cannot be told from so few. CommandError: nobody can
        tell, and where the next one begins neither."""

    def refusal(self, data: memoryview, length: int) -> Code | None:
        """Why a frame is to be read past instead of received, if it is."""

    def encode_refusal(self, data: memoryview, code: Code) -> list[Readable]:
        """The response to a frame that is not received, of which this is the beginning."""

    successor: Conversation | None
    """Who goes on with the connection after a login, if it is not this one."""

    async def respond(self, frame: memoryview, to: Responder) -> list[Readable]:
        """The response to a whole frame, its header first; an error is a response too. Nothing: there is none, or it
        comes later."""

    def half_close(self) -> None:
        """The client sends nothing more, but may still receive."""

    def close(self) -> None:
        """The connection is gone: its memberships go with it."""


def create_conversation(
    gateway: Gateway,
    session: Session,
    preamble: bytes,
    header_size: int | None = None,
    response_bytes_max: int | None = None,
) -> Conversation:
    """`header_size` forces the size of the message headers that a classic client gets; `answer_bytes_max` is what the
    transport carries of a poll, of which one message may be more."""
    is_modern = preamble == MODERN_PREAMBLE
    conversation: Conversation
    conversation = (
        ModernConversation(gateway, session) if is_modern else ClassicConversation(gateway, session, header_size)
    )
    if response_bytes_max is not None:
        most = response_bytes_max - RESPONSE_HEADER_BYTES_MAX
        conversation.poll_bytes_max = min(conversation.poll_bytes_max, most if is_modern else polls.room(most))
    return conversation
