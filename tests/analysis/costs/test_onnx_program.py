"""ONNX files as programs: memory, modules, functions, control flow, and products that match the torch counter."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import models
import sardonyx
from narrowing import present
from sardonyx.errors import ModelError
from sardonyx.ir.origins import tagged
from sardonyx.ir.shapes.expr import Expr, total, value_of
from sardonyx.verbs.analyze.costs.onnx_program import program_of
from sardonyx.verbs.analyze.costs.program import OpKind, Program, Store

HEAD = '<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1, "local" : 1]>'


def read(text: str) -> Program:
    """The program of a graph in ONNX's text form."""
    return program_of(tagged(onnx.parser.parse_model(f"{HEAD}\n{text}")).model)


def macs(program: Program, **sizes: int) -> int:
    """All multiply-adds at these sizes."""
    return value_of(total(each.macs for each in program.operations), {**program.symbols, **sizes})


def by_name(program: Program) -> dict[str, Any]:
    """Values by name."""
    return {value.name: value for value in program.values}


def test_sizes_stay_symbolic():
    program = read("g (float[batch, 4] x, float[4, 6] w) => (float[batch, 6] y) { y = MatMul(x, w) }")
    (product,) = program.operations
    assert (product.operator, product.kind, repr(product.macs)) == ("MatMul", OpKind.MATMUL, "24*batch")
    assert program.symbols == {"batch": 1}
    assert macs(program, batch=5) == 120
    assert [program.values[each].name for each in (*program.inputs, *program.outputs)] == ["x", "w", "y"]
    assert repr(by_name(program)["y"].bytes) == "24*batch"
    assert program.notes == ()


def test_dims_without_a_name_get_one():
    program = read("g (float[?, 4] x) => (float[?, 4] y) { y = Relu(x) }")
    assert program.symbols == {"'x[0]'": 1}  # quoted, since it is no identifier
    assert repr(program.operations[0].other_flops) == "4*'x[0]'"


def test_reshaped_values_share_their_memory():
    program = read("""g (float[2, 6] x) => (float[12] e)
        <int64[1] flat = {12}, int64[1] axis = {0}> {
            a = Relu(x)
            b = Reshape(a, flat)
            c = Unsqueeze(b, axis)
            d = Squeeze(c, axis)
            e = Neg(d)
            t = Transpose(a)
        }""")
    values = by_name(program)
    assert values["a"].buffer == values["b"].buffer == values["c"].buffer == values["d"].buffer
    assert len({values[name].buffer for name in "xaet"}) == 4
    kinds = [each.kind for each in program.operations]
    assert kinds == [OpKind.ACTIVATION, OpKind.VIEW, OpKind.VIEW, OpKind.VIEW, OpKind.ARITHMETIC, OpKind.COPY]
    assert [program.buffers[values[name].buffer].born for name in "aet"] == [0, 4, 5]


def test_weights_are_counted_once_and_constants_are_weights():
    program = read("""g (float[2, 3] x) => (float[2, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            k = Constant <value_float = 2.0> ()
            a = MatMul(x, w)
            b = MatMul(a, w)
            y = Mul(b, k)
        }""")
    stored = {store: [b.bytes for b in program.buffers if b.store is store] for store in Store}
    assert stored == {Store.INPUT: [24], Store.WEIGHT: [36, 4], Store.ACTIVATION: [24, 24, 24]}
    assert [each.operator for each in program.operations] == ["MatMul", "MatMul", "Mul"]
    assert program.operations[0].reads[1] == program.operations[1].reads[1]


def test_a_value_read_twice_is_read_once():
    program = read("g (float[3, 3] x) => (float[3, 3] y) { y = MatMul(x, x) }")
    assert (program.operations[0].reads, macs(program)) == ((0,), 27)


FUNCTION = """
<domain: "local", opset_import: ["" : 20]> Twice <approximate> (a, w, left_out) => (b) {
    half = Constant <value_float = 0.5> ()
    h = Mul(a, half)
    c = MatMul(h, w)
    d = MatMul(c, w)
    b = Gelu <approximate : string = @approximate> (d)
}"""


def test_functions_are_inlined_at_every_call():
    program = read(f"""g (float[n, 3] x, float[5, 3] z) => (float[n, 3] y, float[5, 3] u)
        <float[3, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
            [one] y = local.Twice <approximate = "tanh"> (x, w)
            [two] u = local.Twice <approximate = "none"> (z, w)
        }}
        {FUNCTION}""")
    assert [each.operator for each in program.operations] == ["Mul", "MatMul", "MatMul", "Gelu"] * 2
    assert [repr(each.macs) for each in program.operations] == ["0", "9*n", "9*n", "0", "0", "45", "45", "0"]
    assert [repr(each.other_flops) for each in program.operations[3::4]] == ["24*n", "75"]
    assert len({each.name for each in program.operations}) == 8
    assert program.operations[0].name.startswith("one/")
    assert [program.values[each].name for each in program.outputs] == ["one/b", "two/b"]
    assert sum(buffer.store is Store.WEIGHT for buffer in program.buffers) == 2


def test_an_if_is_the_operations_of_its_more_expensive_branch():
    program = read("""g (bool c, float[n, 4] x, float[4, 4] w) => (float[m, 4] z) {
        [choice] y = If (c) <
            then_branch = a () => (float[k, 4] p) { s = Relu(x)  p = com.microsoft.Mystery(s, w) },
            else_branch = b () => (float[n, 4] q) { r = MatMul(x, w)  q = MatMul(r, w) }
        >
        z = Sigmoid(y)
    }""")
    assert [(each.operator, repr(each.macs)) for each in program.operations] == [
        ("MatMul", "16*n"), ("MatMul", "16*n"), ("Sigmoid", "0"),
    ]  # fmt: skip
    product, other, sigmoid = program.operations
    assert [program.values[each].name for each in product.reads] == ["x", "w"]
    assert sigmoid.reads == other.writes
    assert repr(by_name(program)["z"].bytes) == "16*n"  # the size of the branch, not the one that the If declares
    assert program.notes == ("counted as the more expensive branch (1): choice",)


def test_an_if_in_a_loop_costs_its_more_expensive_branch_and_reads_the_values_of_both():
    program = read("""g (bool c, float[3, 3] x, float[3, 3] w, float[3] v) => (float[3, 3] y)
        <int64 five = {5}, bool on = {1}> {
            [turning] y = Loop (five, on, x) <
                body = b (int64 i, bool d, float[3, 3] s) => (bool k, float[3, 3] t) {
                    k = Identity(d)
                    [choice] t = If (c) <
                        then_branch = then () => (float[3, 3] p) { p = Add(s, v) },
                        else_branch = other () => (float[3, 3] q) { q = MatMul(s, w) }
                    >
                }
            >
    }""")
    (turning,) = program.operations
    assert repr(turning.macs) == str(5 * 27)
    assert {"x", "w", "v"} <= {program.values[each].name for each in turning.reads}
    assert program.notes == ("turning: counted as 5 iterations", "counted as the more expensive branch (1): choice")


def _loop(turns: str) -> Program:
    return read(f"""g (float[3, 3] x, int64 many) => (float[3, 3] y) <int64 five = {{5}}, bool on = {{1}}> {{
        [turning] y = Loop ({turns}, on, x) <
            body = b (int64 i, bool c, float[3, 3] s) => (bool k, float[3, 3] t) {{ k = Identity(c)  t = MatMul(s, s) }}
        >
    }}""")


def test_a_loop_costs_all_iterations_where_their_number_is_known():
    assert (macs(_loop("five")), _loop("five").notes) == (5 * 27, ("turning: counted as 5 iterations",))
    assert macs(_loop("many")) == 27
    assert _loop("many").notes == ("turning: counted as 1 iteration, since the number is unknown",)


def test_a_scan_costs_as_many_iterations_as_its_input_has():
    program = read("""g (float[3, 3] x, float[n, 3] z) => (float[3, 3] y) {
        [going] y = Scan <num_scan_inputs = 1,
            body = b (float[3, 3] s, float[3] row) => (float[3, 3] t) { r = MatMul(s, s)  t = Add(r, row) }
        > (x, z)
    }""")
    assert repr(program.operations[0].macs) == "27*n"
    assert repr(program.operations[0].other_flops) == "9*n"


def test_a_value_without_a_producer_is_refused():
    model = tagged(
        onnx.parser.parse_model(f"{HEAD} g (float[3] x) => (float[3] y) {{ a = Neg(x)  y = Relu(a) }}")
    ).model
    model.graph.remove(model.graph.node(0))
    with pytest.raises(ModelError, match="a is read before it is computed"):
        program_of(model)


def test_unknown_costs_are_reported():
    program = read("g (float[3] x) => (float[k] y) { i = NonZero(x)  y = com.microsoft.Mystery(x, i) }")
    assert by_name(program)["i"].shape == (1, 1)
    assert program.symbols == {"k": 1}  # declared, and nothing else is known
    assert program.notes[0] == "unknown sizes count as 1 (1): i"
    assert program.notes[1] == "operators of unknown cost, whose arithmetic is not counted: com.microsoft::Mystery (1)"


def test_subbyte_types_are_packed():
    weight = helper.make_tensor("w", TensorProto.INT4, [3, 5], [1] * 15)
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "s")
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])
    graph = helper.make_graph([node], "g", [], [output], [weight, scale])
    program = program_of(tagged(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])).model)
    assert by_name(program)["w"].bytes == 9
    assert program.operations[0].other_flops == 30


def _torch_macs(name: str) -> int:
    """The count of the torch counter for a small model with decomposed attention."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module, inputs = models.build(name)
    by_keyword = set(inputs) <= set(inspect.signature(module.forward).parameters)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(**inputs) if by_keyword else module(*inputs.values())
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("exporter", ["torchscript", pytest.param("dynamo", marks=pytest.mark.campaign)])
@pytest.mark.parametrize("name", models.names())
def test_products_match_the_torch_counter(name: str, exporter: str, small_model: Callable[[str, str], Path]):
    path, expected = small_model(name, exporter), _torch_macs(name)
    opened = {"batch": 1, "seq": 12}
    raw = program_of(tagged(path).model)
    assert macs(raw, **opened) == expected
    assert raw.notes == ()
    for target in ("portable", "ort"):
        program = program_of(tagged(present(sardonyx.optimize(path, target=target, verify="off").model)).model)
        assert macs(program, **opened) == expected
        assert program.notes == ()
        if exporter == "torchscript" and name in ("bert", "gpt2", "llama"):
            product = total(each.macs for each in program.operations)
            assert product == total(each.macs for each in raw.operations), "as expressions, for every size"
            assert isinstance(product, Expr)
    if name == "bert":  # the last is for the runtime
        assert sum(each.kind is OpKind.ATTENTION for each in program.operations) == 2


@pytest.mark.parametrize("name", ["llama", *(pytest.param(n, marks=pytest.mark.campaign) for n in ("bert", "gpt2"))])
def test_torch_and_its_export_cost_the_same_at_every_size(name: str, small_model: Callable[[str, str], Path]):
    from sardonyx.verbs.analyze.recorder import record

    module, inputs = models.build(name)
    axes = {each: {0: "batch", 1: "seq"} for each in inputs}
    recorded = record(module, (), inputs, axes=axes)
    exported = program_of(tagged(small_model(name, "torchscript")).model)
    counted = total(each.macs for each in recorded.operations)
    assert isinstance(counted, Expr)
    assert counted == total(each.macs for each in exported.operations)
    if name == "llama":  # the norms of the others are decomposed in the file, with work done once per row
        flops = total(each.other_flops for each in recorded.operations)
        assert flops == total(each.other_flops for each in exported.operations)


@pytest.mark.campaign
def test_operations_and_weights_have_modules(small_model: Callable[[str, str], Path]):
    program = program_of(tagged(small_model("bert", "dynamo")).model)
    owners = {each.module for each in program.operations if each.kind is OpKind.MATMUL}
    assert {"encoder.layer.0.attention.self", "encoder.layer.1.attention.self.query", "pooler.dense"} <= owners
    holders = {buffer.module for buffer in program.buffers if buffer.store is Store.WEIGHT}
    assert "encoder.layer.1.attention.self.query" in holders


@pytest.mark.slow
def test_five_thousand_nodes_take_about_a_second():
    text = "\n".join(f"v{i + 1} = {'MatMul(v%d, w)' if i % 3 else 'Relu(v%d)'}" % i for i in range(5000))
    source = onnx.parser.parse_model(f"{HEAD} g (float[n, 4] v0, float[4, 4] w) => (float[n, 4] v5000) {{ {text} }}")
    model = tagged(source).model
    start = time.process_time()
    program = program_of(model)
    assert len(program.operations) == 5000
    assert time.process_time() - start < 3  # a busy machine is slow


def test_calls_are_inlined_up_to_a_limit() -> None:
    """Each of 18 functions calls the next one twice: 2^17 nodes in a file of 1 kB."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function(
            "local",
            f"f{level}",
            ["a"],
            ["c"],
            [
                helper.make_node(f"f{level + 1}", [one], [other], domain="local")
                for one, other in (("a", "b"), ("b", "c"))
            ],
            opsets,
        )
        for level in range(17)
    ]
    functions.append(
        helper.make_function("local", "f17", ["a"], ["c"], [helper.make_node("Relu", ["a"], ["c"])], opsets)
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("f0", ["x"], ["y"], domain="local")],
        "g",
        [value("x", TensorProto.FLOAT, ["N"])],
        [value("y", TensorProto.FLOAT, ["N"])],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=opsets, functions=functions)
    program = program_of(tagged(model).model)
    assert len(program.operations) < 2048
    assert any("unknown cost" in note and "local" in note for note in program.notes)
