"""What a command says and where: results on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import TextIO

from sardonyx.cli.hints import in_flags
from sardonyx.errors import OutputError, SardonyxError
from sardonyx.reporting.formatting import Style, one_line

Progress = Callable[[str, float | None], None]

# For terminals that know ASCII only; whatever else they cannot show is spelled out.
_IN_ASCII = str.maketrans(
    {"→": "->", "−": "-", "×": "x", "…": "...", "·": ".", "±": "+-", "✗": "x", "█": "#", "▏": "|"}
)


def style_for(stream: TextIO) -> Style:
    """Colour only for a terminal, and never against NO_COLOR (https://no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(color=wanted and stream.isatty())


def put(text: str) -> None:
    """Write a result to standard output; a reader that stopped reading is no error, a full disk is."""
    try:
        sys.stdout.write(_writable(text, sys.stdout))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def put_json(data: bytes) -> None:
    """Write one JSON document to standard output."""
    put(data.decode() + "\n")


def show(
    record: Callable[[], bytes],
    sentence: Callable[[Style], str],
    text: Callable[[Style], str],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """A verb's answer in the form that was asked for: its record, one sentence, or all of it."""
    style = style_for(sys.stdout)
    if as_json:
        put_json(record())
    elif quiet:
        put(sentence(style) + "\n")
    else:
        put(text(style))


def complain(error: SardonyxError) -> None:
    """One line what is wrong, one line what to do."""
    _tell_error(error.message, None if error.hint is None else in_flags(error.hint))


def complain_unexpected(error: BaseException) -> None:
    """A fault of ours, not of the user: one line, and how to see more."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    _tell_error(f"unexpected failure: {said}", "this is a fault in sardonyx; --debug shows where it happened")


def complain_usage(message: str, command: str) -> None:
    """The command line could not be understood."""
    _tell_error(message, f"`{command} --help` lists what it takes")


def note(text: str) -> None:
    """A remark on standard error."""
    with contextlib.suppress(OSError):  # nobody is left to tell
        sys.stderr.write(_writable(text, sys.stderr) + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def progress(shown: bool) -> Generator[Progress | None]:
    """A progress line on standard error while it is a terminal; nothing otherwise."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(phase: str, fraction: float | None) -> None:
            known = fraction is not None
            bar.update(task, description=one_line(phase), total=1.0 if known else None, completed=fraction or 0.0)

        yield report


def _tell_error(message: str, hint: str | None) -> None:
    style = style_for(sys.stderr)
    note(f"{style.bad('error:')} {one_line(message)}")
    if hint:
        note(f"{style.strong('hint:')} {one_line(hint)}")


def _writable(text: str, stream: TextIO) -> str:
    """The text as this stream can encode it."""
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def _drop_stdout() -> None:
    """Keep the interpreter from complaining when it flushes at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return  # not a file: nothing is flushed at exit
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
