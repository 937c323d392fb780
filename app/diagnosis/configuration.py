"""Checks the file, the variables, and who may read the secrets in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from whippet.app.config import Config, ConfigError, Loaded, load
from whippet.app.config.formats import Secret
from whippet.app.config.keys import walk
from whippet.app.config.store import durability, store_options
from whippet.app.diagnosis.finding import Finding, fail, ok, warn
from whippet.app.encryption_keys import keyring
from whippet.storage.errors import StorageError
from whippet.storage.options import Durability

CHECK = "configuration"


def loaded(environ: Mapping[str, str], cwd: str) -> tuple[Loaded | None, list[Finding]]:
    """Returns the configuration, if there is a valid one, and what is to be said about it."""
    try:
        found = load(environ, cwd)
        store_options(found.config)
    except (ConfigError, OSError) as error:
        sentence = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        return None, [fail(CHECK, sentence, "correct it: the server does not start; the other checks need it, too")]
    return found, list(_about(found))


def _about(found: Loaded) -> Iterator[Finding]:
    given = sum(origin != "default" for origin in found.origins.values())
    source = found.file or "no file"
    yield ok(CHECK, f"{source}, {given} of {len(found.origins)} settings are not the default")
    for sentence in found.warnings:
        yield warn(CHECK, sentence, "`whippet config` shows every setting and where it comes from")
    for sentence in found.without_effect:
        yield warn(CHECK, sentence, "remove it, so that nobody relies on it")
    if found.file:
        yield from _readers(found.config, found.file, found.origins)
    try:
        keyring(found.config)
    except (StorageError, OSError) as error:
        sentence = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        yield fail("encryption", sentence, "set the key of the data folder: without it nothing can be read")
    if durability(found.config) is Durability.MEMORY:
        yield warn(
            "durability",
            "messages are acknowledged before they are written, and a crash loses them",
            "set system.partition.messages_required_to_save = 1 unless that is wanted",
        )


def _readers(config: Config, path: str, origins: Mapping[str, str]) -> Iterator[Finding]:
    """Secrets in the file must not be for everybody."""
    secrets = [
        key.name for key in walk(config) if isinstance(key.value, Secret) and key.value and path in origins[key.name]
    ]
    if secrets and stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        yield warn(CHECK, f"other users of this machine can read {path}, and {secrets[0]} in it", f"chmod 600 {path}")
