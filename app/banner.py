"""What a start says on stdout once the gateway is reachable: where, what it keeps and how safely, and how to stop it.

The composition root shows it; scripts and tests may read the addresses from it, a line each. The only secret it shows
is a root password that was made just now.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from whippet.app.config.formats import Address
from whippet.app.version import version
from whippet.storage.options import Durability, StoreOptions

SCHEMES = {"metrics": "http"}

PROMISES = {
    Durability.MEMORY: "acknowledged messages survive a graceful stop; a crash loses what is not yet written",
    Durability.WRITTEN: "acknowledged messages survive a crash of the process; a power failure may lose the latest",
    Durability.SYNCED: "acknowledged messages survive a power failure",
}


def show(
    addresses: Mapping[str, Address],
    options: StoreOptions,
    root: str = "",
    password: str | None = None,
    *,
    has_dashboard: bool = False,
) -> None:
    """`password` is that of a root user made just now; it is said this once and kept only as a hash."""
    sys.stdout.write(text(addresses, options, root, password, has_dashboard=has_dashboard))
    sys.stdout.flush()


def text(
    addresses: Mapping[str, Address],
    options: StoreOptions,
    root: str = "",
    password: str | None = None,
    *,
    has_dashboard: bool = False,
) -> str:
    listening = [(name, f"{SCHEMES.get(name, name)}://{address}") for name, address in addresses.items()]
    pages = [("dashboard", f"{at}/ui") for name, at in listening if name in ("http", "https") and has_dashboard]
    lines = [
        *(listening or [("listening", "nowhere: every transport is disabled")]),
        *pages,
        ("data", os.path.abspath(options.path)),
        ("durability", f"{options.durability.name.lower()}: {PROMISES[options.durability]}"),
        *_sign_in(root, password),
        ("stop", "Ctrl-C or SIGTERM: finishes what is in progress and syncs everything; a second one stops at once"),
    ]
    return f"Whippet {version()}\n" + "".join(f"  {name:<10}  {value}\n" for name, value in lines)


def _sign_in(root: str, password: str | None) -> list[tuple[str, str]]:
    if not root:
        return []
    if password is not None:
        return [("sign in", f"user {root}, password {password} (created now, and shown only this once)")]
    return [("sign in", f"user {root}, with the password of the first start")]
