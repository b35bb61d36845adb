"""A study as files: its tables, its pictures, and the page of findings. Pure functions of the record."""

from __future__ import annotations

from sardonyx.records.study import Study
from sardonyx.reporting.study.page import findings_page
from sardonyx.reporting.study.plots import pictures
from sardonyx.reporting.study.tables import table_files
from sardonyx.reporting.study.terminal import render_study, study_sentence

__all__ = ["files", "render_study", "study_sentence"]


def files(study: Study) -> dict[str, bytes]:
    """All files of a study's folder besides its record, by their path within it."""
    found = {f"tables/{name}": data for each in study.tables for name, data in table_files(each)}
    drawn = pictures(study)
    found |= {f"pictures/{name}": picture.svg.encode() for name, picture in drawn.items()}
    page = findings_page(study, {name: picture.title for name, picture in drawn.items()})
    return found | {"findings.md": page.encode()}
