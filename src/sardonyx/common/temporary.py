"""Temporary folders whose names say which process owns them, so that those of killed processes can be deleted."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import weakref

from sardonyx.common.atomic_write import draft_name, is_abandoned, is_draft

_NAME = "sardonyx"


class TemporaryFolder:
    """An empty folder, deleted with this object, at the end of a `with`, or when the process ends.

    Only the process that made it deletes it: a fork also has the object and may end first.
    """

    def __init__(self) -> None:
        owned = draft_name(_NAME).removesuffix(".part")
        self.name = tempfile.mkdtemp(prefix=f"{owned}-", suffix=".part")
        self._delete = weakref.finalize(self, _delete, self.name, os.getpid())

    def cleanup(self) -> None:
        """Delete the folder now."""
        self._delete()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _delete(path: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def temporary_folder() -> TemporaryFolder:
    """Make an empty folder in TMPDIR.

    A process that is killed leaves its folders. The first call in another process deletes them.
    """
    _remove_abandoned(tempfile.gettempdir())
    return TemporaryFolder()


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
