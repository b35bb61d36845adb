"""`sardonyx.report`: what a run did, as a page to read and to send, as Markdown for a pull request, or as pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from sardonyx.errors import OutputError, UsageError
from sardonyx.reporting.page import render_page
from sardonyx.reporting.page.overview import compared
from sardonyx.reporting.plots.files import pictures
from sardonyx.reporting.pull_request import pull_request, pull_request_of_two
from sardonyx.reporting.record_files import HOW, Source, piles
from sardonyx.reporting.record_files import run_bundles as joined
from sardonyx.reporting.run_bundle import RunBundle

Format = Literal["html", "markdown", "svg"]
_SUFFIXES: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


@dataclass(frozen=True)
class Report:
    """What was rendered, whether or not it was written."""

    format: Format
    files: dict[str, str]  # text by name; pictures are several
    bundles: tuple[RunBundle, ...]  # the models that are shown

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
    if output is not None:
        _check(Path(output), wanted, force=force)
    given = [cast("Source", sources)] if isinstance(sources, (str, Path)) or not _several(sources) else sources
    if not given:
        raise UsageError("there is nothing to report", hint=HOW)
    found = joined(piles(cast("Sequence[Source]", given)))
    if compare and len(found) != 2:
        raise UsageError(f"two runs can be compared, not {len(found)}", hint="name the records of two runs")
    made = Report(wanted, _rendered(found, wanted, compare=compare), tuple(found))
    if output is not None:
        _write(made, Path(output), force=force)
    return made


def _rendered(found: Sequence[RunBundle], wanted: Format, *, compare: bool) -> dict[str, str]:
    """The text of each file by its name."""
    match wanted:
        case "html":
            first = compared(*found) if compare else None
            title = f"{found[0].label} → {found[1].label}" if compare else f"{len(found)} models"
            return {"report.html": render_page(found, title=title if len(found) > 1 else None, first=first)}
        case "markdown":
            return {"report.md": pull_request_of_two(*found) if compare else pull_request(found)}
        case "svg":
            if compare:
                raise UsageError("a comparison has no pictures of its own", hint="compare as html or as markdown")
            return _drawn(found)


def _drawn(found: Sequence[RunBundle]) -> dict[str, str]:
    """The pictures of one model, or those of each in a folder that is named after it."""
    if len(found) == 1:
        return pictures(found[0])
    return {
        f"{place}-{_plain(each.label)}/{name}": text
        for place, each in enumerate(found, 1)
        for name, text in pictures(each).items()
    }


def _plain(label: str) -> str:
    """A label as the name of a folder: names come from files, and may not lead out of it."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", label)[:60].strip("-") or "model"


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
        hint = 'name it .html or .md, or say `format="svg"` for a folder of pictures'
        raise UsageError(f"{output} does not say what it should be", hint=hint)
    return found


def _check(output: Path, wanted: Format, *, force: bool) -> None:
    """Refuse at once what could not be written after all the work."""
    from sardonyx.ir.io import check_free  # only where something is written: rendering needs nothing of ONNX

    if wanted != "svg":
        check_free(os.fspath(output), force=force)
    elif output.exists() and not output.is_dir():
        raise OutputError(f"{output} is a file", hint="pictures go into a folder: name one")


def _write(made: Report, output: Path, *, force: bool) -> None:
    """Each file whole or not at all; folders are made where they are missing."""
    from sardonyx.ir.io import explained, write_whole

    if made.format != "svg":
        write_whole(os.fspath(output), made.text.encode(), force=force)
        return
    taken = next((name for name in made.files if (output / name).exists()), None)
    if taken is not None and not force:
        raise OutputError(f"{output / taken} exists", hint="choose another folder, or overwrite with `force=True`")
    for name, text in made.files.items():
        with explained(str(output)):
            (output / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(output / name), text.encode(), force=force)


def _several(sources: object) -> bool:
    return isinstance(sources, Sequence) and not isinstance(sources, (str, bytes))
