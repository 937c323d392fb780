"""The internals of aioquic that we use or override are those that our code was written for.

A failure here after an upgrade names what has changed: read the new version, adapt what overrides it, and only then
change what this test expects.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

import aioquic
from aioquic._crypto import AEAD, HeaderProtection
from aioquic.quic.connection import QuicConnection
from aioquic.quic.crypto import CryptoContext, CryptoPair
from aioquic.quic.packet_builder import QuicPacketBuilder, QuicSentPacket
from aioquic.quic.recovery import QuicPacketNumberWindow, QuicPacketRecovery
from aioquic.quic.stream import QuicStreamReceiver, QuicStreamSender

from whippet import transports
from whippet.transports import (
    quic_configuration,
    quic_engine,
    quic_pacing,
    quic_packets,
    quic_probing,
    quic_receiving,
    quic_recovery,
    quic_sending,
    quic_windows,
)

OURS = (
    "connections.py",
    "http3.py",
    "http3_exchange.py",
    "quic.py",
    "quic_configuration.py",
    "quic_connection.py",
    "quic_engine.py",
    "quic_packets.py",
    "quic_pacing.py",
    "quic_probing.py",
    "quic_receiving.py",
    "quic_recovery.py",
    "quic_requests.py",
    "quic_sending.py",
    "quic_windows.py",
)
MODULES = (
    quic_configuration,
    quic_engine,
    quic_packets,
    quic_pacing,
    quic_probing,
    quic_receiving,
    quic_recovery,
    quic_sending,
    quic_windows,
)
VERSION = "1.7.2"
PRIVATE_NAMES_MAX = 104
"""It may only decrease. A third are of the short paths for the usual packets: without their own view of keys, streams,
acknowledgements and recovery, they would save nothing."""
OVERRIDDEN = {
    "Context._server_handle_hello": "ce53cc7baafe",
    "Context.handle_message": "6a388255ca3f",
    "QuicCongestionControl.on_packet_acked": "ea19757c677d",
    "QuicConnection.__init__": "81aea715e344",
    "QuicConnection._confirm_handshake": "ffec907008d1",
    "QuicConnection._initialize": "6a41681e541c",
    "QuicConnection._parse_transport_parameters": "0da95a03bd5b",
    "QuicConnection._replenish_connection_ids": "73b127efb89c",
    "QuicConnection._write_connection_limits": "02c42c5455ae",
    "QuicConnection._write_stream_limits": "398d4a898f7c",
    "QuicConnection.datagrams_to_send": "f4eb22c8add2",
    "QuicConnection.get_timer": "07184a05f894",
    "QuicConnection.next_event": "1c682ae04b38",
    "QuicConnection.send_stream_data": "d10cbdd766b5",
    "QuicPacketPacer.update_rate": "ec763995d360",
    "QuicPacketRecovery._detect_loss": "56e5a246bb22",
    "QuicPacketRecovery.on_ack_received": "1a7c69347908",
    "RenoCongestionControl.on_packet_acked": "91f90091e236",
}
REPEATED: dict[Any, str] = {
    AEAD.decrypt: "3cb5f698b2ee",
    AEAD.encrypt: "dcd48e4cec21",
    HeaderProtection.apply: "dfbedf5f0cb7",
    HeaderProtection.remove: "86c5aacd3c9c",
    CryptoContext.decrypt_packet: "fe94c52f762d",
    CryptoContext.encrypt_packet: "fe4c0f9b61d1",
    CryptoPair.decrypt_packet: "2d2c3a3bf129",
    CryptoPair.encrypt_packet: "f244294823e4",
    QuicConnection.receive_datagram: "3c7f29826050",
    QuicConnection._payload_received: "612b67759a96",
    QuicConnection._handle_ack_frame: "a9cf2707aa0f",
    QuicConnection._handle_stream_frame: "8c79348a854e",
    QuicConnection._get_or_create_stream: "aee09c84cd0d",
    QuicConnection._flush_builder: "ac4bd66d7c38",
    QuicConnection._write_ack_frame: "dc0bde63adda",
    QuicConnection._write_application: "c37bf64378f7",
    QuicConnection._write_stream_frame: "9bc0be962394",
    QuicPacketBuilder._end_packet: "585948d03825",
    QuicPacketBuilder.start_frame: "53af20167bc2",
    QuicPacketNumberWindow: "3dd3a30b9125",
    QuicPacketRecovery.on_packet_sent: "a83baa6e0570",
    QuicSentPacket: "cf8cb41c7ff0",
    QuicStreamReceiver: "78596a9b1406",
    QuicStreamSender: "f14fb859f32d",
}
"""Functions of aioquic whose work the short paths do themselves for the usual packet. If one of them changes, the short
paths may have to change, too."""


def sources() -> dict[str, ast.Module]:
    folder = Path(transports.__path__[0])
    return {name: ast.parse((folder / name).read_text()) for name in OURS}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(trees: dict[str, ast.Module]) -> set[str]:
    """Private names that our own classes define: methods, slots and attributes that are assigned to `self`."""
    found = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                found.add(node.attr)
    return found


def aioquic_text() -> str:
    return "\n".join(path.read_text() for path in sorted(Path(aioquic.__path__[0]).rglob("*.py")))


def used_names() -> set[str]:
    """Private names of aioquic that our modules use."""
    trees, text = sources(), aioquic_text()
    used = {node.attr for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    own = own_names(trees)
    return {name for name in used if private(name) and (name not in own or re.search(rf"\.{name}\b", text))}


def overridden() -> dict[str, str]:
    """The methods of aioquic that our classes replace, each with a digest of its source."""
    found = {}
    for module in MODULES:
        for ours in vars(module).values():
            if not inspect.isclass(ours) or ours.__module__ != module.__name__:
                continue
            for base in ours.__mro__[1:]:
                if not base.__module__.startswith("aioquic"):
                    continue
                for name in vars(ours).keys() & vars(base).keys():
                    method: Any = vars(base)[name]
                    if inspect.isfunction(method):
                        found[f"{base.__name__}.{name}"] = digest(method)
    return found


def digest(code: Any) -> str:
    return hashlib.sha256(inspect.getsource(code).encode()).hexdigest()[:12]


def test_the_version_is_the_one_that_our_code_was_written_for() -> None:
    assert aioquic.__version__ == VERSION


def test_every_overridden_method_is_unchanged_in_aioquic() -> None:
    found = overridden()
    changed = sorted(name for name in found.keys() | OVERRIDDEN.keys() if found.get(name) != OVERRIDDEN.get(name))
    assert not changed, f"aioquic {aioquic.__version__} has changed, or we override otherwise: {', '.join(changed)}"


def test_what_the_short_paths_repeat_is_unchanged_in_aioquic() -> None:
    changed = [code.__qualname__ for code, expected in REPEATED.items() if digest(code) != expected]
    assert not changed, f"aioquic {aioquic.__version__} has changed: {', '.join(changed)}"


def test_every_private_name_in_use_exists_and_their_number_does_not_grow() -> None:
    text = aioquic_text()
    used = used_names()
    gone = sorted(name for name in used if not re.search(rf"(\.|def ){name}\b", text))
    assert not gone, f"aioquic {aioquic.__version__} has no {', '.join(gone)}"
    assert len(used) <= PRIVATE_NAMES_MAX, sorted(used)
