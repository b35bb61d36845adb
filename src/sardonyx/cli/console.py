"""Printing: results go to standard output, errors, notes and progress to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO

from sardonyx.errors import OutputError, SardonyxError
from sardonyx.records.progress import Progress, duration
from sardonyx.reporting.document import Tone
from sardonyx.reporting.formatting import one_line, printable_json, with_flags
from sardonyx.reporting.writers.terminal import Style

if TYPE_CHECKING:
    from rich.table import Table

    from sardonyx.fleet.engines import Status

COMMAND_LINE: ContextVar[tuple[str, ...]] = ContextVar("COMMAND_LINE", default=())  # the words of this command
CONFIGURATION: ContextVar[str] = ContextVar("CONFIGURATION", default="")  # the file with defaults of its options

# For terminals that only show ASCII; other characters become escape sequences.
_IN_ASCII = str.maketrans(
    {"→": "->", "−": "-", "×": "x", "…": "...", "·": ".", "±": "+-", "✗": "x", "█": "#", "▏": "|"}
)

_MIN_SHARE_DONE = 0.05  # of a phase, before the rest is estimated


def style_for(stream: TextIO) -> Style:
    """Return the colours and the width for a stream.

    A terminal has colours unless NO_COLOR is set (https://no-color.org) or TERM is dumb; other streams have them if
    FORCE_COLOR is set. Tables fit a terminal, or COLUMNS if it is set; otherwise lines may have any length. Sentences
    are wrapped on a terminal only, so that the last line of a pipe is the whole summary.
    """
    environment, on_terminal = os.environ, stream.isatty()
    wanted = bool(environment.get("FORCE_COLOR")) or (on_terminal and environment.get("TERM") != "dumb")
    columns = environment.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdecimal() else 0
    if on_terminal and not width:
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(stream.fileno()).columns
    return Style(color=wanted and not environment.get("NO_COLOR"), width=width or None, wraps=on_terminal)


def check_stdout() -> None:
    """Refuse to start without a standard output, where the next file that is opened would take its place."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  (a shell can close it: `>&-`)
        raise OutputError("standard output is closed", hint="redirect it to a file or to /dev/null")


def put(text: str) -> None:
    """Write a result to standard output. A closed pipe is not an error; a full disk is."""
    with guarded_stdout():
        sys.stdout.write(_writable(text, sys.stdout))
        sys.stdout.flush()


@contextlib.contextmanager
def guarded_stdout() -> Generator[None]:
    """Report in one line that standard output cannot be written; ignore that a pipe was closed."""
    try:
        yield
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        drop_stdout()
        raise OutputError(f"cannot write to standard output: {error.strerror}") from error


def put_json(data: bytes) -> None:
    """Write one JSON document to standard output."""
    put(printable_json(data) + "\n")


def complain(error: SardonyxError) -> None:
    """Print an error: one line that says what is wrong, and one with a hint if there is one."""
    style = style_for(sys.stderr)
    note(f"{style.paint(Tone.BAD, 'error:')} {one_line(error.message)}")
    if error.hint:
        note(f"{style.paint(Tone.STRONG, 'hint:')} {one_line(with_flags(error.hint))}")


def note(text: str) -> None:
    """Print a line on standard error."""
    with contextlib.suppress(OSError):  # standard error may be closed
        sys.stderr.write(_writable(text, sys.stderr) + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def progress(shown: bool) -> Generator[Progress | None]:
    """Show a progress line on standard error if it is a terminal, otherwise nothing."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=None, left="")
        remaining = TimeLeft()

        def report(phase: str, fraction: float | None) -> None:
            total = None if fraction is None else 1.0
            left = remaining.after(fraction)
            bar.update(task, description=one_line(phase), total=total, completed=fraction or 0.0, left=left)

        yield report


@contextlib.contextmanager
def live_table(shown: bool) -> Generator[Callable[[Status], object] | None]:
    """Show the status of a run over many models on standard error if it is a terminal, otherwise nothing."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True) as live:
        yield lambda status: live.update(_status_table(status))


def _status_table(status: Status) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    counts = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("done", "failed", "running", "a minute", "time left", "time"):
        counts.add_column(name, justify="right")
    pace = f"{status.per_minute:.1f}" if status.per_minute else ""
    left = duration(status.left) if status.left is not None else ""
    done = f"{status.done:,} of {status.total:,}"
    failed = Text(str(status.failed), style="red" if status.failed else "")
    counts.add_row(done, failed, str(status.running), pace, left, duration(status.seconds))
    bar = ProgressBar(total=max(1, status.total), completed=status.done + status.failed, width=48)
    names = Text(one_line(", ".join(status.names)), style="dim", no_wrap=True, overflow="ellipsis")
    whole = Table.grid()
    for part in (counts, bar, names):
        whole.add_row(part)
    return whole


class TimeLeft:
    """Estimates the rest of a phase from the time that its first part took."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began, self._first, self._last = now(), 0.0, 1.0

    def after(self, fraction: float | None) -> str:
        """Return the time left after a fraction is done: "12 s left", or "" if it is not known."""
        if fraction is None or fraction < self._last:  # another phase begins
            self._began, self._first, self._last = self._now(), fraction or 0.0, fraction or 0.0
            return ""
        self._last = fraction
        done = fraction - self._first
        spent = self._now() - self._began
        if done < _MIN_SHARE_DONE or spent < 1:
            return ""
        return f"{duration(spent * (1 - fraction) / done)} left"


def announce(what: str, seconds: float, *, shown: bool) -> None:
    """Print how long something takes at most, before it starts; as progress, on a terminal only."""
    if shown and sys.stderr.isatty():
        note(f"{what}: up to about {duration(seconds)}")


def _writable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def drop_stdout() -> None:
    """Redirect standard output to the null device, so that the flush at exit does not fail."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return  # not a file: nothing is flushed at exit
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
