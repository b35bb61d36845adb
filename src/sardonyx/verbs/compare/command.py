"""Show how two models differ, module by module.

Example:
  sardonyx compare model.onnx small.onnx
  sardonyx compare torchscript.onnx dynamo.onnx --depth 3
  sardonyx compare model.onnx small.onnx --json | jq '.moved[].after'

Lists operators that were added, removed, moved to another module, or got other attributes. Nodes are matched by name,
and the remaining ones by module, operator and order. Connections and weights are not compared: `sardonyx verify` checks
whether two models compute the same.

Exit: 0 done, 1 failed, 2 usage, 3 different with --exit-code, 4 gate not met.
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.cli.options import DEPTH, PRINTING, argument, switch
from sardonyx.cli.verb import Given, Verb, later
from sardonyx.errors import VerificationFailed


def _run(given: Given) -> int:
    given.check()
    comparison = given.call()
    differs = given.exit_code and not comparison.same
    return given.finish(comparison) or (VerificationFailed.exit_code if differs else 0)


VERB = Verb(
    of=("compare",),
    options=(
        argument("first", "FIRST", "An ONNX file.", Path, checked=True),
        argument("second", "SECOND", "An ONNX file.", Path, checked=True),
        DEPTH,
        switch("exit_code", "Exit with 3 if the two differ."),
        *PRINTING,
    ),
    record="comparison",
    document=later("sardonyx.verbs.compare.view:comparison_document"),
    sentence=later("sardonyx.verbs.compare.view:comparison_sentence"),
    run=_run,
)  # fmt: skip
