"""Users: accounts, permissions and passwords, stored as documents.

Every change is on the disk before it is visible. A user's number may be reused after a deletion, the `mark` never is:
everything that outlives a request (sessions, tokens, signed access tokens) contains the mark. It also contains an epoch
from the user's document, which is raised to end all of them in the same write that changes the document.

Every change takes a function that authorizes it, called when it is the change's turn: the caller may have lost rights
while waiting, and the user may have been changed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from whippet.app.access import passwords as hashes
from whippet.app.access.passwords import Passwords
from whippet.app.access.permissions import ALL, Permissions, without_stream, without_topic
from whippet.app.access.throttle import Throttle
from whippet.app.audit.notes import note
from whippet.app.config import ConfigError
from whippet.app.errors import Code, CommandError
from whippet.app.model.catalogue import Directory
from whippet.app.model.identity import Login, UserStatus
from whippet.storage.documents import NOT_UNDERSTOOD
from whippet.storage.engine import Engine
from whippet.storage.errors import CatalogueError

_log = logging.getLogger(__name__)

ROOT = 0
DEFAULT_NAME = DEFAULT_PASSWORD = "iggy"
NAME_BYTES = range(3, 51)
PASSWORD_BYTES = range(3, 101)
USERS_MAX = 2**32 - 1
"""Numbers of users are u32, and the last one means nobody."""


class UserDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`users/<id>.json`. `created_at` in us since 1970."""

    id: int
    mark: str
    """Random: no other user ever has it, whatever the number."""
    username: str
    created_at: int
    status: UserStatus
    password_hash: str
    permissions: Permissions | None
    session_epoch: int = 0
    """Sessions and access tokens with an older epoch have ended."""
    token_epoch: int = 0
    """Personal access tokens with an older epoch are void."""


class RootPassword(enum.Enum):
    """The source of the root user's password."""

    EARLIER_START = enum.auto()
    ENVIRONMENT = enum.auto()
    DEFAULT = enum.auto()
    GENERATED = enum.auto()


Authorize = Callable[["User"], None]
"""Raises CommandError if the user must not be changed in this way, or not by this caller."""


def _anybody(user: User) -> None:
    """Allows changes by the server itself."""


class User:
    """A user account. There is one object per user, until the deletion."""

    __slots__ = ("document",)

    def __init__(self, document: UserDocument) -> None:
        self.document = document

    @property
    def id(self) -> int:
        return self.document.id

    @property
    def mark(self) -> str:
        return self.document.mark

    @property
    def login(self) -> Login:
        """The login for a session or an access token that begins now."""
        return Login(self.document.mark, self.document.session_epoch)

    @property
    def username(self) -> str:
        return self.document.username

    name = username
    """The name in the directory."""

    @property
    def created_at(self) -> int:
        return self.document.created_at

    @property
    def status(self) -> UserStatus:
        return self.document.status

    @property
    def permissions(self) -> Permissions | None:
        return self.document.permissions

    @property
    def is_active(self) -> bool:
        return self.document.status == UserStatus.ACTIVE

    def __repr__(self) -> str:
        return f"<user {self.id} {self.username!r}>"


class Users:
    """See the module. Created by `open`, ended by `close`."""

    def __init__(
        self,
        store: Engine,
        found: Directory[User],
        clock: Callable[[], int],
        passwords: Passwords,
        throttle: Throttle,
        users_max: int,
    ) -> None:
        self._store = store
        self._directory = found
        self._by_mark = {user.mark: user for user in found}
        self.changes = 0
        """How often any user was changed: a decision from before a wait is still valid if this is the same after it."""
        self._clock = clock
        self._passwords = passwords
        self._throttle = throttle
        self._users_max = users_max
        self._changing = asyncio.Lock()
        """Names are looked up and taken in one step. Never held while a password is hashed."""
        self.root_password = RootPassword.EARLIER_START
        self.generated_root_password: str | None = None
        """Generated at this start, for the caller to show once, after `save_root`."""

    # -------------------------------------------------------------------------------------------------------- opening

    @classmethod
    async def open(
        cls,
        store: Engine,
        environment: Mapping[str, str],
        default_root: bool,
        clock: Callable[[], int],
        *,
        passwords: Passwords | None = None,
        throttle: Throttle | None = None,
        users_max: int = USERS_MAX,
    ) -> Users:
        """Reads the users of the store. Creates the root user if there is none, but only in memory: `save_root` stores
        it. Raises ConfigError if the environment does not define root completely."""
        found, unreadable = _read(store.users)
        if ROOT in unreadable:
            raise CatalogueError(
                f"the root user cannot be read from users/{ROOT}.json: repair the file, or move it away so that the "
                "next start creates a new root user"
            )
        passwords = passwords or Passwords()
        users = cls(store, Directory(found, unreadable), clock, passwords, throttle or Throttle(), users_max)
        try:
            if ROOT not in store.users:
                await users._create_root(environment, default_root)
            elif default_root or environment.get("IGGY_ROOT_PASSWORD") is not None:
                _log.info(
                    "the data folder has a root user: IGGY_ROOT_USERNAME, IGGY_ROOT_PASSWORD and "
                    "--with-default-root-credentials have no effect; 'whippet root-password' sets a new password"
                )
        except BaseException:
            passwords.close()
            raise
        return users

    async def _create_root(self, environment: Mapping[str, str], default_root: bool) -> None:
        # The configuration masks secrets; str() reveals them.
        given = {name: str(value) for name, value in environment.items()}
        name, password = given.get("IGGY_ROOT_USERNAME"), given.get("IGGY_ROOT_PASSWORD")
        if (name is None) != (password is None):
            given_half, missing = ("USERNAME", "PASSWORD") if password is None else ("PASSWORD", "USERNAME")
            raise ConfigError(f"IGGY_ROOT_{given_half} is set and IGGY_ROOT_{missing} is not: set both, or neither")
        if name is not None and password is not None:
            _refuse_length("IGGY_ROOT_USERNAME", name, NAME_BYTES)
            _refuse_length("IGGY_ROOT_PASSWORD", password, PASSWORD_BYTES)
            self.root_password = RootPassword.ENVIRONMENT
        elif default_root:
            name, password = DEFAULT_NAME, DEFAULT_PASSWORD
            self.root_password = RootPassword.DEFAULT
            _log.warning("the root user %r has the default password, which everybody knows", name)
        else:
            name, password = DEFAULT_NAME, random_password()
            self.root_password = RootPassword.GENERATED
            self.generated_root_password = password
        if self.find(name) is not None:
            raise ConfigError(
                f"the root user cannot be created: another user is called {name!r}; "
                "set IGGY_ROOT_USERNAME and IGGY_ROOT_PASSWORD"
            )
        self._put(self._document(ROOT, name, UserStatus.ACTIVE, ALL, await self._passwords.hash(password)))

    async def save_root(self) -> None:
        """Stores a root user that this start has created. Call it last, right before the password is shown: a start
        that fails earlier must not leave a root user whose password nobody has seen."""
        if self.root_password is RootPassword.EARLIER_START:
            return
        async with self._changing:
            await self._store.write_user(ROOT, encoded(self.root.document))
        _log.info("created the root user %r", self.root.username)

    def close(self) -> None:
        self._passwords.close()

    # -------------------------------------------------------------------------------------------------------- look-up

    @property
    def root(self) -> User:
        return self.get(ROOT)

    @property
    def root_sign_in(self) -> tuple[str, RootPassword, str | None]:
        """Returns root's name, where the password comes from, and the password if this start has generated it."""
        return self.root.username, self.root_password, self.generated_root_password

    def find(self, identifier: int | str) -> User | None:
        return self._directory.find(identifier)

    def get(self, identifier: int | str) -> User:
        """Raises CommandError if there is no such user."""
        user = self._directory.find(identifier)
        if user is None:
            raise CommandError(Code.RESOURCE_NOT_FOUND, "there is no such user", about=(identifier,))
        return user

    def active(self, user_id: int | None) -> User | None:
        """Returns None for an unknown or inactive user."""
        user = None if user_id is None else self._directory.find(user_id)
        return user if user is not None and user.is_active else None

    def by_login(self, login: Login | None) -> User | None:
        """Returns the user that a session or an access token acts as; None once that has ended, for whatever reason."""
        if login is None:
            return None
        user = self._by_mark.get(login.mark)
        if user is None or not user.is_active or user.document.session_epoch != login.epoch:
            return None
        return user

    def by_mark(self, mark: str) -> User | None:
        return self._by_mark.get(mark)

    def is_same(self, user: User, identifier: int | str) -> bool:
        return self._directory.find(identifier) is user

    def is_current(self, user: User) -> bool:
        """Returns True unless the user was deleted."""
        return self._directory.find(user.id) is user

    def __iter__(self) -> Iterator[User]:
        """In the order of the ids."""
        return iter(self._directory)

    def __len__(self) -> int:
        return len(self._directory)

    # -------------------------------------------------------------------------------------------------------- login

    async def log_in(self, username: str, password: str, peer: str) -> User:
        """Returns the user with this name and password; `peer` is the address of the connection.

        A user who does not exist causes the same work and the same response as a wrong password. That a user is
        inactive is revealed only to a client that knows the password.
        """
        check_name(username)
        check_password(password)
        user = self._directory.find(username)
        if not await self._is_password_of(user, username, password, peer) or user is None:
            raise CommandError(Code.INVALID_CREDENTIALS)
        if not user.is_active:
            raise CommandError(Code.USER_INACTIVE, repr(username))
        return user

    async def _is_password_of(self, user: User | None, username: str, password: str, peer: str) -> bool:
        async def check() -> bool:
            stored = None if user is None else user.document.password_hash
            matches = await self._passwords.verify(stored, password)
            # Meanwhile the user may have been deleted or given another password.
            return matches and user is not None and self.is_current(user) and user.document.password_hash == stored

        return await self._throttle.attempt(peer, username, check)

    # -------------------------------------------------------------------------------------------------------- changes

    async def create(
        self,
        username: str,
        password: str,
        status: UserStatus,
        permissions: Permissions | None,
        authorize: Callable[[], None] = lambda: None,
    ) -> User:
        check_name(username)
        check_password(password)
        authorize()
        self._refuse_new(username)
        password_hash = await self._passwords.hash(password)
        async with self._changing:
            authorize()
            self._refuse_new(username)
            return await self._add(
                self._document(self._directory.next_id(), username, status, permissions, password_hash),
            )

    async def update(
        self,
        identifier: int | str,
        username: str | None,
        status: UserStatus | None,
        authorize: Authorize = _anybody,
    ) -> User:
        """None keeps the present value. A user who becomes inactive loses all sessions and tokens."""
        if username is not None:
            check_name(username)
        async with self._changing:
            user = self.get(identifier)
            authorize(user)
            old_name = user.username
            name = old_name if username is None else username
            if name != old_name:
                self._refuse_taken(name)
            changed = msgspec.structs.replace(user.document, username=name, status=status or user.status)
            if user.is_active and changed.status is not UserStatus.ACTIVE:
                changed = with_sessions_ended(changed, tokens=True)
            await self._change(user, changed)
            self._directory.rename(user, old_name)
            return user

    async def change_permissions(
        self, identifier: int | str, permissions: Permissions | None, authorize: Authorize = _anybody
    ) -> None:
        async with self._changing:
            user = self.get(identifier)
            if user.id == ROOT:
                raise CommandError(Code.CANNOT_CHANGE_PERMISSIONS, "it is the root user", about=(user.id,))
            authorize(user)
            await self._change(user, msgspec.structs.replace(user.document, permissions=permissions))

    async def change_password(
        self,
        identifier: int | str,
        current: str,
        new: str,
        peer: str,
        *,
        end_tokens: bool = False,
        authorize: Authorize = _anybody,
    ) -> User:
        """The caller has to know the current password; guessing is throttled as at a login. The user's sessions end;
        `end_tokens` also ends the personal access tokens."""
        user = self.get(identifier)
        authorize(user)
        check_password(current)
        check_password(new)
        if not await self._is_password_of(user, user.username, current, peer):
            raise CommandError(Code.INVALID_CREDENTIALS, "the current password is wrong")
        checked = user.document.password_hash
        password_hash = await self._passwords.hash(new)
        async with self._changing:
            if not self.is_current(user):
                raise CommandError(Code.RESOURCE_NOT_FOUND, "there is no such user", about=(identifier,))
            authorize(user)
            if user.document.password_hash != checked:
                raise CommandError(Code.INVALID_CREDENTIALS, "the password was changed in the meantime")
            changed = msgspec.structs.replace(user.document, password_hash=password_hash)
            await self._change(user, with_sessions_ended(changed, tokens=end_tokens))
        return user

    async def end_sessions(self, identifier: int | str, *, end_tokens: bool, authorize: Authorize = _anybody) -> User:
        """Ends all sessions, access tokens and refreshes of a user; with `end_tokens` also the personal access
        tokens."""
        async with self._changing:
            user = self.get(identifier)
            authorize(user)
            await self._change(user, with_sessions_ended(user.document, tokens=end_tokens))
            return user

    async def delete(self, identifier: int | str, authorize: Authorize = _anybody) -> User:
        async with self._changing:
            user = self.get(identifier)
            if user.id == ROOT:
                raise CommandError(Code.CANNOT_DELETE_USER, "it is the root user", about=(user.id,))
            authorize(user)
            await self._store.remove_user(user.id)
            self._directory.remove(user)
            del self._by_mark[user.mark]
            self.changes += 1
            note("user", user.username, _noted(user.document), None)
            return user

    async def forget_stream(self, stream_id: int) -> None:
        """Removes all rights on a stream, whose number may be reused. Call this before the stream is removed."""
        await self._forget(lambda permissions: without_stream(permissions, stream_id))

    async def forget_topic(self, stream_id: int, topic_id: int) -> None:
        """The same for a topic."""
        await self._forget(lambda permissions: without_topic(permissions, stream_id, topic_id))

    async def _forget(self, without: Callable[[Permissions], Permissions]) -> None:
        async with self._changing:
            for user in self._directory:
                if user.permissions is not None and (left := without(user.permissions)) is not user.permissions:
                    await self._change(user, msgspec.structs.replace(user.document, permissions=left))

    # ------------------------------------------------------------------------------------------------------- internals

    def _document(
        self, user_id: int, username: str, status: UserStatus, permissions: Permissions | None, password_hash: str
    ) -> UserDocument:
        return UserDocument(
            id=user_id,
            mark=secrets.token_hex(16),
            username=username,
            created_at=self._clock(),
            status=status,
            password_hash=password_hash,
            permissions=permissions,
        )

    async def _add(self, document: UserDocument) -> User:
        await self._store.write_user(document.id, encoded(document))
        note("user", document.username, None, _noted(document))
        return self._put(document)

    def _put(self, document: UserDocument) -> User:
        user = User(document)
        self._directory.add(user)
        self._by_mark[user.mark] = user
        self.changes += 1
        return user

    async def _change(self, user: User, document: UserDocument) -> None:
        if document != user.document:
            await self._store.write_user(document.id, encoded(document))
            note("user", user.username, _noted(user.document), _noted(document))
            user.document = document
            self.changes += 1

    def _refuse_new(self, username: str) -> None:
        self._refuse_taken(username)
        if len(self._directory) >= self._users_max or self._directory.next_id() >= USERS_MAX:
            raise CommandError(Code.USERS_LIMIT_REACHED)

    def _refuse_taken(self, username: str) -> None:
        if self._directory.find(username) is not None:
            raise CommandError(Code.USER_ALREADY_EXISTS, repr(username))


def check_name(username: str) -> None:
    if len(username.encode()) not in NAME_BYTES:
        raise CommandError(Code.INVALID_USERNAME)


def check_password(password: str) -> None:
    if len(password.encode()) not in PASSWORD_BYTES:
        raise CommandError(Code.INVALID_PASSWORD)


def with_sessions_ended(document: UserDocument, *, tokens: bool) -> UserDocument:
    """The document with all sessions ended; with `tokens` also the personal access tokens."""
    return msgspec.structs.replace(
        document,
        session_epoch=document.session_epoch + 1,
        token_epoch=document.token_epoch + 1 if tokens else document.token_epoch,
    )


def _noted(document: UserDocument) -> dict[str, Any]:
    """Returns what the audit log has of a user. That a password changed shows in the session epoch."""
    fields: dict[str, Any] = msgspec.to_builtins(document, str_keys=True)
    return {key: value for key, value in fields.items() if key not in ("mark", "password_hash")}


def _refuse_length(variable: str, value: str, allowed: range) -> None:
    """Does not repeat the value: it may be a password."""
    if len(value.encode()) not in allowed:
        raise ConfigError(f"{variable} must have {allowed[0]} to {allowed[-1]} bytes, and has {len(value.encode())}")


def random_password() -> str:
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(20 + secrets.randbelow(20)))


def encoded(document: UserDocument) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _read(documents: Mapping[int, bytes]) -> tuple[list[User], set[int]]:
    """Returns the users, and the numbers of unusable documents, which are left as they are and not reused."""
    users: dict[str, User] = {}
    unreadable: set[int] = set()
    for user_id, content in sorted(documents.items()):
        try:
            document = msgspec.structs.replace(msgspec.json.decode(content, type=UserDocument), id=user_id)
        except NOT_UNDERSTOOD as error:
            _log.error(
                "users/%d.json cannot be understood and is left as it is; this user cannot log in: %s", user_id, error
            )
            unreadable.add(user_id)
            continue
        if user_id == ROOT:
            document = msgspec.structs.replace(document, permissions=ALL)
        if document.username in users:
            _log.error(
                "users/%d.json: the name belongs to %r already; this user cannot log in",
                user_id,
                users[document.username],
            )
            unreadable.add(user_id)
            continue
        if not hashes.intact(document.password_hash):
            _log.error("users/%d.json: the password hash is damaged; this user cannot log in", user_id)
        users[document.username] = User(document)
    return list(users.values()), unreadable
