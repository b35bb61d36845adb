"""The gates of a command: options are read before any work, and checked against the record at the end.

gating = Gating.of("run", fail_if, baseline, summary, beside=(output, record))
...
return gating.outcome(run, run_sentence(run))

Most commands run without gates, so what evaluates and reports them is imported when it is needed.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
from msgspec import Struct

from sardonyx.cli.console import complain
from sardonyx.errors import GateNotMet, OutputError, SardonyxError, UsageError

if TYPE_CHECKING:
    from sardonyx.reporting import gate
    from sardonyx.reporting.gate import JobSummary


_NAME = re.compile(r"^\s*([\w.]+)")


class Gating(Struct, frozen=True):
    """The gates of one command, and the Markdown page to report them on."""

    kind: gate.RecordKind | None = None  # None without gates and without a page
    gates: Sequence[gate.Gate] = ()
    baseline: gate.Baseline | None = None
    summary: Path | None = None

    @classmethod
    def of(
        cls,
        record: str,
        fail_if: Sequence[str] | None,
        baseline: Path | None,
        summary: Path | None,
        *,
        beside: Collection[Path | None] = (),
        many: bool = False,
    ) -> Self:
        """Return the gates on a kind of record that the options of a command ask for.

        The page of --summary may be none of the files `beside`. Of `many` models, expressions about all are left out.

        Raises:
            UsageError: an expression or the baseline cannot be read.
            OutputError: the page cannot be written.
        """
        if many:
            fail_if = [text for text in fail_if or () if text not in about_all(fail_if)]
        if not fail_if and baseline is None and summary is None:
            return cls()
        from sardonyx.reporting import gate
        from sardonyx.reporting.record_kinds import kind_of

        kind = kind_of(record)
        earlier = gate.read_baseline(baseline, kind) if baseline is not None else None
        gates = gate.parse_all(kind, fail_if or (), earlier)
        if earlier is not None and summary is None and not any(one.needs_baseline for one in gates):
            raise UsageError("--baseline is not used", hint="add --fail-if 'NAME > baseline' or --summary")
        if summary is not None:
            _check_page(summary, [baseline, *beside])
        return cls(kind, gates, earlier, summary)

    def require(self, what: Literal["verification", "measurement"], planned: bool, hint: str) -> None:
        """Raise an error if a gate needs a verification or a measurement and there will be none."""
        if not self.gates or planned:
            return
        from sardonyx.reporting.record_kinds import NEEDS_TUNING, NEEDS_VERDICT

        names = NEEDS_VERDICT if what == "verification" else NEEDS_TUNING
        unmet = next((one for one in self.gates if one.name in names), None)
        if unmet is not None:
            raise UsageError(f"--fail-if {unmet.text!r} needs a {what}", hint=hint)

    def results(self, record: Any) -> list[gate.Outcome]:
        """Return the result of every gate for a record."""
        if self.kind is None or not self.gates:
            return []
        from sardonyx.reporting import gate

        return gate.hold(self.gates, self.kind, record, self.baseline)

    def with_results(self, data: bytes, record: Any) -> bytes:
        """Return the JSON of a record with a last field `gates` if there are any: one object for each, in order."""
        results = self.results(record)
        if not results:
            return data
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        fields["gates"] = msgspec.Raw(msgspec.json.encode([each.described() for each in results]))
        return msgspec.json.encode(fields)

    def outcome(self, record: Any, sentence: str, *, failed: int = 0, label: str = "") -> int:
        """Check the record against the gates, append to the page, and return the exit code.

        If the command has `failed` with an exit code, no gate is checked; messages about several records have a label.
        """
        if self.kind is None:
            return failed
        from sardonyx.reporting.gate import JobSummary

        results = [] if failed else self.results(record)
        if self.summary is not None:
            numbers = self.kind.measures(record)
            title = self.kind.title.partition(" ")[2].capitalize()  # without its article
            _append(self.summary, JobSummary(title, sentence, bool(failed), results, numbers, self.baseline))
        for result in results:
            if not result.met:
                complain(GateNotMet(label + result.sentence()))
        return failed or (0 if all(result.met for result in results) else GateNotMet.exit_code)


def about_all(fail_if: Sequence[str] | None) -> list[str]:
    """Return the expressions of --fail-if about all of many models together: 'failed>0'."""
    if not fail_if:
        return []
    from sardonyx.reporting.record_kinds import FLEET

    return [text for text in fail_if if (name := _NAME.match(text)) and name[1] in FLEET.names]


def add_failure(arguments: Sequence[str], error: SardonyxError) -> None:
    """Append an error to the page that --summary of a command line names, unless the page cannot be written."""
    words = list(arguments)
    values = [word.partition("=")[2] for word in words if word.startswith("--summary=")]
    values += [value for word, value in itertools.pairwise(words) if word == "--summary"]
    for page in map(Path, values[-1:]):
        with contextlib.suppress(SardonyxError):
            _check_page(page, ())
            from sardonyx.reporting.gate import JobSummary

            _append(page, JobSummary(f"sardonyx {words[0]}", error.message, True, (), {}, None))


def _check_page(page: Path, others: Collection[Path | None]) -> None:
    """Raise an error if the page cannot be appended to, or is a file that the command uses."""
    if any(other is not None and other.resolve() == page.resolve() for other in others):
        raise UsageError("--summary is a file that the command uses otherwise", hint="choose another name")
    if page.is_dir() or not page.parent.is_dir():
        what = "is a folder" if page.is_dir() else "is in a folder that does not exist"
        raise OutputError(f"--summary {page} {what}", hint="name a file in an existing folder")
    try:
        if page.is_file():
            page.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OutputError(f"--summary {page} exists and is not a text file", hint="choose another name") from error
    except OSError as error:
        raise OutputError(f"--summary {page} cannot be read: {error.strerror}") from error


def _append(page: Path, summary: JobSummary) -> None:
    """Append with one write, so that commands that share the page do not interleave."""
    from sardonyx.reporting.gate import summary_document
    from sardonyx.reporting.writers import markdown

    text = markdown.write(summary_document(summary))
    try:
        has_text = page.is_file() and page.stat().st_size > 0
        with page.open("ab", buffering=0) as stream:
            stream.write((("\n" if has_text else "") + text).encode())
    except OSError as error:
        raise OutputError(f"--summary {page} cannot be written: {error.strerror}") from error
