"""Sets a new password for the root user in the data folder of a stopped server.

Only root may change root, so this is the remedy for the owner of the machine when the password is lost, or when root
was deactivated. It blocks, so only the command line uses it.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from whippet.app.access.passwords import Passwords
from whippet.app.access.users import ROOT, UserDocument, check_password, encoded, with_sessions_ended
from whippet.app.model.identity import UserStatus
from whippet.storage import sealed_documents
from whippet.storage.data_folder import locked_offline, read_identity
from whippet.storage.document_checksums import with_checksum
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.errors import CatalogueError
from whippet.storage.files import Files, read_all, write_beside
from whippet.storage.layout import FORMAT_FILE, USERS_FOLDER
from whippet.storage.options import StoreOptions
from whippet.storage.survey import SealsOf


def reset(options: StoreOptions, password: str, *, end_tokens: bool) -> str:
    """Returns the name of the root user, who is active afterwards and has no sessions. `end_tokens` also ends the
    personal access tokens, which otherwise end only if the user was inactive."""
    check_password(password)
    files = Files()
    with locked_offline(options, files) as layout:
        name = f"{USERS_FOLDER}/{ROOT}.json"
        path = layout.below(name)
        identity = read_identity(files, layout.below(FORMAT_FILE))
        seal = SealsOf(options.keyring, identity.id).documents
        # FORMAT names every key that is in use. A start with a new one adds it, and encrypts what is not.
        encrypts = options.keyring is not None and options.keyring.active_id.hex() in identity.keys
        if not files.exists(path):
            raise CatalogueError(f"{path} is missing: the next start of the server creates a root user")
        try:
            content, _ = sealed_documents.opened(read_all(files, path), name, seal)
            document = msgspec.json.decode(content, type=UserDocument)
        except NOT_UNDERSTOOD as error:
            raise CatalogueError(
                f"{path} cannot be understood ({error}): move it away, and the next start creates a new root user"
            ) from error
        ends_tokens = end_tokens or document.status is not UserStatus.ACTIVE
        changed = msgspec.structs.replace(
            with_sessions_ended(document, tokens=ends_tokens),
            password_hash=asyncio.run(Passwords().hash(password)),
            status=UserStatus.ACTIVE,
        )
        stored = sealed_documents.sealed(encoded(changed), name, seal if encrypts else None)
        _replace(files, path, with_checksum(stored))
    return document.username


def _replace(files: Files, path: str, content: bytes) -> None:
    """Keeps the owner of the file, because the command may run as another user than the server."""
    beside = write_beside(files, path, content)
    before, now = os.stat(path), os.stat(beside)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(beside, before.st_uid, before.st_gid)
    files.rename(beside, path)
    files.sync_folder(os.path.dirname(path))
