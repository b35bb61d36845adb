"""A study in a few lines of text, for the terminal: its findings and what failed; the folder has the rest."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.rendering import words
from sardonyx.rendering.view import View
from sardonyx.study_record import Study

_FAILURES = 5  # told one by one unless verbose


def render_study(study: Study, view: View) -> str:
    """What was found, what is open, what failed."""
    return "\n".join(_lines(study, view)) + "\n"


def study_sentence(study: Study) -> str:
    """The study in a sentence."""
    models, tables = words.plural(len(study.models), "model"), words.plural(len(study.tables), "table")
    failed = f", {words.plural(len(study.failures), 'cell')} failed" if study.failures else ""
    return f"{models}, {words.plural(study.cells, 'cell')}, {tables}{failed}"


def _lines(study: Study, view: View) -> Iterator[str]:
    style = view.style
    yield style.strong(study_sentence(study))
    for title, certain in (("The data support", True), ("The data do not settle", False)):
        found = [each for each in study.findings if each.certain is certain]
        if found:
            yield ""
            yield style.strong(title)
        for each in found:
            yield f"  {words.one_line(each.text)} {style.faint(f'[{words.name(each.table)}]')}"
    if study.failures:
        yield ""
        yield style.bad(f"{words.plural(len(study.failures), 'cell')} failed")
        for each in study.failures if view.verbose else study.failures[:_FAILURES]:
            where = f"{words.name(each.experiment)}, {words.name(each.model)}" if each.model else each.experiment
            yield f"  {where}: {words.one_line(each.reason)}"
        if len(study.failures) > _FAILURES and not view.verbose:
            yield style.faint(f"  and {words.count(len(study.failures) - _FAILURES)} more; -v shows them")
    for note in study.notes:
        yield style.faint(words.one_line(note))
