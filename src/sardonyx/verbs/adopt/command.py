"""Tag a model that another tool exported or changed.

Example:
  sardonyx adopt foreign.onnx -o tagged.onnx
  sardonyx adopt foreign.onnx --json | jq .coverage
  sardonyx adopt foreign.onnx -o tagged.onnx --tag-attributes

Tags every node with the module it comes from, as read from torch's own metadata, from scoped names such as
/encoder/layer.0/attention/self/MatMul, or from __ attributes that another tool kept. A node without any of these
inherits the module of its consumers, or else of its producers. Without --output, nothing is written: the command shows
which tags it would write.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

from __future__ import annotations

from sardonyx.cli.options import FORCE, JSON, MODEL, QUIET, TAG_ATTRIBUTES, output
from sardonyx.cli.verb import Verb, later
from sardonyx.reporting.inspection import adoption_document

VERB = Verb(
    of=("adopt",),
    options=(MODEL, output("nothing is written"), TAG_ATTRIBUTES, FORCE, JSON, QUIET),
    record="adoption",
    document=lambda adoption, _: adoption_document(adoption),
    sentence=later("sardonyx.reporting.inspection:adoption_sentence"),
)  # fmt: skip
