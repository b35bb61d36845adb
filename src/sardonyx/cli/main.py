"""The `sardonyx` command: its subcommands, and how every failure becomes one line and an exit code.

Heavy packages are imported inside the subcommands, so that --help answers at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from sardonyx.cli.console import complain, complain_unexpected, complain_usage, note, put
from sardonyx.cli.options import GroupedCommand
from sardonyx.errors import SardonyxError, UsageError, suggest

INTERRUPTED = 130  # 128 + SIGINT, what a shell expects
HELP = """\b
Example:
  sardonyx demo
  sardonyx export model.py:build -o model.onnx
  sardonyx optimize model.onnx -o small.onnx --run runs/today
  sardonyx extract small.onnx --module encoder.layer.0 -o layer0.onnx

Exports PyTorch models to ONNX, optimizes ONNX graphs, verifies every result against its source, and keeps the module of
every node. `sardonyx COMMAND --help` begins with examples; docs/ has a page for each command.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 a --fail-if was true.
"""


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        put(f"sardonyx {version('sardonyx')}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")]


def _root(context: typer.Context, version: Version = False) -> None:
    if context.invoked_subcommand is None:
        raise UsageError("no command given", hint="`sardonyx --help` lists them")


VERBS = (
    "export", "optimize", "verify", "bench", "profile", "inspect", "extract", "decompose", "analyze", "dag", "adopt",
    "compare", "study", "report", "passes", "demo",
)  # fmt: skip


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Return the command with the subcommand that the arguments name, or with all; each takes time to load."""
    app = typer.Typer(
        name="sardonyx",
        help=HELP,
        add_completion=False,
        rich_markup_mode=None,  # plain help: fast, easy to grep, and no name is read as markup
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(invoke_without_command=True)(_root)
    named = [verb for verb in arguments[:1] if verb in VERBS]
    for verb in named or VERBS:
        module = import_module(f"sardonyx.cli.{verb}")
        app.command(verb, help=module.HELP, short_help=module.SUMMARY, cls=GroupedCommand)(getattr(module, verb))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    debug = "--debug" in arguments  # read here, since the parsed options are gone after a failure
    try:
        _check_command(arguments)
        code = _app(arguments)(args=list(arguments), prog_name="sardonyx", standalone_mode=False)
    except SardonyxError as error:
        if debug:
            note(traceback.format_exc().rstrip())
        _report_failure(arguments, error)
        complain(error)
        return error.exit_code
    except typer.TyperException as error:
        complain_usage(error.format_message().replace("Value error, ", ""), _command_of(arguments))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return INTERRUPTED
    except Exception as error:  # a bug; --debug shows the traceback
        if debug:
            note(traceback.format_exc().rstrip())
        complain_unexpected(error)
        return 1
    if code == INTERRUPTED:
        note("interrupted")
    return code if isinstance(code, int) else 0


def _check_command(arguments: Sequence[str]) -> None:
    """Report an unknown command without loading all of them."""
    name = next(iter(arguments), "-")
    if name in VERBS or name.startswith("-"):
        return
    close = suggest(name, VERBS) or ""
    hint = close if close.startswith("did") else f"there are {', '.join(VERBS)}"
    raise UsageError(f"there is no command {name!r}", hint=hint)


def _report_failure(arguments: Sequence[str], error: SardonyxError) -> None:
    """Append the error to the page that --summary names, if there is one."""
    if any(word.partition("=")[0] == "--summary" for word in arguments) and not isinstance(error, UsageError):
        from sardonyx.cli.gates import add_failure  # renders, so it is loaded only when needed

        add_failure(arguments, error)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    sys.exit(run(sys.argv[1:]))


def _command_of(arguments: Sequence[str]) -> str:
    """Return the command whose help describes the arguments."""
    return next((f"sardonyx {word}" for word in arguments if word in VERBS), "sardonyx")
