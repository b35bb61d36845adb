"""Files that commands write besides models: written atomically, and overwritten only with --force."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sardonyx import atomic_write
from sardonyx.errors import UsageError
from sardonyx.records.base import Record
from sardonyx.reporting.formatting import visible


def check_destinations(output: Path, record: Path | None, *, force: bool, folder: bool = False) -> None:
    """Check before any work that the model and the record can be written, to different files."""
    check_apart(record=record, output=output)
    if folder:
        atomic_write.check_free_folder(str(output), force=force)
    check_free(None if folder else output, record, force=force)


def check_apart(**paths: Path | None) -> None:
    """Raise an error if two options name the same file."""
    options: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = options.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"--{other} and --{option} name the same file", hint="give them different names")


def check_free(*paths: Path | None, force: bool) -> None:
    """Check before any work that files can be written."""
    for path in filter(None, paths):
        atomic_write.check_free(str(path), force=force)


def write_record(path: Path | None, record: Record, *, force: bool) -> None:
    """Write a record as indented JSON if the user asked for one; otherwise it is not even encoded."""
    if path is not None:
        write_whole(path, msgspec.json.format(record.to_json(), indent=2) + b"\n", force=force)


def write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file atomically: to a temporary file that replaces it when complete."""
    atomic_write.write_whole(str(path), data, force=force)


def results_line(folder: Path | None) -> str:
    """Return the line that names the folder of --run, empty without one."""
    if folder is None:
        return ""
    return f"results in {visible(str(folder))} (open {visible(str(folder / 'report.html'))})\n"
