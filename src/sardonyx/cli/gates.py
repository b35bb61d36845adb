"""What commands with gates share: everything asked is read before any work, and held to the record at the end.

gating = Gating.of(gate.RUN, fail_if, baseline, summary, beside=(output, record))
...
return gating.outcome(run, closing_sentence(run))
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sardonyx.cli.console import complain
from sardonyx.errors import GateNotMet, OutputError, SardonyxError, UsageError
from sardonyx.reporting import gate
from sardonyx.reporting.ci_summary import Section, render_section


@dataclass(frozen=True, slots=True)
class Gating:
    """The gates of one command, and where the page about them goes."""

    kind: gate.RecordKind
    gates: Sequence[gate.Gate]
    baseline: gate.Baseline | None
    summary: Path | None

    @classmethod
    def of(
        cls,
        kind: gate.RecordKind,
        fail_if: Sequence[str] | None,
        baseline: Path | None,
        summary: Path | None,
        *,
        beside: Collection[Path | None] = (),
    ) -> Self:
        """All that was asked, read.

        Args:
            kind: of the record that the command answers with.
            fail_if: expressions.
            baseline: an earlier record.
            summary: a Markdown page to add to.
            beside: other files that the command reads or writes, none of which can be the page.

        Raises:
            UsageError: for an expression or a baseline that cannot be read.
            OutputError: for a page that cannot be added to.
        """
        earlier = gate.read_baseline(baseline, kind) if baseline is not None else None
        gates = gate.parse_all(kind, fail_if or (), earlier)
        if earlier is not None and summary is None and not any(each.needs_baseline for each in gates):
            raise UsageError("--baseline is compared with nothing", hint="add --fail-if 'NAME > baseline' or --summary")
        if summary is not None:
            _check_page(summary, [baseline, *beside])
        return cls(kind, gates, earlier, summary)

    def check_provable(self, proven: bool, hint: str) -> None:
        """Refuse gates on what only a verification knows, where there is none."""
        self._check(gate.NEEDS_VERDICT, proven, "a verification", hint)

    def check_timed(self, timed: bool, hint: str) -> None:
        """Refuse gates on what only a measurement knows, where there is none."""
        self._check(gate.NEEDS_TUNING, timed, "a measurement", hint)

    def _check(self, names: Collection[str], given: bool, what: str, hint: str) -> None:
        without = next((each for each in self.gates if each.name in names), None)
        if without is not None and not given:
            raise UsageError(f"--fail-if {without.text!r} needs {what}", hint=hint)

    def outcome(self, record: Any, sentence: str, *, failed: int = 0) -> int:
        """Hold the record to its gates, write the page, and answer the exit code.

        Args:
            record: what the command found.
            sentence: the same in one line, without colours.
            failed: the exit code of what went wrong before any gate; the page says so, and no gate is held.
        """
        held = [] if failed else gate.hold(self.gates, self.kind, record, self.baseline)
        if self.summary is not None:
            numbers = self.kind.measures(record)
            title = self.kind.title.partition(" ")[2].capitalize()  # without its article
            section = Section(title, sentence, bool(failed), held, numbers, self.baseline)
            _append(self.summary, render_section(section))
        for each in held:
            if not each.met:
                complain(GateNotMet(each.sentence()))
        return failed or (0 if all(each.met for each in held) else GateNotMet.exit_code)


def add_failure(arguments: Sequence[str], error: SardonyxError) -> None:
    """Add to the page that a command line names what kept the command from a result; a page that cannot be is none."""
    words = list(arguments)
    named = [word.partition("=")[2] for word in words if word.startswith("--summary=")]
    named += [value for word, value in itertools.pairwise(words) if word == "--summary"]
    for page in map(Path, named[-1:]):
        with contextlib.suppress(SardonyxError):
            _check_page(page, ())
            _append(page, render_section(Section(f"sardonyx {words[0]}", error.message, True, (), {}, None)))


def _check_page(page: Path, others: Collection[Path | None]) -> None:
    """Refuse at once what could not be added to, and what would be spoilt by it."""
    if any(other is not None and other.resolve() == page.resolve() for other in others):
        raise UsageError("--summary names a file that the command uses otherwise", hint="give it a name of its own")
    if page.is_dir() or not page.parent.is_dir():
        what = "a folder" if page.is_dir() else "in no folder that exists"
        raise OutputError(f"--summary {page} is {what}", hint="name a file in a folder that exists")
    try:
        if page.is_file():
            page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OutputError(f"--summary {page} exists and is no text", hint="give it a name of its own") from error
    except OSError as error:
        raise OutputError(f"--summary {page} cannot be read: {error.strerror}") from error


def _append(page: Path, text: str) -> None:
    """One write at the end of the page, so that commands that share it do not mix."""
    try:
        begun = page.is_file() and page.stat().st_size > 0
        with page.open("ab", buffering=0) as stream:
            stream.write((("\n" if begun else "") + text).encode())
    except OSError as error:
        raise OutputError(f"--summary {page} cannot be written: {error.strerror}") from error
