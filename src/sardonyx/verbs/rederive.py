"""Make an optimized file again and compare the bytes.

Example:
  sardonyx rederive runs/today
  sardonyx rederive small.onnx --source model.onnx

Optimizes the source again with the recorded options and compares every byte with the result. The options are those of
the record, of a statement of `attest`, or in the metadata of the file.

Exit: 0 the same bytes, 1 failed, 2 usage, 3 other bytes.
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.cli.console import put
from sardonyx.cli.options import argument, file
from sardonyx.cli.verb import Given, Verb
from sardonyx.errors import VerificationFailed
from sardonyx.reporting.formatting import one_line


def _run(given: Given) -> int:
    found = given.call()
    what = "the same bytes" if found.same else f"other bytes ({found.difference})"
    put(one_line(f"{what}: {found.result} from {found.source}") + "\n")
    return 0 if found.same else VerificationFailed.exit_code


VERB = Verb(
    of=("rederive",),
    options=(
        argument("result", "RESULT", "An optimized file, its record, run folder or statement.", Path, checked=True),
        file("source", "The file that was optimized.", none="as the record says"),
    ),
    run=_run,
)  # fmt: skip
