"""The banner: prints the addresses, the data folder, the durability level, how to sign in, and how to stop, once the
gateway is reachable.

`app/server.py` shows it. Scripts and tests may read the addresses from it, one per line. The only secret in it is a
root password that this start has generated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from whippet.app.access.users import RootPassword
from whippet.app.config.formats import Address
from whippet.app.version import version
from whippet.storage.options import Durability, StoreOptions

SCHEMES = {"metrics": "http"}

PROMISES = {
    Durability.MEMORY: "acknowledged messages survive a graceful stop; a crash loses what is not yet written",
    Durability.WRITTEN: "acknowledged messages survive a crash of the process; a power failure may lose the latest",
    Durability.SYNCED: "acknowledged messages survive a power failure",
}

SIGN_IN = {
    RootPassword.GENERATED: "user {name}, password {password} (generated now, and never shown again)",
    RootPassword.ENVIRONMENT: "user {name}, with the password from IGGY_ROOT_PASSWORD",
    RootPassword.DEFAULT: "user {name}, password iggy (the default, which everybody knows)",
    RootPassword.EARLIER_START: "user {name}; if the password is lost: stop, then `whippet root-password --generate`",
}


def show(
    addresses: Mapping[str, Address],
    options: StoreOptions,
    root: str,
    root_password: RootPassword,
    password: str | None,
    *,
    has_dashboard: bool = False,
    engine: Mapping[str, str] | None = None,
) -> None:
    """Prints the banner on stdout, or on stderr if stdout is closed: the password must not be lost."""
    lines = text(addresses, options, root, root_password, password, has_dashboard=has_dashboard, engine=engine)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.write(lines)
            stream.flush()
        except (AttributeError, OSError, ValueError):
            continue
        return


def text(
    addresses: Mapping[str, Address],
    options: StoreOptions,
    root: str = "iggy",
    root_password: RootPassword = RootPassword.EARLIER_START,
    password: str | None = None,
    *,
    has_dashboard: bool = False,
    engine: Mapping[str, str] | None = None,
) -> str:
    """`engine` has lines that replace those about a store on this machine, or come in addition."""
    own = engine or {}
    signing_in = SIGN_IN[root_password].format(name=root, password=password)
    if root_password is RootPassword.EARLIER_START:
        signing_in = own.get("sign in", signing_in)
    listening = [(name, f"{SCHEMES.get(name, name)}://{address}") for name, address in addresses.items()]
    pages = [("dashboard", f"{at}/ui") for name, at in listening if name in ("http", "https") and has_dashboard]
    lines = [
        *(listening or [("listening", "nowhere: every transport is disabled")]),
        *pages,
        ("data", os.path.abspath(options.path)),
        *(("engine", own[name]) for name in own if name == "engine"),
        ("durability", own.get("durability", f"{options.durability.name.lower()}: {PROMISES[options.durability]}")),
        ("sign in", signing_in),
        ("stop", "Ctrl-C or SIGTERM: finishes what is in progress and syncs everything; a second one stops at once"),
    ]
    return f"Whippet {version()}\n" + "".join(f"  {name:<10}  {value}\n" for name, value in lines)
