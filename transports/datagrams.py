"""A UDP socket that receives and sends many datagrams at a time, and never blocks the event loop for long.

Linux returns a run of datagrams of one sender in one call (UDP_GRO), and splits one buffer into datagrams
(UDP_SEGMENT). Where the kernel does neither, every datagram takes a call. This module knows nothing about their
content.
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

READ_SECONDS_MAX = 0.002
"""Reading stops after this time; the rest waits until other callbacks have run."""
RUN_BYTES_MAX = 65_507
"""The largest UDP payload over IPv4, and the most that one call takes."""
SEGMENTS_MAX = 64
FULL_DATAGRAM_BYTES = 1_000
GATHERED_MAX = 64
"""Datagrams of one sender are passed on when there are so many."""
TURNS_PER_QUESTION = 16
"""After so many small datagrams, one at a time, it asks the kernel whether there are more. Where several clients send
them there are, and then they are read together."""
ANCILLARY_BYTES = 64
UNSENT_BYTES_MAX = 1 << 20
"""Datagrams that wait for the kernel. Above this they are dropped, as the network may do at any time."""
BUFFER_BYTES = 4 << 20
"""Requested of the kernel in both directions, which may grant less: a burst that arrives while the event loop is busy
is kept."""

UDP_SEGMENT, UDP_GRO = 103, 104
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PROBE = 10, 23, 3
"""Datagrams are never fragmented; their sender finds out how large they may be."""
_SEGMENT = struct.Struct("=H")
_GRO = struct.Struct("=i")


class Datagrams:
    """One socket on a running event loop. It passes datagrams of one sender that arrived one after the other to
    `receive`, and calls `on_batch_end` after those that were read together."""

    def __init__(
        self, link: socket.socket, receive: Callable[[list[bytes], PeerAddress], None], on_batch_end: Callable[[], None]
    ) -> None:
        self._link = link
        self._receive = receive
        self._on_batch_end = on_batch_end
        self._loop = asyncio.get_running_loop()
        self._scratch = memoryview(bytearray(RUN_BYTES_MAX + 1))
        self._buffers = [self._scratch]
        self._unsent: deque[tuple[list[bytes], PeerAddress]] = deque()
        self._unsent_bytes = 0
        self._flushed: asyncio.Future[None] | None = None
        self._can_segment = True
        self._turns = 0
        """How often it was woken."""
        self._expects_more = False
        """There was more than one datagram to read the last time."""
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
        until = time.monotonic() + READ_SECONDS_MAX
        self._turns += 1
        asks_again = self._expects_more or not self._turns % TURNS_PER_QUESTION
        reads = 0
        gathered: list[bytes] = []
        sender: PeerAddress = ()
        try:
            while True:
                run, peer = self._read_run()
                reads += 1
                if gathered and (peer != sender or len(gathered) >= GATHERED_MAX):
                    self._receive(gathered, sender)
                    gathered = []
                sender = peer
                gathered += run
                if len(run) == 1 and len(run[0]) < FULL_DATAGRAM_BYTES and not asks_again:
                    # A client with more to send fills its datagrams. Asking the kernel costs as much as waiting for
                    # its next notification.
                    break
                if time.monotonic() > until:
                    break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            # On some systems this reports a peer that is gone; the socket still works.
            _log.debug("cannot receive datagrams: %s", error)
        self._expects_more = reads > 1
        if gathered:
            self._receive(gathered, sender)
        self._on_batch_end()

    def _read_run(self) -> tuple[list[bytes], PeerAddress]:
        """Returns the datagrams of one call, and their sender."""
        size, ancillary, _, peer = self._link.recvmsg_into(self._buffers, ANCILLARY_BYTES)
        run = bytes(self._scratch[:size])
        step = _GRO.unpack(ancillary[0][2])[0] if ancillary and len(ancillary[0][2]) == _GRO.size else 0
        if 0 < step < size:
            return [run[start : start + step] for start in range(0, size, step)], peer
        return [run], peer

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self, datagrams: Sequence[bytes], peer: PeerAddress) -> None:
        """Sends in this order; what the kernel has no room for waits or is dropped."""
        position, count = 0, len(datagrams)
        while position < count:
            run = self._next_run(datagrams, position)
            position += len(run)
            if self._unsent or not self._send_run(run, peer):
                self._queue_run(run, peer)

    def _next_run(self, datagrams: Sequence[bytes], position: int) -> list[bytes]:
        """Returns the datagrams that one call can send: all of one size, except that the last may be smaller."""
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

    def _send_run(self, run: list[bytes], peer: PeerAddress) -> bool:
        """Returns False if the kernel has no room."""
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
                # A network card that does not support segmentation reports that only here.
                self._can_segment = error.errno == errno.EMSGSIZE
                for datagram in run:
                    if not self._send_run([datagram], peer):
                        return True
            else:
                _log.debug("cannot send %d bytes to %s: %s", sum(map(len, run)), peer, error)
        return True

    def _queue_run(self, run: list[bytes], peer: PeerAddress) -> None:
        size = sum(map(len, run))
        if self._unsent_bytes + size > UNSENT_BYTES_MAX:
            return
        if not self._unsent:
            self._loop.add_writer(self._link, self._writable)
        self._unsent.append((run, peer))
        self._unsent_bytes += size

    def _writable(self) -> None:
        while self._unsent:
            run, peer = self._unsent[0]
            if not self._send_run(run, peer):
                return
            self._unsent.popleft()
            self._unsent_bytes -= sum(map(len, run))
        self._loop.remove_writer(self._link)
        if self._flushed is not None and not self._flushed.done():
            self._flushed.set_result(None)

    async def flush(self, seconds_max: float) -> None:
        """Waits until the kernel has everything, or until the time is up."""
        if self._unsent:
            self._flushed = self._loop.create_future()
            await asyncio.wait([self._flushed], timeout=seconds_max)

    def close(self) -> None:
        self._loop.remove_reader(self._link)
        if self._unsent:
            self._loop.remove_writer(self._link)
            self._unsent.clear()
        self._link.close()


async def bind(address: Address, setting: str, wanted: QuicSocket) -> socket.socket:
    """Opens a UDP socket. If a name has several addresses, only one is used, IPv4 first."""
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
