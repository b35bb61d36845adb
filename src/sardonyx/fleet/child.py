"""The child process that computes: one piece of work after another, until the process that started it ends."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct

from sardonyx.errors import SardonyxError
from sardonyx.fleet.work import Answer, Work
from sardonyx.runtime.remote import free_memory
from sardonyx.runtime.worker_process import serve


class Reply(Struct, frozen=True):
    """The answer of a piece of work, or the reason why there is none."""

    answer: Answer | None
    reason: str | None = None


def compute(request: tuple[Work, Path] | None) -> bytes:
    """Compute a piece of work and return a Reply as JSON, so that answers are equal to those that were stored.

    None is answered at once: it tells that the process has started.
    """
    if request is None:
        return b""
    work, folder = request
    try:
        return msgspec.json.encode(Reply(work.compute(folder)))
    except BaseException as error:  # sys.exit and KeyboardInterrupt too: work that fails does not stop other work
        return msgspec.json.encode(Reply(None, reason_of(error)))
    finally:
        free_memory()  # so that the next work does not depend on this one


def reason_of(error: BaseException) -> str:
    """Return in one line what went wrong; for an error that is not ours, also where."""
    if isinstance(error, SardonyxError):
        text = error.message
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
    return " ".join(text.split())


if __name__ == "__main__":
    serve(compute)
