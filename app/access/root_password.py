"""A new password for the root user, set in the data folder of a server that is stopped.

Only root changes root, so this is the way back of whoever owns the machine when the password is lost, or when somebody
has made root inactive. Blocks: for the command line.
"""

from __future__ import annotations

import asyncio
import os

import msgspec

from whippet.app.access.passwords import Passwords
from whippet.app.access.users import ROOT, UserDocument, check_password, encoded, with_sessions_ended
from whippet.app.model.identity import UserStatus
from whippet.storage.data_folder import locked_offline
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.errors import CatalogueError
from whippet.storage.files import Files, read_all, write_beside
from whippet.storage.layout import USERS_FOLDER
from whippet.storage.options import StoreOptions


def reset(options: StoreOptions, password: str, *, end_tokens: bool) -> str:
    """The name of the root user, who is active then and has no sessions. `end_tokens` ends the personal access tokens,
    too, which otherwise end only if the user was inactive."""
    check_password(password)
    files = Files()
    with locked_offline(options, files) as layout:
        path = f"{layout.below(USERS_FOLDER)}/{ROOT}.json"
        if not files.exists(path):
            raise CatalogueError(f"{path} is missing: the next start of the server makes a root user")
        try:
            document = msgspec.json.decode(read_all(files, path), type=UserDocument)
        except NOT_UNDERSTOOD as error:
            raise CatalogueError(
                f"{path} cannot be understood ({error}): move it away, and the next start makes a new root user"
            ) from error
        ends_tokens = end_tokens or document.status is not UserStatus.ACTIVE
        changed = msgspec.structs.replace(
            with_sessions_ended(document, tokens=ends_tokens),
            password_hash=asyncio.run(Passwords().hash(password)),
            status=UserStatus.ACTIVE,
        )
        _put_in_place(files, path, encoded(changed))
    return document.username


def _put_in_place(files: Files, path: str, content: bytes) -> None:
    """With the owner that the file has had: this may be run as another user than the server."""
    beside = write_beside(files, path, content)
    before, now = os.stat(path), os.stat(beside)
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(beside, before.st_uid, before.st_gid)
    files.rename(beside, path)
    files.sync_folder(os.path.dirname(path))
