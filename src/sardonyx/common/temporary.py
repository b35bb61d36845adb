"""Temporary folders whose names say which process owns them, so that those of killed processes can be deleted."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile

from sardonyx.common.atomic_write import draft_name, is_abandoned, is_draft

_NAME = "sardonyx"


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Make an empty folder in TMPDIR; it is deleted with the returned object, or at the end of a `with`.

    A process that is killed leaves its folders. The first call in another process deletes them.
    """
    _remove_abandoned(tempfile.gettempdir())
    owned = draft_name(_NAME).removesuffix(".part")
    return tempfile.TemporaryDirectory(prefix=f"{owned}-", suffix=".part", ignore_cleanup_errors=True)


@functools.cache
def _remove_abandoned(place: str) -> None:
    """Delete the folders of processes that have ended, once for each place."""
    try:
        present = os.listdir(place)
    except PermissionError:  # a folder that may be written to, but not listed
        return
    for name in present:
        if name.startswith(f".{_NAME}.") and is_draft(name) and is_abandoned(name):
            shutil.rmtree(os.path.join(place, name), ignore_errors=True)
