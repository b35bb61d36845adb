"""A process that computes cells, one after another, as they are handed to it."""

from __future__ import annotations

import os
import time
import traceback

import msgspec

from sardonyx.errors import SardonyxError
from sardonyx.runtime.worker_process import serve
from sardonyx.studies.experiment import Cell, Experiment, Outcome, Subject

Order = tuple[Experiment, Cell, Subject]


def computed(order: Order) -> bytes:
    """Run one cell; whatever goes wrong in it becomes its reason. The outcome as JSON, which is how it is kept."""
    experiment, cell, subject = order
    began = time.perf_counter()
    answer, reason = None, None
    try:
        answer = experiment.run(cell, subject)
        msgspec.json.encode(answer)
    except SardonyxError as error:
        answer, reason = None, error.message
    except Exception as error:  # one cell's fault is not the study's; where it was is in the reason
        last = traceback.extract_tb(error.__traceback__)[-1]
        answer, reason = None, f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
    reason = " ".join(reason.split()) if reason else None
    return msgspec.json.encode(Outcome(answer, reason, time.perf_counter() - began))


if __name__ == "__main__":
    serve(computed)
