"""The `sardonyx` command: its subcommands, and how every failure becomes one line and an exit code.

Commands are modules in `sardonyx.verbs`, and entry points `sardonyx.verbs` of other packages. The module of a command
has a docstring, whose first line is the summary and whose rest is the help, and a `VERB`. Heavy packages are imported
inside the subcommands, so that --help answers at once.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from msgspec import Struct

from sardonyx.cli.console import COMMAND_LINE, CONFIGURATION, check_stdout, complain, guarded_stdout, note, put
from sardonyx.errors import RuntimeFailure, SardonyxError, UsageError, did_you_mean
from sardonyx.records.outside import entry_points, module

if TYPE_CHECKING:
    from sardonyx.cli.verb import Verb

_FOLDER = Path(__file__).parents[1] / "verbs"
_FIRST = ("export", "optimize", "verify", "quantize")  # in the list of commands; the others follow by name
_GC_THRESHOLD = 500_000  # after which cycles are looked for: graphs and modules live until the end of a command


class Command(Struct, frozen=True):
    """A command that was loaded."""

    name: str
    summary: str
    help: str
    verb: Verb


_NAMES = {path.stem for path in _FOLDER.iterdir() if not path.name.startswith(("_", "."))}
VERBS = (*_FIRST, *sorted(_NAMES - {*_FIRST}))


def outside() -> tuple[str, ...]:
    """Return the commands of other packages; a built-in command cannot be replaced."""
    return tuple(name for name in entry_points() if name not in VERBS)


def summaries() -> dict[str, str]:
    """Return all commands with a line about each; built-in ones are not imported for it."""
    found: dict[str, str] = {}
    for name in VERBS:
        path = _FOLDER / name
        text = (path / "command.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        found[name] = text.removeprefix('"""').partition("\n")[0].removesuffix('"""')
    for name in outside():
        try:
            found[name] = _of_module(name, module(name)).summary
        except SardonyxError as error:
            found[name] = error.message
    return found


def load(name: str) -> Command | None:
    """Return the command with a name; None if there is none.

    Raises:
        SardonyxError: the package that has it cannot be loaded.
    """
    if name in VERBS:
        return _of_module(name, import_module(f"sardonyx.verbs.{name}" + ".command" * (_FOLDER / name).is_dir()))
    return _of_module(name, module(name)) if name in outside() else None


def _of_module(name: str, module: Any) -> Command:
    summary, _, text = str(module.__doc__ or "").partition("\n\n")
    return Command(name, summary, f"\b\n{text}", module.VERB)  # \b: typer keeps the lines of the example


_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # of bash; of zsh and fish
_HELP_FLAGS = frozenset(("-h", "--help"))
INTERRUPTED = 130  # 128 + SIGINT, what a shell expects
HELP = """\b
Example:
  sardonyx report model.onnx --open
  sardonyx optimize model.onnx -o small.onnx --run runs/today

From PyTorch to ONNX with the module of every node. docs/ describes it.

Exit: 0 done, 1 failed, 2 usage, 3 verification failed, 4 gate not met.
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


def _app(arguments: Sequence[str]) -> typer.Typer:
    """Return the command with the subcommand that the arguments name, or otherwise with the list of all."""
    app = typer.Typer(
        name="sardonyx",
        help=HELP,
        add_completion=False,
        rich_markup_mode=None,  # plain help: fast, easy to grep, and no name is read as markup
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(invoke_without_command=True)(_root)
    named = next(iter(arguments), "-")
    command = None if named.startswith("-") else load(named)
    if command is not None:
        from sardonyx.cli.parser import GroupedCommand, callback  # not loaded for the list of commands

        app.command(command.name, help=command.help, cls=GroupedCommand)(callback(command.verb))
        return app
    for name, summary in summaries().items():
        app.command(name, short_help=summary)(_not_loaded)
    return app


def _not_loaded() -> None:
    """Stand for a subcommand in the list of all of them."""


def run(arguments: Sequence[str], *, configured: bool = True) -> int:
    """Run one command line and return its exit code; `configured`: with the defaults of the nearest file."""
    COMMAND_LINE.set(("sardonyx", *arguments))
    debug = "--debug" in arguments  # read here, since the parsed options are gone after a failure
    try:
        check_stdout()
        arguments = _with_command(arguments)
        code = _run(arguments, configured=configured)
    except SardonyxError as error:
        if debug:
            note(traceback.format_exc().rstrip())
        if any(word.partition("=")[0] == "--summary" for word in arguments) and not isinstance(error, UsageError):
            from sardonyx.cli.gates import add_failure  # renders, so it is loaded only when needed

            add_failure(arguments, error)
        complain(error)
        return error.exit_code
    except typer.TyperException as error:
        command = f"sardonyx {arguments[0]}" if arguments and not arguments[0].startswith("-") else "sardonyx"
        message = error.format_message().replace("Value error, ", "")
        complain(UsageError(message, hint=f"`{command} --help` lists its arguments and options"))
        return error.exit_code
    except SystemExit as error:  # code of the model gives up
        if _completed():
            raise  # typer exits after it has completed words
        frame = traceback.extract_tb(error.__traceback__)[-1]
        complain(RuntimeFailure(f"{frame.filename}:{frame.lineno}: the model's code called sys.exit({error.code!r})"))
        return 1
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:  # a bug; --debug shows the traceback
        if debug:
            note(traceback.format_exc().rstrip())
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        hint = "this is a bug in sardonyx; --debug shows where it happened"
        complain(RuntimeFailure(f"unexpected failure: {text}", hint=hint))
        return 1
    if code == INTERRUPTED:
        note("interrupted")
    return code if isinstance(code, int) else 0


def _run(arguments: Sequence[str], *, configured: bool) -> object:
    is_verbose = bool({"-v", "--verbose"} & set(arguments))  # help is printed before options are parsed
    app = _app(_completed() or arguments)
    run_app = functools.partial(app, args=list(arguments), prog_name="sardonyx", standalone_mode=False, obj=is_verbose)
    if _HELP_FLAGS.isdisjoint(arguments):
        return run_app(default_map=_defaults(app) if configured and not _completed() else None)
    # Typer prints the help itself, and exits with 1 if the pipe was closed, as `| head` does.
    with guarded_stdout(), contextlib.suppress(SystemExit):
        return run_app()


def _defaults(app: typer.Typer) -> dict[str, dict[str, Any]]:
    """Return the defaults of the command that a file sets, by its name."""
    from sardonyx.cli.configuration import defaults, find  # nothing that a command has not loaded

    path = find(Path.cwd())
    CONFIGURATION.set("" if path is None else str(path))
    if path is None:
        return {}
    group: Any = typer.main.get_command(app)
    return {name: defaults(path, command, (*VERBS, *outside())) for name, command in group.commands.items()}


def _completed() -> list[str]:
    """Return the words that a shell wants to complete; none if this is an ordinary call."""
    if not os.environ.get("_SARDONYX_COMPLETE"):
        return []
    from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

    completion_init()
    lines = [line for name in _WORDS if (line := os.environ.get(name))]
    return lines[0].split()[1:] if lines else []


def _with_command(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with the command that is left out before a file: `sardonyx model.onnx` writes its page."""
    name = next(iter(arguments), "-")
    if name.startswith("-") or name in VERBS or name in outside():
        return arguments
    if name.endswith(".onnx") or os.path.isfile(name):
        return ("report", *arguments)
    known = (*VERBS, *outside())
    hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
    raise UsageError(f"there is no command {name!r}", hint=hint)


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    gc.set_threshold(_GC_THRESHOLD)
    code = run(sys.argv[1:])
    gc.freeze()  # otherwise the interpreter searches all objects for garbage twice before it ends
    sys.exit(code)
