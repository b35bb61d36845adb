"""Wrong results of earlier versions, refused in exact arithmetic or by running them.

    python benchmarks/wrong_results.py [ARCHIVE.zip]

The archive (tests/data/wrong_results.zip) has NAME/before.onnx, a small model; NAME/after.onnx, what an earlier version
of `optimize` made of it and was found to be wrong; and NAME/about.json with the pass, its accuracy class and why. A
pair is decided as if it were one rewrite of the whole model; both branches of every If are taken, and Loops run two
steps. What exact arithmetic leaves open is run, as `optimize` does.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.records.run import Accuracy
from sardonyx.verification.exact_check import Claim, decide
from sardonyx.verification.rewrite_check import Check, State
from sardonyx.verification.rewrite_models import Border, Excerpt, SmallModel

ARCHIVE = Path(__file__).parent.parent / "tests" / "data" / "wrong_results.zip"


class WholeModels(Excerpt):
    """Two models as the two sides of one rewrite, with all inputs as the border."""

    def __init__(self, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
        self.before, self.after = _side(before, "old"), _side(after, "new")
        self.exact = self.after
        facts = Facts(io.from_proto(before))
        stored = {each.name for each in before.graph.initializer}
        inputs = [value for value in facts.model.graph.inputs if value.name not in stored]
        self.border = tuple(
            Border(v.name or "", facts.dtype(v), facts.shape(v), None, hides="mask" in (v.name or "")) for v in inputs
        )
        self.results = len(before.graph.output)
        self.folds = (False,) * self.results
        self.has_parameters = False
        self.operators = frozenset(node.op_type for side in (before, after) for node in side.graph.node)


def _side(model: onnx.ModelProto, prefix: str) -> SmallModel:
    """Return a model whose constants are nodes: bodies may use their names for other values."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    nodes = [onnx.helper.make_node("Constant", [], [each.name], value=each) for each in model.graph.initializer]
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend([*nodes, *model.graph.node])
    stored = [ir.serde.deserialize_tensor(each) for each in model.graph.initializer]
    return SmallModel(
        proto, {f"{prefix}{place}": each for place, each in enumerate(stored)}
    )  # values near them are tried


def reached(model: onnx.ModelProto, branch: bool) -> onnx.ModelProto:
    """Return a model in which every If takes this branch, and every Loop runs two steps."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    found = [_enter(changed.graph)]
    for name, value in (("taken branch", np.array(branch)), ("two steps", np.array(2))) if any(found) else ():
        changed.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return changed


def _enter(graph: onnx.GraphProto) -> bool:
    found = False
    for node in graph.node:
        if node.op_type == "If" or (node.op_type == "Loop" and node.input[0]):
            node.input[0] = "taken branch" if node.op_type == "If" else "two steps"
            found = True
        for attribute in node.attribute:
            found |= attribute.HasField("g") and _enter(attribute.g)
    return found


def outcome(before: onnx.ModelProto, after: onnx.ModelProto, accuracy: Accuracy) -> str:
    """Return how a pair is refused, or what is said of it instead."""
    said = ""
    for branch in (True, False):
        excerpt = WholeModels(reached(before, branch), reached(after, branch))
        decision = decide(excerpt)
        if decision.claim is Claim.UNEQUAL:
            return "refused in exact arithmetic"
        if Check(excerpt, accuracy, 1).outcome().state is State.FAILS:
            said = "refused by running it"
        said = said or decision.reason or decision.claim.value
    return said


def pairs(archive: Path) -> Iterator[tuple[str, onnx.ModelProto, onnx.ModelProto, dict[str, str]]]:
    """Yield the cases of an archive."""
    with zipfile.ZipFile(archive) as stored:
        for name in sorted({entry.partition("/")[0] for entry in stored.namelist()}):
            before, after = (
                onnx.load_model_from_string(stored.read(f"{name}/{side}.onnx")) for side in ("before", "after")
            )
            yield name, before, after, json.loads(stored.read(f"{name}/about.json"))


def main() -> None:
    """Print how each pair is refused."""
    archive = Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE
    for name, before, after, about in pairs(archive):
        said = outcome(before, after, Accuracy(about["accuracy"]))
        print(f"{said:32} {name:28} {about['pass']}", flush=True)


if __name__ == "__main__":
    main()
