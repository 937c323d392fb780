"""`whippet completion`: prints the script with which a shell completes commands, options, and names on the server.

The shell calls `whippet` with what was typed in variables, and `answer` prints the candidates in the form that the
script of this shell expects. The scripts are our own, because those of click split words at colons, put names with
spaces on the line as they are, and end `orders/` with a space.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from click import shell_completion
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from click.shell_completion import ShellComplete

PROGRAM = "whippet"
VARIABLE = "_WHIPPET_COMPLETE"
"""The script sets it to ask for completions."""

BASH = r"""_whippet_completion() {
    local line=${COMP_LINE:0:COMP_POINT} word=${COMP_WORDS[COMP_CWORD]} prefix= last kind value
    COMPREPLY=()
    last=${line##*[[:space:]]}
    # Bash replaces only what follows the last colon.
    [[ $COMP_WORDBREAKS == *:* ]] && prefix=${last%"${last##*[:=]}"}
    while IFS=, read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain)
                value=${value#"$prefix"}
                [[ $word == [\'\"]* ]] || printf -v value %q "$value"
                COMPREPLY+=("$value")
                ;;
        esac
    done < <(COMP_LINE=$line _WHIPPET_COMPLETE=bash_complete "$1" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace
    return 0
}
complete -o nosort -F _whippet_completion whippet
"""

ZSH = r"""#compdef whippet
_whippet_completion() {
    local -a answer plain described folders
    local kind key text
    local -x COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) _WHIPPET_COMPLETE=zsh_complete
    answer=("${(@f)$($words[1] 2>/dev/null)}")
    for kind key text in "${answer[@]}"; do
        case $kind in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain)
                if [[ $key == */ ]]; then
                    folders+=("$key")
                elif [[ $text == _ ]]; then
                    plain+=("$key")
                else
                    described+=("${key//:/\\:}:$text")
                fi
                ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    (( $#folders )) && compadd -U -V unsorted -S '' -a folders
    return 0
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _whippet_completion "$@"
else
    compdef _whippet_completion whippet
fi
"""

FISH = r"""function _whippet_completion
    set -lx COMP_WORDS (commandline -cp)
    set -lx COMP_CWORD (commandline -t)
    set -lx _WHIPPET_COMPLETE fish_complete
    set -l answer (whippet 2>/dev/null)
    for line in $answer
        set -l parts (string split -m 1 "," -- $line)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command whippet --arguments "(_whippet_completion)"
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

FILES = re.compile(r"\[?(FILE|PATH)\b")
FOLDERS = re.compile(r"\[?FOLDER\b")
"""Both match the metavar of an argument or an option: completion offers files or folders for it."""

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish")]


def run(shell: Shell) -> int:
    """For bash: `eval "$(whippet completion bash)"` in ~/.bashrc; zsh alike, in ~/.zshrc after compinit. For fish:
    `whippet completion fish > ~/.config/fish/completions/whippet.fish`."""
    print(SCRIPTS[shell], end="")
    return 0


def answer(root: click.Command) -> int | None:
    """Prints completions if the shell asks for them, and returns the exit code; None if it does not."""
    shell, _, instruction = os.environ.get(VARIABLE, "").partition("_")
    if instruction != "complete" or shell not in SCRIPTS:
        return None
    print(_completer(shell, root).complete())
    return 0


def _completer(shell: str, root: click.Command) -> ShellComplete:
    kind: Any = shell_completion.get_completion_class(shell)
    bases = (_Completer, _BashWords, kind) if shell == "bash" else (_Completer, kind)
    ours: Any = type(f"Our{kind.__name__}", bases, {})
    found: ShellComplete = ours(root, {}, PROGRAM, VARIABLE)
    return found


class _BashWords:
    """The line up to the cursor: bash has divided the words at colons as well."""

    def get_completion_args(self) -> tuple[list[str], str]:
        # The mark makes the last word one, also if it is empty.
        words = shell_completion.split_arg_string(os.environ.get("COMP_LINE", "") + "\x01")
        return words[1:-1], words[-1].removesuffix("\x01")


class _Completer:
    """Adds files, where a file is wanted, and leaves out names that would command the terminal."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        context = shell_completion._resolve_context(self.cli, self.ctx_args, self.prog_name, args)  # type: ignore[attr-defined]
        wanted, incomplete = shell_completion._resolve_incomplete(context, args, incomplete)
        found = wanted.shell_complete(context, incomplete)
        if not found and isinstance(wanted, click.Parameter):
            placeholder = wanted.make_metavar(context)
            if FILES.match(placeholder) or FOLDERS.match(placeholder):
                kind = "dir" if FOLDERS.match(placeholder) else "file"
                return [CompletionItem(incomplete, type=kind)]
        return [item for item in found if str(item.value).isprintable()]
