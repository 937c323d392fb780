"""A terminal whose keys a command reads one by one. Whatever happens, it is left as it was found."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b": "escape",
}
END = "end"
READ_BYTES = 64


@contextlib.contextmanager
def keys(on_key: Callable[[str], None], on_resize: Callable[[], None]) -> Iterator[None]:
    """Calls back for each key, without an echo of it, and when the terminal gets another size. Signals that end the
    process, and the end of the terminal, are the key `end`: the terminal must be restored first. Without a terminal to
    type at, there are no other keys."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_key, END)
    loop.add_signal_handler(signal.SIGWINCH, on_resize)
    handle = sys.stdin.fileno()
    try:
        with _one_by_one(handle) if sys.stdin.isatty() else contextlib.nullcontext():
            if sys.stdin.isatty():
                loop.add_reader(handle, _read, handle, on_key)
            try:
                yield
            finally:
                loop.remove_reader(handle)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH):
            loop.remove_signal_handler(number)


def _read(handle: int, on_key: Callable[[str], None]) -> None:
    try:
        typed = os.read(handle, READ_BYTES)
    except OSError:
        typed = b""
    if not typed:
        # Nobody is there any more.
        asyncio.get_running_loop().remove_reader(handle)
        on_key(END)
        return
    for key in split(typed):
        on_key(key)


def split(typed: bytes) -> Iterator[str]:
    """Yields the names of keys, or the characters that were typed."""
    while typed:
        sequence = max((each for each in KEYS if typed.startswith(each)), key=len, default=typed[:1])
        yield KEYS.get(sequence) or sequence.decode("latin-1")
        typed = typed[len(sequence) :]


@contextlib.contextmanager
def _one_by_one(handle: int) -> Iterator[None]:
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        changed = termios.tcgetattr(handle)
        # Ctrl-Z would leave the shell on a screen that is not its own.
        changed[6][termios.VSUSP] = b"\x00"
        termios.tcsetattr(handle, termios.TCSANOW, changed)
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
