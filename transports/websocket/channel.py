"""The channel for browsers on one connection: commands arrive, responses and subscribed messages leave.

1. A command is an object with an `id`, which its response repeats, a `cmd`, and its members;
   transports/websocket/commands.py takes them from HTTP. The response has `ok`, or `error` with the body of an HTTP
   error.
2. Commands are executed in order, each after the response to the one before. A poll that waits leaves this order, so
   that nothing waits for it.
3. The user is the one of the token that was given when the connection was opened, by `sign_in`, or by a login. The
   token is checked for each command and, while there are subscriptions, every second. When it ends, the subscriptions
   end, and the client may sign in again on the same connection.
4. A subscription has a number, which all its messages carry as `sub`. It sends no more than it has credit for, and
   reports what it had to skip. Its last message has `end`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from whippet.app.commands import audited, groups
from whippet.app.commands.registry import execute
from whippet.app.commands.requests import Request
from whippet.app.errors import Code, CommandError
from whippet.app.model.sessions import Session
from whippet.transports.http.errors import Refused, bug_response, command_error_response, refusal_response
from whippet.transports.http.forms import request_bodies
from whippet.transports.http.forms.responses import HttpResponse
from whippet.transports.http.serving import authentication
from whippet.transports.websocket.commands import NULL, Command, Commands, Members, run_command
from whippet.transports.websocket.subscribe_command import open_subscription
from whippet.transports.websocket.subscription import Granted, Subscription
from whippet.transports.websocket.text_connection import UNAUTHORIZED, Gone, TextConnection

if TYPE_CHECKING:
    from whippet.app.access.access_tokens import Caller
    from whippet.transports.http.operation import Call

_log = logging.getLogger(__name__)

ID_BYTES_MAX = 128
WAITING_POLLS_MAX = 16
"""Waiting polls of one connection; one more waits in the order of the commands."""
CHECKED_TOGETHER = 16
"""After checking this many subscriptions, other callbacks run."""
GIVES_TOKEN = frozenset({"log_in", "log_in_with_personal_access_token"})
_decoder = msgspec.json.Decoder(Members)
_text_decoder = msgspec.json.Decoder(str)
# One decoder for all: on Python 3.14 msgspec 0.22 loses some memory for every union that it is given.
_identity_decoder = msgspec.json.Decoder(int | str)
_encode = msgspec.json.Encoder().encode


class SignIn(msgspec.Struct, frozen=True):
    token: str

    def __repr__(self) -> str:
        return "SignIn(...)"


class Unsubscribe(msgspec.Struct, frozen=True):
    sub: int


class SignedIn(msgspec.Struct, frozen=True):
    user_id: int
    username: str


class Channel:
    def __init__(self, link: TextConnection, commands: Commands, subscriptions_max: int) -> None:
        self.link = link
        self.api = commands.api
        self._commands = commands
        self._subscriptions_max = subscriptions_max
        self._authorization: bytes | None = None
        self.caller: Caller | None = None
        self._subscriptions: dict[int, Subscription] = {}
        self._last_number = 0
        self._call: Call | None = None
        """The command whose response has to be sent."""
        self._polls: set[asyncio.Task[None]] = set()
        self.session: Session = link.session
        self.api.gateway.sessions.add(self.session)

    @property
    def has_subscriptions(self) -> bool:
        return bool(self._subscriptions)

    # ------------------------------------------------------------------------------------------------- commands

    async def handle(self, text: bytes) -> None:
        identity = NULL
        try:
            members = _members(text)
            identity = _identity(members)
            name = _text_of(members, "cmd")
            result = await self._execute(identity, name, members)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 -- reported to the client, and logged if it is unexpected
            result = self._failure(error)
            await self.link.send(b'{"id":', identity, b',"error":', result, b"}")
            return
        else:
            if result is not None:
                await self.link.send(b'{"id":', identity, b',"ok":', result, b"}")
        finally:
            call, self._call = self._call, None
            if call is not None:
                call.close()

    async def _execute(self, identity: bytes, name: str, members: Members) -> bytes | None:
        """Returns None if the response follows later."""
        match name:
            case "sign_in":
                token = _decoded(members, SignIn).token
                return _encode(await self._sign_in(b"Bearer " + token.encode()))
            case "subscribe":
                await self._authenticate()
                return await self._subscribe(members)
            case "unsubscribe":
                subscription = self._subscription(_decoded(members, Unsubscribe).sub)
                subscription.end(None, "")
                return _encode(subscription.resume_point())
            case "grant":
                granted = _decoded(members, Granted)
                self._subscription(granted.sub).grant(granted.credit)
                return NULL
            case "ack":
                await self._authenticate()
                await self._subscription(_number_of(members)).ack(members)
                return NULL
        command = self._commands.find(name)
        is_public = command.operation.public
        call = self._commands.call(command, self._login_session() if is_public else self.session, self.link)
        if not is_public:
            call.caller = await self._authenticate()
            call.authorization = self._authorization
        await command.fill(call, members)
        if getattr(call.query, "wait", "") and len(self._polls) < WAITING_POLLS_MAX:
            self._start_poll(identity, command, call)
            return None
        self._call = call
        return await self._run(command, call)

    async def ask(self, request: Request) -> Any:
        return await execute(self.api.gateway, self.session, request)

    async def _run(self, command: Command, call: Call) -> bytes:
        result = await run_command(command, call)
        if command.operation.name in GIVES_TOKEN:
            token = msgspec.json.decode(result)["access_token"]["token"]
            await self._sign_in(b"Bearer " + token.encode())
        elif command.operation.name == "log_out":
            self._sign_out("unauthenticated", "The user has logged out")
        return result

    def _start_poll(self, identity: bytes, command: Command, call: Call) -> None:
        task = asyncio.get_running_loop().create_task(self._run_poll(identity, command, call))
        self._polls.add(task)
        task.add_done_callback(self._on_poll_done)

    def _on_poll_done(self, task: asyncio.Task[None]) -> None:
        self._polls.discard(task)
        self.link.poll_answered()

    @property
    def is_polling(self) -> bool:
        """A poll that waits for messages is not answered yet."""
        return bool(self._polls)

    def abandon_polls(self) -> None:
        polls, self._polls = self._polls, set()
        for task in polls:
            task.cancel()

    async def _run_poll(self, identity: bytes, command: Command, call: Call) -> None:
        with contextlib.closing(call), contextlib.suppress(Gone):
            try:
                result, member = await run_command(command, call), b',"ok":'
            except Exception as error:  # noqa: BLE001 -- as in `handle`
                result, member = self._failure(error), b',"error":'
            await self.link.send(b'{"id":', identity, member, result, b"}")

    def _failure(self, error: Exception) -> bytes:
        return failure(error, self.session.address)

    # ------------------------------------------------------------------------------------------------- the user

    def _login_session(self) -> Session:
        """Returns a session for a login, which sets its user. The channel itself acts for the user of the token that
        the login returns."""
        own = self.session
        return Session(own.transport, own.address, self.api.gateway.clock(), _ignore_end, own.reached_at)

    async def sign_in(self, authorization: bytes) -> None:
        """Signs in with the token that was given when the connection was opened; closes the connection if that
        fails."""
        try:
            await self._sign_in(authorization)
        except CommandError as refused:
            await self.link.send(b'{"id":null,"error":', command_error_response(refused).body, b"}")
            self.link.end_with(UNAUTHORIZED, str(refused))

    async def _sign_in(self, authorization: bytes) -> SignedIn:
        caller = await authentication.authenticate(self.api, authorization, self.session)
        if self.caller is None or self.caller.user is not caller.user:
            self._sign_out("unauthenticated", "Another user has signed in")
        self._authorization, self.caller = authorization, caller
        self.session.login = caller.user.login
        audited.record(self.api.gateway, self.session, "sign_in", may_repeat=True)
        return SignedIn(caller.user.id, caller.user.username)

    async def _authenticate(self) -> Caller:
        """Returns the caller, whose token may have ended since the last command."""
        if self._authorization is None:
            raise CommandError(Code.UNAUTHENTICATED, "sign in first: use `sign_in` with a token, or `log_in`")
        try:
            caller = await authentication.authenticate(self.api, self._authorization, self.session)
        except CommandError as refused:
            self._sign_out("unauthenticated", str(refused))
            raise
        if self.caller is None or caller.user is not self.caller.user:
            self._sign_out("unauthenticated", "The token is another user's now")
            raise CommandError(Code.UNAUTHENTICATED)
        # A personal access token stays valid after a new password has ended the sessions.
        self.session.login = caller.user.login
        return caller

    def _sign_out(self, code: str, reason: str) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.end(code, reason)
        groups.leave_all(self.api.gateway, self.session)
        self._authorization = self.caller = self.session.login = None

    # ------------------------------------------------------------------------------------------------- subscriptions

    async def _subscribe(self, members: Members) -> bytes:
        if len(self._subscriptions) >= self._subscriptions_max:
            setting = "websocket.channel.subscriptions"
            sentence = f"A connection may have at most {self._subscriptions_max} subscriptions ({setting})"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, sentence, code="too_many_subscriptions")
        login, places = self.session.login, self.api.subscriptions
        assert login is not None
        places.reserve(login)
        try:
            subscription = await open_subscription(self, self._last_number + 1, members)
        except BaseException:
            places.release(login)
            raise
        if self.link.gone.done():
            places.release(login)
            subscription.on_end()
            raise Gone
        subscription.login = login
        self._last_number = subscription.number
        self._subscriptions[subscription.number] = subscription
        subscription.start()
        return _encode({"sub": subscription.number, **subscription.resume_point()})

    def forget(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.number, None) is not None:
            self.api.subscriptions.release(subscription.login)

    def is_subscribed(self, what: object) -> bool:
        return any(each.what == what for each in self._subscriptions.values())

    def _subscription(self, number: int) -> Subscription:
        found = self._subscriptions.get(number)
        if found is None:
            raise Refused(HTTPStatus.NOT_FOUND, f"Subscription {number} does not exist", "sub")
        return found

    async def check(self) -> None:
        """Ends subscriptions that the user may not keep; called at intervals."""
        try:
            await self._authenticate()
        except CommandError:
            return
        for count, subscription in enumerate(list(self._subscriptions.values()), 1):
            if count % CHECKED_TOGETHER == 0:
                await asyncio.sleep(0)
            if subscription.number not in self._subscriptions:
                continue
            try:
                await subscription.check()
            except CommandError as refused:
                subscription.end(refused.code.name.lower(), str(refused))

    # ------------------------------------------------------------------------------------------------- the end

    def end_subscriptions(self, *, client_receives: bool) -> None:
        """The connection is about to end. If the client still receives, each subscription sends where it stopped."""
        for subscription in list(self._subscriptions.values()):
            subscription.end("stopping" if client_receives else None, "The connection ends")

    def close(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.cancel()
        self.abandon_polls()
        groups.leave_all(self.api.gateway, self.session)
        self.api.gateway.sessions.remove(self.session)


def _ignore_end() -> None:
    """Does nothing: there is no connection to end."""


# ------------------------------------------------------------------------------------------------- decoding commands


def _members(text: bytes) -> Members:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        raise Refused(HTTPStatus.BAD_REQUEST, "A message must be a JSON object with `id` and `cmd`") from None


def _identity(members: Members) -> bytes:
    raw = bytes(members.pop("id", b""))
    if not raw or len(raw) > ID_BYTES_MAX:
        raise Refused(HTTPStatus.BAD_REQUEST, "A command needs an `id`: a number or a short text", "id")
    try:
        return _encode(_identity_decoder.decode(raw))
    except msgspec.MsgspecError:
        raise Refused(HTTPStatus.BAD_REQUEST, "A command needs an `id`: a number or a short text", "id") from None


def _text_of(members: Members, name: str) -> str:
    try:
        return _text_decoder.decode(members.pop(name, b""))
    except msgspec.MsgspecError:
        raise Refused(HTTPStatus.BAD_REQUEST, f"A command needs a text `{name}`", name) from None


def _number_of(members: Members) -> int:
    try:
        return msgspec.json.decode(members.pop("sub", b""), type=int)
    except msgspec.MsgspecError:
        raise Refused(HTTPStatus.BAD_REQUEST, "The command needs a number `sub`", "sub") from None


def _decoded(members: Members, into: Any) -> Any:
    try:
        return msgspec.json.decode(_encode(members), type=into)
    except msgspec.ValidationError as error:
        raise request_bodies.wrong_type(error, into) from None


def failure(error: Exception, address: str) -> bytes:
    """Returns the value of the member `error`."""
    found: HttpResponse
    if isinstance(error, Refused):
        found = refusal_response(error)
    elif isinstance(error, CommandError):
        found = command_error_response(error)
    else:
        _log.error("%s: a command failed with an unexpected error", address, exc_info=error)
        found = bug_response()
    return found.body
