"""Writes the small files of the command line whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sardonyx.errors import OutputError


def ensure_writable(path: Path, *, force: bool) -> None:
    """Find out before the work starts that a file cannot be written after it."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder", hint="name a file")
    if path.exists() and not force:
        raise OutputError(f"{path} already exists", hint="--force overwrites it")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise OutputError(f"the folder {folder} does not exist", hint="create it first")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"the folder {folder} cannot be written to", hint="choose another one, or its permissions")


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the file and rename into place."""
    target = path.resolve()
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            os.chmod(beside, 0o666 & ~_umask())
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", hint="is there space, and permission?") from error


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
