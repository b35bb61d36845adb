"""Documents that commands write beside models: whole or not at all, and never over another without being told to."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sardonyx.errors import UsageError


def check_destinations(output: Path, record: Path | None, *, force: bool, folder: bool = False) -> None:
    """Refuse a record that would take the place of the model, and what could not be written after all the work."""
    check_apart(record=record, output=output)
    if folder:
        from sardonyx.ir.io import check_free_folder

        check_free_folder(str(output), force=force)
    check_free(None if folder else output, record, force=force)


def check_apart(**paths: Path | None) -> None:
    """Refuse options that name one file between them."""
    taken: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise UsageError(f"--{other} and --{option} name the same file", hint="give them different names")


def check_free(*paths: Path | None, force: bool) -> None:
    """Refuse at once what could not be written after all the work."""
    from sardonyx.ir.io import check_free as check

    for path in filter(None, paths):
        check(str(path), force=force)


def write_record(path: Path | None, record: bytes, *, force: bool) -> None:
    """Write a record where one was asked for, laid out for reading."""
    if path is not None:
        write_whole(path, msgspec.json.format(record, indent=2) + b"\n", force=force)


def write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file beside its place and put it there when it is complete."""
    from sardonyx.ir.io import write_whole as write

    write(str(path), data, force=force)
