"""The page of findings: what the data of a study support, what they leave open, what failed, how it was measured.

Nothing is concluded here: each sentence comes from the record with the table it rests on, and how long the study took
or what it kept from an earlier run is not said, so that the same answers give the same page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from sardonyx.records.study import Finding, Study, Table
from sardonyx.reporting import formatting
from sardonyx.reporting.markdown import escaped, table

_LONGEST_LIST = 12  # models named in a line


def findings_page(study: Study, pictures: Mapping[str, str]) -> str:
    """The page; `pictures` are titles by file name."""
    tables = {each.name: each for each in study.tables}
    certain = [each for each in study.findings if each.certain]
    open_ = [each for each in study.findings if not each.certain]
    blocks = [
        "# Findings",
        f"{formatting.plural(len(study.models), 'model')}: {_named(study.models)}.",
        *_section("What the data support", _sentences(certain, tables), "Nothing."),
        *_section("What the data do not settle", _sentences(open_, tables)),
        *(f"![{escaped(title)}](pictures/{name})" for name, title in pictures.items()),
        *_failures(study),
        *_measured(study),
        *_section("Tables", [f"- {_link(each)}: {_rows(each)}" for each in study.tables]),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(title: str, lines: Iterable[str], empty: str = "") -> list[str]:
    text = "\n".join(lines) or empty
    return [f"## {title}", text] if text else []


def _sentences(findings: Iterable[Finding], tables: Mapping[str, Table]) -> list[str]:
    lines: list[str] = []
    for each in findings:
        rests_on = tables.get(each.table)
        source = f" ({_link(rests_on)}, {_rows(rests_on)})" if rests_on is not None else ""
        lines.append(f"- {escaped(each.text)}{source}")
    return lines


def _link(each: Table) -> str:
    return f"[{escaped(each.title)}](tables/{each.name}.md)"


def _rows(each: Table) -> str:
    return formatting.plural(len(each.rows), "row")


def _named(models: Iterable[str]) -> str:
    names = [escaped(formatting.name(each)) for each in models]
    rest = len(names) - _LONGEST_LIST
    return ", ".join(names[:_LONGEST_LIST]) + (f" and {formatting.count(rest)} more" if rest > 0 else "")


def _failures(study: Study) -> list[str]:
    if not study.failures:
        return []
    groups = Counter((each.experiment, each.reason) for each in study.failures)
    models = {key: [each.model for each in study.failures if (each.experiment, each.reason) == key] for key in groups}
    lines = [(experiment, ", ".join(dict.fromkeys(models[experiment, reason])), formatting.count(count), reason)
             for (experiment, reason), count in sorted(groups.items())]  # fmt: skip
    said = f"{formatting.plural(len(study.failures), 'cell')} could not be computed and are in no number above."
    return ["## What could not be run", said, table(("experiment", "models", "cells", "why"), lines)]


def _measured(study: Study) -> list[str]:
    here = study.environment
    versions = ", ".join(f"{name} {version}" for name, version in sorted(here.packages.items()))
    facts = [
        f"Sardonyx {here.sardonyx}, Python {here.python}, {versions}",
        f"{here.platform}, {formatting.plural(here.cpus, 'CPU')}",
        "; ".join(f"{name} {_plainly(value)}" for name, value in sorted(study.options.items())),
        *study.notes,
    ]
    lines = [f"- {escaped(fact)}" for fact in facts if fact]
    lines += [f"- {_link(each)}: {escaped(each.about)}" + (" Times are of this machine." if each.timed else "")
              for each in study.tables if each.about]  # fmt: skip
    return _section("How it was measured", lines)


def _plainly(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, cast("list[Any]", value))) or "none"
    return "not given" if value is None else str(value)
