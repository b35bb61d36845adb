"""Write an HTML, Markdown or SVG report about one or more runs.

Example:
  sardonyx report run.json -o report.html
  sardonyx report runs/today
  sardonyx report runs/bert runs/resnet runs/llama -o overview.html
  sardonyx report nightly/* -o history.html
  sardonyx report --compare yesterday.json today.json -o changed.html
  sardonyx report run.json --format markdown >> "$GITHUB_STEP_SUMMARY"

SOURCE is a record of `optimize` (or of `export --optimize`) or of `quantize`, or a folder written by `optimize --run`;
benchmarks, profiles, analyses, exports and quantizations of the same files beside it are included. The page is one file
that needs no network: the verdict, the module tree, every rewrite with its graph before and after, missed fusions with
their reasons, the verification, precisions, times and memory. Several models get an overview, and runs of one model at
different times its history. A record of `locate` is shown with the run of its files, or on a page of its own. Nothing
is computed here: every number comes from a record.

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sardonyx.cli.console import put
from sardonyx.cli.options import FORCE, OUTPUT, Option, argument, output, switch
from sardonyx.cli.verb import Given, Verb
from sardonyx.reporting import formatting

if TYPE_CHECKING:
    from sardonyx.reporting.report import Report


def _run(given: Given) -> int:
    from sardonyx.reporting.report import format_of
    from sardonyx.reporting.report import report as run_report  # renders, so it is loaded only when needed

    form = format_of(given.output, given.format)
    path = given.output or (None if form == "markdown" else _beside(given.sources[0], form))
    result = run_report(given.sources, path, format=form, compare=given.compare, force=given.force)
    put(result.text if path is None else f"{_sentence(result, path)}\n")
    return 0


def _beside(source: Path, form: str) -> Path:
    folder = source if source.is_dir() else source.parent
    return folder / ("pictures" if form == "svg" else "report.html")


def _sentence(result: Report, path: Path) -> str:
    """Return one line with the models, the path and its size."""
    octets = sum(len(text.encode()) for text in result.files.values())
    labels = [*(bundle.label for bundle in (*result.bundles, *result.quantizations)), *result.locations]
    models = ", ".join(map(formatting.name, labels[:3]))
    more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    files = f" in {formatting.plural(len(result.files), 'file')}" if result.format == "svg" else ""
    return f"{models}{more} → {formatting.visible(str(path))} ({formatting.size(octets)}{files})"


VERB = Verb(
    options=(
        argument("sources", "SOURCE...", "Records, or folders with records.", list[Path]),
        output("report.html beside the run; Markdown: standard output"),
        Option("format", None, "Format of the report; svg: a folder of pictures.", group=OUTPUT,
            type=Literal["html", "markdown", "svg"], default=None, none="by the name of -o"),
        switch("compare", "Show what changed between two runs."),
        FORCE,
    ),
    run=_run,
)  # fmt: skip
