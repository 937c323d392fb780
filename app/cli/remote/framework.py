"""Turns a function into a command that works on a server: connects, runs it, prints its result, reports its failure.

    async def get(on: Online, stream: Stream) -> StreamRow: ...      # connects first
    async def login(on: Located) -> Done: ...                        # knows the server, and connects by itself
    def use(on: Local, name: Name) -> Done: ...                      # works on the contexts only

Such a function returns rows. `as_command` adds the options that all
of them have. Modules of commands import the client inside their functions or through `Online`: the contexts and the
help do not wait for it.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import click
import msgspec
import typer

from whippet.app.cli import exit_codes
from whippet.app.cli.remote import destination, name_completion, output
from whippet.app.cli.remote.failures import Failure, NotFound, Refused, Unreachable, UsageFailure
from whippet.app.cli.remote.waiting import interruptible

if TYPE_CHECKING:
    from whippet.app.client import Client, Reconnect
    from whippet.app.errors import CommandError

CONNECT_S = 10

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="the server, such as iggy://host:8090 (default: WHIPPET_SERVER)"),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="the context to use, instead of the one in use",
        autocompletion=name_completion.context_names,
    ),
]
Username = Annotated[str | None, typer.Option("--username", help="the user (default: WHIPPET_USERNAME)")]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="a file with the password, `-` for standard input (default: WHIPPET_PASSWORD)",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help="a file with a personal access token (default: WHIPPET_TOKEN)"),
]
Output = Annotated[
    output.Format, typer.Option("--output", help="the form of the result; quiet prints only names or ids")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")]


class Local:
    """The options and the output of a command that contacts no server by itself."""

    def __init__(self, given: destination.Given, form: output.Format, *, yes: bool) -> None:
        self.given = given
        self.form = form
        self._yes = yes

    def confirm(self, question: str) -> None:
        """Asks before something is lost for ever. A script must say --yes."""
        if self._yes:
            return
        if not sys.stdin.isatty():
            raise UsageFailure(f"{question} Repeat the command with --yes if so")
        print(f"{output.printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        with interruptible():
            answer = sys.stdin.readline()
        if answer.strip().lower() not in ("y", "yes"):
            raise Failure("nothing was changed")

    def show(self, result: output.Result) -> None:
        """For commands that print while they run."""
        output.show(result, self.form)

    def note(self, sentence: str) -> None:
        print(f"whippet: {output.printable(sentence)}", file=sys.stderr)


class Located(Local):
    """The same, and which server is meant: for commands that connect by themselves."""


class Online(Located):
    """The same, with a connection that has logged in."""

    client: Client
    found: destination.Found


def kind_of(function: Callable[..., Any]) -> type[Local] | None:
    """Returns what the function wants as its first argument; None for other subcommands."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return KINDS.get(str(first.annotation)) if first is not None else None


KINDS: dict[str, type[Local]] = {"Local": Local, "Located": Located, "Online": Online}


def row_of(function: Callable[..., Any]) -> tuple[type[output.Row] | None, bool]:
    """Returns the type of the rows that a function returns, and whether it returns a list."""
    hint = get_type_hints(function)["return"]
    for part in (hint, *get_args(hint)):
        if inspect.isclass(part) and issubclass(part, output.Row):
            return part, get_origin(hint) is list
    return None, False


def as_command(function: Callable[..., Any]) -> Callable[..., int]:
    """Returns a function for typer, with the parameters of this one and those that all have."""
    kind = kind_of(function)
    assert kind is not None
    hints = get_type_hints(function, include_extras=True)
    _, *own = inspect.signature(function).parameters.values()
    common: dict[str, tuple[Any, Any]] = {"common_output": (Output, output.Format.TABLE), "common_yes": (Yes, False)}
    if issubclass(kind, Located):
        common |= CONNECTION
    parameters = [
        *(each.replace(annotation=hints[each.name]) for each in own),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, (annotation, default) in common.items()
        ),
    ]

    options = {each.name: option for each in parameters if (option := _option_of(each.name, each.annotation))}

    def command(**arguments: Any) -> int:
        for name, option in options.items():
            if arguments.get(name) == "":
                # Such as a variable of a script that is not set: what the option is for must not just be left out.
                return _fail(f"{option} is empty", exit_codes.USAGE)
        form, yes = arguments.pop("common_output"), arguments.pop("common_yes")
        given = destination.Given(**{name.removeprefix("common_"): arguments.pop(name, None) for name in CONNECTION})
        on = kind(given, form, yes=yes)
        return execute(on, function, arguments)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters], return_annotation=int
    )
    command.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": int}
    command.__doc__ = function.__doc__
    return command


def _option_of(parameter: str, annotation: Any) -> str | None:
    """Returns the long name of an option; None for an argument."""
    for meta in get_args(annotation)[1:]:
        if isinstance(meta, typer.models.OptionInfo):
            derived = f"--{parameter.replace('_', '-')}"
            # In an annotation, typer takes the first name for the default.
            names = (meta.default, *(meta.param_decls or ()))
            return next((name for name in names if isinstance(name, str) and name.startswith("--")), derived)
    return None


CONNECTION: dict[str, tuple[Any, Any]] = {
    "common_server": (Server, None),
    "common_context": (ContextName, None),
    "common_username": (Username, None),
    "common_password_file": (PasswordFile, None),
    "common_token_file": (TokenFile, None),
}
"""Under names that no command uses for its own parameters."""


def execute(on: Local, function: Callable[..., Any], arguments: dict[str, Any]) -> int:
    """Runs a command and returns its exit code. Only defects leave this as exceptions."""
    try:
        if isinstance(on, Online):
            result = asyncio.run(_interrupted(_online(on, function, arguments)))
        else:
            result = function(on, **arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(_interrupted(result))
        if not isinstance(result, int):
            output.show(result, on.form, of=row_of(function)[0])
    except Failure as failure:
        return _fail(str(failure), failure.code)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), exit_codes.FAILED)
    except UnicodeEncodeError:
        # It may be a secret: it is not shown.
        return _fail("a name or a text that was given is not UTF-8", exit_codes.USAGE)
    except (click.ClickException, click.Abort, click.exceptions.Exit):
        raise
    except Exception as error:
        from whippet.app.errors import CommandError  # noqa: PLC0415 -- the client is loaded by now, or never

        if not isinstance(error, CommandError):
            raise
        return _fail(*explained(error))
    return result if isinstance(result, int) else exit_codes.DONE


def _fail(sentence: str, code: int) -> int:
    print(f"whippet: {output.printable(sentence)}", file=sys.stderr)
    return code


async def _interrupted(result: Awaitable[Any]) -> Any:
    """Returns the exit code if Ctrl-C was pressed while the command waited for input."""
    try:
        return await result
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


async def _online(on: Online, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    on.found = destination.find(on.given)
    on.client = await connect(on.found)
    async with on.client:
        return await function(on, **arguments)


async def connect(found: destination.Found, reconnect: Reconnect | None = None) -> Client:
    from whippet.app.client import Client, Disconnected  # noqa: PLC0415 -- with numpy
    from whippet.app.errors import CommandError  # noqa: PLC0415

    try:
        async with asyncio.timeout(CONNECT_S):
            return await Client.connect(found.address, reconnect=reconnect)
    except ValueError as error:
        raise UsageFailure(f"{found.server}: {error}") from None
    except CommandError as error:
        if isinstance(error, Disconnected):
            raise
        sentence = str(error).rstrip(".")
        raise Refused(
            f"{found.server} refused the login: {sentence}; check the user and the password, or run `whippet login`"
        ) from None
    except TimeoutError:
        raise Unreachable(f"{found.server} has not responded for {CONNECT_S} s; is this the right address?") from None


def explained(error: CommandError) -> tuple[str, int]:
    """Returns the sentence and the exit code for a refusal of the server, or for a connection that failed."""
    from whippet.app.client import Disconnected  # noqa: PLC0415
    from whippet.app.errors import TABLE, Code  # noqa: PLC0415

    sentence = str(error).rstrip(".")
    if error.code is Code.INVALID_NUMBER_VALUE:
        # Found while the request was encoded.
        return "a number is too large: partitions and counts have 32 bits, offsets and times 64", exit_codes.USAGE
    if isinstance(error, Disconnected):
        advice = {
            Code.CANNOT_ESTABLISH_CONNECTION: "is the server running, and is this its address (--server)?",
        }.get(error.code, "what was in progress may have been done")
        return f"{sentence}; {advice}", exit_codes.UNREACHABLE
    if TABLE[error.code].status == NOT_FOUND_STATUS:
        return sentence, exit_codes.NOT_FOUND
    advice = ADVICE.get(error.code.name, "")
    return f"{sentence}; {advice}" if advice else sentence, exit_codes.REFUSED


NOT_FOUND_STATUS = 404
ADVICE = {
    "UNAUTHENTICATED": "run `whippet login`",
    "UNAUTHORIZED": "an administrator can grant it with `whippet user permissions`",
}


ID_MAX = 2**32 - 1


def identifier(text: str) -> int | str:
    """A number is an id, everything else is a name."""
    if not text:
        raise UsageFailure("a name or an id is empty")
    if not (text.isascii() and text.isdecimal()):
        return text
    if len(text) > len(str(ID_MAX)) or int(text) > ID_MAX:
        raise UsageFailure(f"{text[:40]} is no id: the largest is {ID_MAX}")
    return int(text)


def required(found: Any, what: str, advice: str) -> Any:
    """Returns what a query has found."""
    if found is None:
        raise NotFound(f"{what} does not exist, or you have no access to it; {advice}")
    return found


def json_schema(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Returns the JSON schema of what a command prints with `--output json`."""
    row, is_list = row_of(function)
    if row is None:
        return None
    (schema,), components = msgspec.json.schema_components([list[row] if is_list else row])  # type: ignore[valid-type]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": components}


Rows = Sequence[output.Row]
