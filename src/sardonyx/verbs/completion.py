"""Print a script that completes commands and options in a shell.

Example:
  sardonyx completion bash > ~/.local/share/bash-completion/completions/sardonyx
  sardonyx completion zsh > ~/.zfunc/_sardonyx
  sardonyx completion fish > ~/.config/fish/completions/sardonyx.fish

Prints a script that completes commands, options and their values. `eval "$(sardonyx completion bash)"` tries it in the
current shell.

Exit: 0 done, 2 usage.
"""

from __future__ import annotations

from typing import Literal

from sardonyx.cli.console import put
from sardonyx.cli.options import argument
from sardonyx.cli.verb import Given, Verb


def _run(given: Given) -> int:
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    # It runs `sardonyx` with the words so far in the environment; only the command that they name is loaded.
    script = get_completion_script(prog_name="sardonyx", complete_var="_SARDONYX_COMPLETE", shell=given.shell)
    put(script + "\n")
    return 0


VERB = Verb(
    options=(
        argument("shell", "SHELL", "One of bash, zsh and fish.", Literal["bash", "zsh", "fish"]),
    ),
    run=_run,
)  # fmt: skip
