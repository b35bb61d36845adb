"""`sardonyx.report`: what a run did, as a page to read and to send, as Markdown for a pull request, or as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from sardonyx.errors import OutputError, UsageError
from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page import render_page
from sardonyx.reporting.gathering import Source, piles
from sardonyx.reporting.joining import dossiers as joined

Format = Literal["html", "markdown", "svg"]
_SUFFIXES: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


@dataclass(frozen=True)
class Report:
    """What was rendered, whether or not it was written."""

    format: Format
    files: dict[str, str]  # text by name; pictures are several
    dossiers: tuple[Dossier, ...]  # what is shown

    @property
    def text(self) -> str:
        """All of it, where it is one text."""
        return "".join(self.files.values())


def report(
    sources: Source | Sequence[Source],
    output: str | Path | None = None,
    *,
    format: Format | None = None,
    compare: bool = False,
    force: bool = False,
) -> Report:
    """Render what is known of one or more runs; nothing is computed, and every number comes from a record.

    Args:
        sources: a run, or a file or a folder that holds one; other records of the same files (of `bench`, `profile`,
            `analyze`, `export`) may stand beside it. Several runs get an overview.
        output: where to write; nothing is written where None. Pictures go into a folder.
        format: "html", "markdown" or "svg"; by the name of the output where None.
        compare: show what changed from the first run to the second.
        force: overwrite what exists.

    Raises:
        UsageError: there is no run in what was given, or the options contradict each other.
        OutputError: the output exists or cannot be written.
    """
    wanted = format_of(output, format)
    given = [cast("Source", sources)] if isinstance(sources, (str, Path)) or not _several(sources) else sources
    found = joined(piles(cast("Sequence[Source]", given)))
    made = Report(wanted, {"report.html": render_page(found)}, tuple(found))
    if output is not None:
        write(made, Path(output), force=force)
    return made


def format_of(output: str | Path | None, asked: str | None) -> Format:
    """What an output is to be.

    Raises:
        UsageError: for a format that there is not, or a name that says nothing.
    """
    if asked is not None:
        if asked not in get_args(Format):
            raise UsageError(f"there is no format {asked!r}", hint=f"one of {', '.join(get_args(Format))}")
        return cast("Format", asked)
    if output is None:
        return "html"
    found = _SUFFIXES.get(Path(output).suffix.lower())
    if found is None:
        hint = "name it .html or .md, or say --format svg for a folder of pictures"
        raise UsageError(f"{output} does not say what it should be", hint=hint)
    return found


def write(made: Report, output: Path, *, force: bool) -> None:
    """Write a report whole or not at all; pictures into a folder, which is made where it is missing."""
    from sardonyx.graph.io import check_free, explained, write_whole  # only here: rendering needs nothing of ONNX

    if made.format != "svg":
        check_free(os.fspath(output), force=force)
        write_whole(os.fspath(output), made.text.encode(), force=force)
        return
    if output.exists() and not output.is_dir():
        raise OutputError(f"{output} is a file", hint="pictures go into a folder: name one")
    for name in made.files:
        if not force and (output / name).exists():
            raise OutputError(f"{output / name} exists", hint="choose another folder, or overwrite with --force")
    with explained(str(output)):
        output.mkdir(parents=True, exist_ok=True)
    for name, text in made.files.items():
        write_whole(str(output / name), text.encode(), force=force)


def _several(sources: object) -> bool:
    return isinstance(sources, Sequence) and not isinstance(sources, (str, bytes))
