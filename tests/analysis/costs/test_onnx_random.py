"""Programs of random graphs: nothing is read before it is written, and every size matches a real run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphs
from narrowing import integer
from sardonyx.ir.origins import tagged
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.program import OpKind, Program, Store

_HANDED_ON = {"Reshape", "Identity"}


def run(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """All that a model computes, by name."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    del seen.graph.output[:]
    names = [name for node in model.graph.node for name in node.output]
    seen.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names)
    feeds = {each.name: np.ones(graphs.SHAPE, np.float32) for each in model.graph.input}
    return dict(zip(names, map(np.asarray, ReferenceEvaluator(seen).run(None, feeds)), strict=True))


def check_order(program: Program) -> None:
    """Everything is written once, before it is read, and memory begins with its first writer."""
    there = {*program.inputs}
    there |= {i for i, value in enumerate(program.values) if program.buffers[value.buffer].store is Store.WEIGHT}
    for step, operation in enumerate(program.operations):
        assert there.issuperset(operation.reads)
        assert len({*operation.reads}) == len(operation.reads)
        for written in operation.writes:
            value = program.values[written]
            shares = operation.operator in _HANDED_ON
            assert shares == (value.buffer == program.values[operation.reads[0]].buffer)
            assert shares or program.buffers[value.buffer].born == step
            assert value.bytes == program.buffers[value.buffer].bytes
        there |= {*operation.writes}
    assert there.issuperset(program.outputs)


@pytest.mark.slow
@settings(max_examples=40)
@given(graphs.models())
def test_random_graphs(model: onnx.ModelProto):
    program, results = program_of(tagged(model).model), run(model)
    check_order(program)
    assert program.notes == ()
    assert len({each.name for each in program.operations}) == len(program.operations)
    assert len(program.operations) == sum(node.op_type != "Constant" for node in model.graph.node)
    for value in program.values:
        if value.name in results:
            assert (value.shape, value.dtype) == (results[value.name].shape, results[value.name].dtype.name)
    for each in program.operations:
        made = program.values[each.writes[0]]
        assert (integer(each.macs) > 0) == (each.kind is OpKind.MATMUL)
        if each.kind is OpKind.MATMUL:
            left = program.values[each.reads[0]]
            assert each.macs == results[made.name].size * integer(left.shape[-1])
