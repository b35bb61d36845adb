"""Say how an optimized file was made, for others to sign.

Example:
  sardonyx attest runs/today -o small.onnx.intoto.json
  sardonyx attest small.onnx --source model.onnx

Writes an in-toto statement (v1) about a file that `optimize` wrote: the SHA-256 sums of the result and of its source,
the version, the options, and the certificate. Other programs sign it: docs/attest.md.

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

import json
from pathlib import Path

from sardonyx.cli.console import put
from sardonyx.cli.options import FORCE, argument, file, output
from sardonyx.cli.verb import Given, Verb
from sardonyx.common.atomic_write import write_whole


def _run(given: Given) -> int:
    given.check()
    text = json.dumps(given.call(), indent=2, ensure_ascii=False) + "\n"
    if given.output is None:
        put(text)
    else:
        write_whole(given.output, text.encode(), force=given.force)
    return 0


VERB = Verb(
    of=("attest",),
    options=(
        argument("result", "RESULT", "An optimized file, its record, or the folder of its run.", Path, checked=True),
        file("source", "The file that was optimized.", none="as the record says"),
        file("certificate", "The certificate of the result.", none="that of the run"),
        output("standard output"),
        FORCE,
    ),
    run=_run,
)  # fmt: skip
