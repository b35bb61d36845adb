"""Which pictures a study has: one for each table that somebody would rather see than read."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.study_record import Study


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and what it shows."""

    title: str
    svg: str


def pictures(study: Study) -> dict[str, Picture]:
    """Pictures by file name, of those tables that the study has."""
    return {}
