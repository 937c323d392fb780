"""A UDP socket that takes and gives datagrams many at a time, and never keeps the loop for long.

Linux hands over a run of datagrams of one sender in one call (UDP_GRO), and takes one apart again (UDP_SEGMENT). Where
the kernel does neither, every datagram is a call. Knows nothing of what the datagrams are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from whippet.app.config.formats import Address
from whippet.app.config.listeners import QuicSocket
from whippet.transports import listening
from whippet.transports.listening import ListenError

_log = logging.getLogger(__name__)

PeerAddress = tuple[Any, ...]

TURN_SECONDS = 0.002
"""So long the loop is kept by what has arrived; the rest waits until everybody else had a turn."""
RUN_BYTES_MAX = 65_507
"""The most that UDP over IPv4 carries, and what one call gives at most."""
SEGMENTS_MAX = 64
FULL_BYTES = 1_000
WAITING_BYTES_MAX = 1 << 20
"""Datagrams that the kernel has no room for. What is beyond is lost, as it may be on any way."""
BUFFER_BYTES = 4 << 20
"""Asked of the kernel in both directions, which may give less: a burst that arrives while the loop is busy is kept."""

UDP_SEGMENT, UDP_GRO = 103, 104
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PROBE = 10, 23, 3
"""Datagrams are never cut into fragments, and how large they may be is found out by whoever sends them."""
_SEGMENT = struct.Struct("=H")
_GRO = struct.Struct("=i")


class Datagrams:
    """One socket on a running loop. `receive` is told every datagram, `settle` that a turn is over."""

    def __init__(
        self, link: socket.socket, receive: Callable[[bytes, PeerAddress], None], settle: Callable[[], None]
    ) -> None:
        self._link = link
        self._receive = receive
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._scratch = memoryview(bytearray(RUN_BYTES_MAX + 1))
        self._waiting: deque[tuple[list[bytes], PeerAddress]] = deque()
        self._waiting_bytes = 0
        self._all_given: asyncio.Future[None] | None = None
        self._can_segment = True
        with contextlib.suppress(OSError):
            link.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        level, option = (
            (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER)
            if link.family == socket.AF_INET6
            else (socket.IPPROTO_IP, IP_MTU_DISCOVER)
        )
        with contextlib.suppress(OSError):
            link.setsockopt(level, option, PROBE)
        self._loop.add_reader(link, self._readable)

    def _readable(self) -> None:
        until = time.monotonic() + TURN_SECONDS
        scratch, receive, link = self._scratch, self._receive, self._link
        try:
            while True:
                size, ancillary, _, peer = link.recvmsg_into([scratch], 64)
                run = bytes(scratch[:size])
                step = _GRO.unpack(ancillary[0][2])[0] if ancillary and len(ancillary[0][2]) == _GRO.size else 0
                if 0 < step < size:
                    for start in range(0, size, step):
                        receive(run[start : start + step], peer)
                else:
                    receive(run, peer)
                    if size < FULL_BYTES:
                        # Who has more to say fills his datagrams. To ask costs as much as to be told.
                        break
                if time.monotonic() > until:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # A peer that is gone reports itself here on some systems; the socket is as good as before.
            _log.debug("nothing could be received: %s", error)
        self._settle()

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self, datagrams: Sequence[bytes], peer: PeerAddress) -> None:
        """In this order. What nobody takes is lost."""
        position, count = 0, len(datagrams)
        while position < count:
            run = self._run(datagrams, position)
            position += len(run)
            if self._waiting or not self._give(run, peer):
                self._keep(run, peer)

    def _run(self, datagrams: Sequence[bytes], position: int) -> list[bytes]:
        """As many as one call takes: all of one size, the last perhaps smaller."""
        first = datagrams[position]
        run, size = [first], len(first)
        total = size
        if not self._can_segment:
            return run
        for datagram in datagrams[position + 1 : position + SEGMENTS_MAX]:
            total += len(datagram)
            if len(datagram) > size or total > RUN_BYTES_MAX:
                break
            run.append(datagram)
            if len(datagram) < size:
                break
        return run

    def _give(self, run: list[bytes], peer: PeerAddress) -> bool:
        """False: the kernel has no room."""
        try:
            if len(run) == 1:
                self._link.sendto(run[0], peer)
            else:
                segment = (socket.IPPROTO_UDP, UDP_SEGMENT, _SEGMENT.pack(len(run[0])))
                self._link.sendmsg(run, [segment], 0, peer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if len(run) > 1 and error.errno in {errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.EMSGSIZE}:
                # A network card that cannot do it says so only now.
                self._can_segment = error.errno == errno.EMSGSIZE
                for datagram in run:
                    if not self._give([datagram], peer):
                        return True
            else:
                _log.debug("%d bytes could not be sent to %s: %s", sum(map(len, run)), peer, error)
        return True

    def _keep(self, run: list[bytes], peer: PeerAddress) -> None:
        size = sum(map(len, run))
        if self._waiting_bytes + size > WAITING_BYTES_MAX:
            return
        if not self._waiting:
            self._loop.add_writer(self._link, self._writable)
        self._waiting.append((run, peer))
        self._waiting_bytes += size

    def _writable(self) -> None:
        while self._waiting:
            run, peer = self._waiting[0]
            if not self._give(run, peer):
                return
            self._waiting.popleft()
            self._waiting_bytes -= sum(map(len, run))
        self._loop.remove_writer(self._link)
        if self._all_given is not None and not self._all_given.done():
            self._all_given.set_result(None)

    async def flush(self, seconds_max: float) -> None:
        """Returns when the kernel has all that was sent, or after so long."""
        if self._waiting:
            self._all_given = self._loop.create_future()
            await asyncio.wait([self._all_given], timeout=seconds_max)

    def close(self) -> None:
        self._loop.remove_reader(self._link)
        if self._waiting:
            self._loop.remove_writer(self._link)
            self._waiting.clear()
        self._link.close()


async def bind(address: Address, setting: str, wanted: QuicSocket) -> socket.socket:
    """A UDP socket. A name that stands for several addresses is listened on at one only, IPv4 first."""
    try:
        family, target = await listening.resolve(address, socket.SOCK_DGRAM)
        return _open(family, target, wanted)
    except OSError as error:
        raise ListenError(f"cannot listen on {address} ({setting}): {error.strerror or error}") from error
    except UnicodeError as error:
        raise ListenError(f"cannot listen on {address} ({setting}): not a host name") from error


def _open(family: int, target: tuple[Any, ...], wanted: QuicSocket) -> socket.socket:
    with contextlib.ExitStack() as on_failure:
        link = on_failure.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        link.setblocking(False)
        link.bind(target)
        own = wanted.override_defaults
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted.recv_buffer_size if own else BUFFER_BYTES)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wanted.send_buffer_size if own else BUFFER_BYTES)
        if own:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, wanted.keepalive)
        on_failure.pop_all()
        return link
