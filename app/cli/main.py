"""The command `whippet`: a table of subcommands, the groups made from it, and the call of the chosen one.

The module of a subcommand is imported only when it is chosen: `--help` or a small command never waits for the server,
the store, the client or numpy to load. `main` returns the exit code (app/cli/exit_codes.py).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Sequence

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperGroup

from whippet.app.cli import completion, exit_codes
from whippet.app.cli.subcommands import GROUPS, SUBCOMMANDS, Subcommand

__all__ = ["GROUPS", "SUBCOMMANDS", "Subcommand", "main"]

REMOTE = "whippet.app.cli.remote"
"""The package of the commands that work on a server."""
REMOTE_ELSEWHERE = ("whippet.bench.run.command", "whippet.bench.run.compare")
"""Other modules with such commands: the benchmark is above the server, which does not know it."""
DESCRIPTION = """Whippet, a persistent message-streaming gateway compatible with Apache Iggy.

`whippet COMMAND --help` describes a command."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = completion.answer(root())
    if code is not None:
        return code
    try:
        # Not `Group.main`, which has its own ideas of a closed pipe.
        with root().make_context("whippet", arguments) as context:
            code = context.command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        # Whoever reads our output has seen enough. What is still buffered must not fail when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.PIPE_CLOSED
    return code if isinstance(code, int) else exit_codes.DONE


class Words(TyperGroup):
    """The subcommands that begin with the same words. Their names are in the table; the rest is loaded when needed."""

    def __init__(self, words: tuple[str, ...]) -> None:
        help_text = GROUPS[words[0]].summary if words else DESCRIPTION
        super().__init__(
            name=" ".join(words) or "whippet",
            help=help_text,
            no_args_is_help=True,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self._words = words

    def _below(self) -> Iterator[tuple[str, Subcommand]]:
        """Yields the next word of each subcommand in this group."""
        depth = len(self._words)
        for subcommand in SUBCOMMANDS:
            if subcommand.words[:depth] == self._words and len(subcommand.words) > depth:
                yield subcommand.words[depth], subcommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys(word for word, _ in self._below()))

    def summary_of(self, word: str) -> str:
        """Returns the line in the list of commands, without loading the command."""
        deeper = (*self._words, word)
        return next((each.summary for _, each in self._below() if each.words == deeper), "") or GROUPS[word].summary

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The same as that of click, but loads no command."""
        words = [word for word in self.list_commands(ctx) if word.startswith(incomplete)]
        found = [CompletionItem(word, help=self.summary_of(word)) for word in words]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for word, subcommand in self._below():
            is_last = len(subcommand.words) == len(self._words) + 1
            aliases = subcommand.aliases if is_last else GROUPS[word].aliases
            if cmd_name == word or cmd_name in aliases:
                return command_of(subcommand) if is_last else Words((*self._words, word))
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(word, self.summary_of(word)) for word in self.list_commands(ctx)])


def root() -> Words:
    group = Words(())
    group.params.append(
        click.Option(
            ["-V", "--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Print the version and exit.",
        )
    )
    return group


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        importlib.import_module("whippet.app.cli.version").run()
        ctx.exit()


def is_remote(subcommand: Subcommand) -> bool:
    return subcommand.module.startswith(REMOTE) or subcommand.module in REMOTE_ELSEWHERE


def command_of(subcommand: Subcommand) -> click.Command:
    """Loads a subcommand: a function, whose parameters typer turns into arguments and options."""
    function = getattr(importlib.import_module(subcommand.module), subcommand.function)
    if is_remote(subcommand):
        function = importlib.import_module(f"{REMOTE}.framework").as_command(function)
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command(subcommand.words[-1], help=_described(subcommand, function.__doc__))(function)
    return typer.main.get_command(app)


def _described(subcommand: Subcommand, docstring: str | None) -> str:
    return f"{subcommand.summary[0].upper()}{subcommand.summary[1:]}.\n\n{inspect.cleandoc(docstring or '')}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
