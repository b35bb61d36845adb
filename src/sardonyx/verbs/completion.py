"""`sardonyx completion`: a script that completes commands and options in a shell.

The script runs `sardonyx` with the words so far in the environment. Only the command that they name is loaded, and
nothing that reads or runs models.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put

HELP = """\b
Example:
  sardonyx completion bash > ~/.local/share/bash-completion/completions/sardonyx
  sardonyx completion zsh > ~/.zfunc/_sardonyx
  sardonyx completion fish > ~/.config/fish/completions/sardonyx.fish

Prints a script that completes commands, options and their values. `eval "$(sardonyx completion bash)"` tries it in the
current shell.

Exit: 0 done, 2 usage.
"""
_VARIABLE = "_SARDONYX_COMPLETE"
_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # of bash; of zsh and fish


class Shell(StrEnum):
    """A shell with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


ShellName = Annotated[Shell, typer.Argument(metavar="SHELL", help="One of bash, zsh and fish.", show_default=False)]


def completion(shell: ShellName, debug: options.Debug = False) -> int:
    """Print the script for a shell."""
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    put(get_completion_script(prog_name="sardonyx", complete_var=_VARIABLE, shell=shell.value) + "\n")
    return 0


def words_to_complete() -> list[str]:
    """Return the words after `sardonyx` that a shell wants to complete."""
    from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

    completion_init()
    lines = [line for name in _WORDS if (line := os.environ.get(name))]
    return lines[0].split()[1:] if lines else []
