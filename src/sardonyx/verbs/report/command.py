"""Write a page about a model, or a report about one or more runs.

Example:
  sardonyx report model.onnx --open
  sardonyx report run.json -o report.html
  sardonyx report runs/bert runs/resnet runs/llama -o overview.html
  sardonyx report nightly/* -o history.html
  sardonyx report today.json --baseline yesterday.json -o changed.html
  sardonyx report run.json --format markdown >> "$GITHUB_STEP_SUMMARY"

SOURCE is an ONNX file, whoever exported it: the page has its graph, modules, operators, costs, memory, and what
optimizing would rewrite. Nothing is run. `sardonyx model.onnx` is short for it. Or SOURCE is a record of `optimize`
or of `quantize`, or a folder that `optimize --run` wrote, with records of the same files beside it: the page has the
verdict, every rewrite, times and memory. Several models get an overview, and runs of one model its history.

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sardonyx.cli.console import note, progress, put
from sardonyx.cli.options import FORCE, OUTPUT, Option, argument, file, output, switch
from sardonyx.cli.verb import Given, Verb
from sardonyx.common.atomic_write import check_free
from sardonyx.errors import UsageError
from sardonyx.reporting import formatting

if TYPE_CHECKING:
    from sardonyx.reporting.report import Report


def _run(given: Given) -> int:
    from sardonyx.verbs.report.model_page import is_model  # renders, so it is loaded only when needed

    models = [source for source in given.sources if is_model(source)]
    if models:
        return _report_models(given, models)
    from sardonyx.reporting.report import format_of
    from sardonyx.reporting.report import report as run_report

    form = format_of(given.output, given.format)
    path = given.output or (None if form == "markdown" else _beside(given.sources[0], form))
    if given.open and (form == "svg" or path is None):
        raise UsageError("--open shows a page", hint="leave out --format, or name a page with -o")
    sources = given.sources if given.baseline is None else [given.baseline, *given.sources]
    result = run_report(sources, path, format=form, compare=given.baseline is not None, force=given.force)
    put(result.text if path is None else f"{_sentence(result, path)}\n")
    _open(path, asked=given.open)
    return 0


def _report_models(given: Given, models: list[Path]) -> int:
    """Write the page of ONNX files."""
    from sardonyx.reporting.report import format_of
    from sardonyx.verbs.report.model_page import write_page

    if len(models) < len(given.sources):
        raise UsageError("a report is about models or about records, not both", hint="run the command for each")
    if given.baseline is not None:
        raise UsageError("--baseline is for records", hint="`sardonyx compare` compares two models")
    if format_of(given.output, given.format) != "html":
        raise UsageError("the report of a model is a page", hint="`sardonyx inspect` prints text and JSON")
    page = given.output or models[0].with_suffix(".html")
    check_free(page, force=given.force)
    with progress(shown=True) as report:
        bundles = write_page(models, page, force=given.force, progress=report)
    labels = ", ".join(formatting.name(bundle.label) for bundle in bundles)
    put(f"{labels} → {formatting.visible(str(page))} ({formatting.size(page.stat().st_size)})\n")
    _open(page, asked=given.open)
    return 0


def _open(page: Path | None, *, asked: bool) -> None:
    """Show a page in a browser."""
    if page is None or not asked:
        return
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"note: no browser was found; open {formatting.visible(str(page))} yourself")


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
        argument("sources", "SOURCE...", "ONNX files, records, or folders with records.", list[Path], checked=True),
        output("MODEL.html, or report.html beside the run; Markdown: standard output"),
        Option("format", None, "Format of the report; svg: a folder of pictures.", group=OUTPUT,
            type=Literal["html", "markdown", "svg"], default=None, none="by the name of -o"),
        file("baseline", "An earlier record to compare with."),
        switch("open", "Open the page in a browser."),
        FORCE,
    ),
    run=_run,
)  # fmt: skip
