"""A study in a few lines of text, for the terminal: its findings and what failed; the folder has the rest."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.records.study import Study
from sardonyx.reporting import formatting
from sardonyx.reporting.options import View

_FAILURES = 5  # told one by one unless verbose


def render_study(study: Study, view: View) -> str:
    """What was found, what is open, what failed."""
    return "\n".join(_lines(study, view)) + "\n"


def study_sentence(study: Study) -> str:
    """The study in a sentence."""
    models, tables = formatting.plural(len(study.models), "model"), formatting.plural(len(study.tables), "table")
    failed = f", {formatting.plural(len(study.failures), 'cell')} failed" if study.failures else ""
    return f"{models}, {formatting.plural(study.cells, 'cell')}, {tables}{failed}"


def _lines(study: Study, view: View) -> Iterator[str]:
    style = view.style
    yield style.strong(study_sentence(study))
    for title, certain in (("The data support", True), ("The data do not settle", False)):
        found = [each for each in study.findings if each.certain is certain]
        if found:
            yield ""
            yield style.strong(title)
        for each in found:
            yield f"  {formatting.one_line(each.text)} {style.faint(f'[{formatting.name(each.table)}]')}"
    if study.failures:
        yield ""
        yield style.bad(f"{formatting.plural(len(study.failures), 'cell')} failed")
        for each in study.failures if view.verbose else study.failures[:_FAILURES]:
            where = (
                f"{formatting.name(each.experiment)}, {formatting.name(each.model)}" if each.model else each.experiment
            )
            yield f"  {where}: {formatting.one_line(each.reason)}"
        if len(study.failures) > _FAILURES and not view.verbose:
            yield style.faint(f"  and {formatting.count(len(study.failures) - _FAILURES)} more; -v shows them")
    for note in study.notes:
        yield style.faint(formatting.one_line(note))
