"""What a start says on stdout once the gateway is reachable: where, what it keeps and how safely, and how to stop it.

The composition root shows it; scripts and tests may read the addresses from it, a line each. It never shows a secret.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from app.config.formats import Address
from app.version import version
from storage.options import Durability, StoreOptions

PROMISES = {
    Durability.MEMORY: "an answered message survives a graceful stop; a crash loses what is not yet written",
    Durability.WRITTEN: "an answered message survives the death of the process; a power cut may lose the latest",
    Durability.SYNCED: "an answered message survives a power cut",
}


def show(addresses: Mapping[str, Address], options: StoreOptions) -> None:
    sys.stdout.write(text(addresses, options))
    sys.stdout.flush()


def text(addresses: Mapping[str, Address], options: StoreOptions) -> str:
    listening = [(name, f"{name}://{address}") for name, address in addresses.items()]
    lines = [
        *(listening or [("listening", "nowhere: every transport is disabled")]),
        ("data", os.path.abspath(options.path)),
        ("durability", f"{options.durability.name.lower()}: {PROMISES[options.durability]}"),
        ("stop", "Ctrl-C or SIGTERM: finishes the requests in hand and syncs everything; a second one stops at once"),
    ]
    return f"Whippet {version()}\n" + "".join(f"  {name:<10}  {value}\n" for name, value in lines)
