"""Documents that commands write beside models: whole or not at all, and never over another without being told to."""

from __future__ import annotations

from pathlib import Path


def check_free(*paths: Path | None, force: bool) -> None:
    """Refuse at once what could not be written after all the work."""
    from sardonyx.graph.io import check_free as check

    for path in filter(None, paths):
        check(str(path), force=force)


def write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file beside its place and put it there when it is complete."""
    from sardonyx.graph.io import Draft, explained

    with explained(str(path)), Draft(str(path)) as draft:
        with open(draft.fileno(), "wb", closefd=False) as stream:
            stream.write(data)
        draft.commit(replace=force)
