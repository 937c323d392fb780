"""Checks the clock, with which messages are stamped: that it is sane, steady, kept right, and how far it is off.

How far it is off is what a time server says (SNTP, RFC 4330). Without an answer within a second, that is not checked.
"""

from __future__ import annotations

import ctypes
import datetime
import socket
import struct
import threading
import time
from collections.abc import Iterator

from whippet.app.diagnosis.finding import Finding, fail, ok, warn

CHECK = "clock"
EARLIEST = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
"""Whippet did not exist before; a machine without a battery starts in 1970 or 2000."""
LATEST = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
STEADY_S = 0.2
"""How long the clock is watched."""
JUMP_S = 0.05
OFFSET_MAX_S = 1.0
ANSWER_S = 1.0
SNTP_PORT = 123
_PACKET_BYTES = 48
_SINCE_1900 = 2_208_988_800
_TIME_ERROR = 5
_UNSYNCHRONISED = 0x0040
_TIMEX_BYTES = 256
_STATUS_AT = 40
"""The field `status` of the structure timex, where a long has 8 bytes."""


def findings(time_server: str | None) -> Iterator[Finding]:
    now = datetime.datetime.now(datetime.UTC)
    if not EARLIEST < now < LATEST:
        yield fail(
            CHECK, f"it is {now:%Y-%m-%d %H:%M}Z, says the clock", "set it: messages are stamped and expire by it"
        )
    jumped = _jump()
    if abs(jumped) > JUMP_S:
        yield warn(
            CHECK,
            f"it moved by {jumped * 1000:+.0f} ms within {STEADY_S} s, other than the monotonic clock",
            "find what sets it: more than one program may do so",
        )
    source = _source()
    if source not in (None, "tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"):
        yield warn(
            CHECK, f"the kernel reads it from {source}, which is slow", "look for `tsc` in the messages of the kernel"
        )
    synchronised = is_synchronised()
    offset = None if time_server is None else asked(time_server)
    if offset is not None and abs(offset) > OFFSET_MAX_S:
        yield warn(CHECK, f"it is {offset:+.1f} s from the time of {time_server}", "run chronyd or systemd-timesyncd")
        return
    how = "kept right by the kernel" if synchronised else "steady"
    about = f"; {offset * 1000:+.0f} ms from the time of {time_server}" if offset is not None else ""
    if synchronised is False and offset is None:
        yield warn(CHECK, "nothing keeps it right, says the kernel", "run chronyd or systemd-timesyncd on the machine")
        return
    yield ok(CHECK, f"{now:%Y-%m-%d %H:%M:%S}Z, {how}{about}")


def _jump() -> float:
    """Returns by how much the clock has moved more than the monotonic one."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(STEADY_S)
    return (time.time() - wall) - (time.monotonic() - steady)


def _source() -> str | None:
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource") as file:
            return file.read().strip()
    except OSError:
        return None


def is_synchronised() -> bool | None:
    """Returns what the kernel knows from a time daemon; None where it cannot be asked. It only reads."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    if ctypes.sizeof(ctypes.c_long) != 8:
        return None
    # `modes` 0 changes nothing.
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = adjtimex(timex)
    if state < 0:
        return None
    (status,) = struct.unpack_from("i", timex, _STATUS_AT)
    return state != _TIME_ERROR and not status & _UNSYNCHRONISED


def asked(server: str, port: int = SNTP_PORT) -> float | None:
    """Returns how many seconds the clock is ahead of a time server; None if it does not answer."""
    host, separator, own_port = server.rpartition(":")
    if separator and own_port.isdecimal() and "]" not in own_port:
        server, port = host.strip("[]"), int(own_port)
    found: list[float] = []
    # A thread, because a name that cannot be resolved takes as long as the resolver likes.
    asking = threading.Thread(target=_ask, args=(server, port, found), daemon=True)
    asking.start()
    asking.join(2 * ANSWER_S)
    return found[0] if found else None


def _ask(server: str, port: int, found: list[float]) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(server, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as link:
            link.settimeout(ANSWER_S)
            link.connect(address)
            request = bytearray(_PACKET_BYTES)
            request[0] = 0x23  # version 4, client
            sent = time.time()
            link.send(request)
            answer = link.recv(512)
            received = time.time()
    except (OSError, UnicodeError):
        # Nobody answers: the offset is not known.
        return
    if len(answer) < _PACKET_BYTES or answer[0] & 7 != 4 or not answer[1]:
        return
    theirs = (_seconds(answer, 32) + _seconds(answer, 40)) / 2
    found.append((sent + received) / 2 - theirs)


def _seconds(answer: bytes, at: int) -> float:
    fixed: int = struct.unpack_from("!Q", answer, at)[0]
    return fixed / 2**32 - _SINCE_1900
