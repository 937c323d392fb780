"""`whippet completion`: prints the script with which a shell completes commands, options, and names on the server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from click import shell_completion

if TYPE_CHECKING:
    import click

PROGRAM = "whippet"
VARIABLE = "_WHIPPET_COMPLETE"
"""The script sets it to ask for completions."""

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish")]


def run(shell: Shell) -> int:
    """For bash: `eval "$(whippet completion bash)"` in ~/.bashrc; zsh alike, in ~/.zshrc. For fish: `whippet completion
    fish > ~/.config/fish/completions/whippet.fish`."""
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    # Not `source`, which runs the shell to find out its version.
    complete = kind(None, {}, PROGRAM, VARIABLE)  # type: ignore[arg-type]
    print(complete.source_template % complete.source_vars())
    return 0


def answer(root: click.Command) -> int | None:
    """Prints completions if the shell asks for them, and returns the exit code; None if it does not."""
    instruction = os.environ.get(VARIABLE)
    if not instruction:
        return None
    return shell_completion.shell_complete(root, {}, PROGRAM, VARIABLE, instruction)
