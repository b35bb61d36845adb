"""`sardonyx report`: a run as a page, as Markdown, or as pictures."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import options
from sardonyx.cli.console import put
from sardonyx.cli.help import OUTPUT
from sardonyx.reporting import formatting

if TYPE_CHECKING:
    from sardonyx.reporting.report import Report

SUMMARY = "Show what a run did and why, as a page to read and to send."
HELP = """\b
Example:
  sardonyx report run.json -o report.html
  sardonyx report runs/today
  sardonyx report runs/bert runs/resnet runs/llama -o overview.html
  sardonyx report --compare yesterday.json today.json -o changed.html
  sardonyx report run.json --format markdown >> "$GITHUB_STEP_SUMMARY"

SOURCE is a record of `optimize` (or of `export --optimize`), or a folder that `optimize --run` left; benchmarks,
profiles, analyses and exports of the same files beside it are shown too. The page is one file that needs no network:
the verdict, the module tree, every rewrite with its small graph before and after, what did not fuse and why, the proof,
times and memory. Several runs get an overview and a choice. Nothing is computed here: every number comes from a record.

Exit: 0 done, 1 failed, 2 usage.
"""


class Form(StrEnum):
    """What to make."""

    HTML = "html"
    MARKDOWN = "markdown"
    SVG = "svg"


Sources = Annotated[
    list[Path], typer.Argument(metavar="SOURCE...", help="Records, or folders of them.", show_default=False)
]
Output = Annotated[Path | None, options.output("report.html beside the run; Markdown: standard output")]
FormatOption = Annotated[
    Form | None,
    typer.Option(
        "--format", help="What to make; svg: pictures, into a folder. [default: as -o is named]", rich_help_panel=OUTPUT
    ),
]
Compare = Annotated[bool, typer.Option("--compare", help="Show what changed from the first run to the second.")]


def report(
    sources: Sources,
    output: Output = None,
    format_: FormatOption = None,
    compare: Compare = False,
    force: options.Force = False,
    debug: options.Debug = False,
) -> int:
    """Run the public verb, write what it made and say where that is."""
    from sardonyx.reporting.report import format_of
    from sardonyx.reporting.report import report as run_report  # what renders is loaded where it is needed

    wanted = format_of(output, format_)
    place = output or (None if wanted == "markdown" else _beside(sources[0], wanted))
    made = run_report(sources, place, format=wanted, compare=compare, force=force)
    put(made.text if place is None else f"{_sentence(made, place)}\n")
    return 0


def _beside(source: Path, form: str) -> Path:
    folder = source if source.is_dir() else source.parent
    return folder / ("pictures" if form == "svg" else "report.html")


def _sentence(made: Report, place: Path) -> str:
    """What was written and how large it is."""
    octets = sum(len(each.encode()) for each in made.files.values())
    models = ", ".join(formatting.name(each.label) for each in made.dossiers[:3])
    more = f" and {len(made.dossiers) - 3} more" if len(made.dossiers) > 3 else ""
    files = f" in {formatting.plural(len(made.files), 'file')}" if made.format == "svg" else ""
    return f"{models}{more} → {formatting.visible(str(place))} ({formatting.size(octets)}{files})"
