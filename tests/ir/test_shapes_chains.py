"""The size arithmetic that exporters write before every view is removed by the passes, with all dims dynamic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from sardonyx import runtime
from sardonyx.ir import io, origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes import ALL


def chains(model: ir.Model, op_type: str) -> Iterator[ir.Node]:
    """Views whose target is computed from the shape of some value."""
    for node in model.graph:
        if node.op_type == op_type and node.inputs[1] is not None:
            left, seen = [node.inputs[1].producer()], set[ir.Node]()
            while left:
                producer = left.pop()
                if producer is None or producer in seen:
                    continue
                if producer.op_type == "Shape":
                    yield node
                    break
                seen.add(producer)
                left += [value.producer() for value in producer.inputs if value is not None]


def optimized(path: Path) -> tuple[ir.Model, ir.Model]:
    """A model before and after the portable passes."""
    before, after = io.load(path), io.load(path)
    origins.attach(after)
    passes = [each for each in ALL if "portable" in each.targets]
    Rewriter(Facts(after, evaluate=runtime.evaluate), passes).run()
    return before, after


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_no_reshape_depends_on_a_computed_size(name: str, small_model: Callable[[str, str], Path]) -> None:
    """Batch and length are dynamic, and no view between the layers reads them at run time."""
    before, after = optimized(small_model(name, "torchscript"))
    assert len(list(chains(before, "Reshape"))) >= 8  # four a layer
    assert not list(chains(after, "Reshape"))
    asked = sum(node.op_type == "Shape" for node in before.graph)
    left = [node for node in after.graph if node.op_type == "Shape"]
    assert asked >= 9
    assert len(left) <= 2  # one for positions, one for a value with the size of the batch
    assert [str(value.shape) for value in after.graph.inputs] == [str(value.shape) for value in before.graph.inputs]
    assert [str(value.shape) for value in after.graph.outputs] == [str(value.shape) for value in before.graph.outputs]
    assert any(isinstance(dim, ir.SymbolicDim) for value in after.graph.outputs for dim in value.shape or ())
