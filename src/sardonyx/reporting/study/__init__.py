"""A study as files: its tables, its pictures, and the page of findings. Pure functions of the record."""

from __future__ import annotations

from sardonyx.records.study import Study
from sardonyx.reporting.plots.study import pictures
from sardonyx.reporting.study.documents import findings_document, study_document, study_sentence, table_files
from sardonyx.reporting.writers import markdown

__all__ = ["files", "study_document", "study_sentence"]


def files(study: Study) -> dict[str, bytes]:
    """Return all files of a study's folder besides its record, by their path within it."""
    contents = {f"tables/{name}": data for table in study.tables for name, data in table_files(table)}
    drawn = pictures(study)
    contents |= {f"pictures/{name}": picture.svg.encode() for name, picture in drawn.items()}
    page = findings_document(study, {name: picture.title for name, picture in drawn.items()})
    return contents | {"findings.md": markdown.write(page).encode()}
