"""The worker process of a study: computes one cell after another."""

from __future__ import annotations

import os
import time
import traceback

import msgspec

from sardonyx.errors import SardonyxError
from sardonyx.runtime.worker_process import serve
from sardonyx.studies.experiment import Cell, Experiment, Outcome, Subject

Task = tuple[Experiment, Cell, Subject]


def compute(task: Task) -> bytes:
    """Run one cell and return its outcome as JSON; an exception becomes the reason of the outcome."""
    experiment, cell, subject = task
    start = time.perf_counter()
    answer, reason = None, None
    try:
        answer = experiment.run(cell, subject)
        msgspec.json.encode(answer)
    except SardonyxError as error:
        answer, reason = None, error.message
    except Exception as error:  # a failed cell does not stop the study; the reason says where it failed
        last = traceback.extract_tb(error.__traceback__)[-1]
        answer, reason = None, f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
    reason = " ".join(reason.split()) if reason else None
    return msgspec.json.encode(Outcome(answer, reason, time.perf_counter() - start))


if __name__ == "__main__":
    serve(compute)
