"""Rotary embeddings are recognised in every form and compute the same on all batch sizes and lengths."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.util import assert_same, assert_same_on_uneven_sizes, op_types, reasons, run_passes
from sardonyx.ir.rewriter import Log
from sardonyx.passes.attention.fuse_rotary_embedding import FuseRotaryEmbedding
from sardonyx.passes.attention.hoist_rotary_embedding import HoistRotaryEmbedding
from sardonyx.passes.attention.sink_rotary_scale import SinkRotaryScale
from sardonyx.passes.attention.split_concat_trig import SplitConcatTrig
from sardonyx.passes.cleanup.eliminate_dead_nodes import EliminateDeadNodes
from sardonyx.passes.cleanup.share_subexpressions import ShareSubexpressions
from sardonyx.passes.folding.fold_constants import FoldConstants
from sardonyx.runtime import evaluate

PASSES = (SplitConcatTrig(), FuseRotaryEmbedding(), SinkRotaryScale(), HoistRotaryEmbedding(), EliminateDeadNodes())


@dataclass
class RotaryForm:
    """One way to write a rotation, as ONNX text."""

    heads_third: bool = False  # [B, S, H, D] instead of [B, H, S, D]
    interleaved: bool = False
    halves_apart: bool = False  # (a cos - b sin, b cos + a sin) instead of x cos + turned sin
    split: bool = False  # Split instead of Slices
    batched: bool = True  # separate angles for every batch item
    early: bool = False  # the axis for the heads is inserted before the angles are doubled
    crossed: bool = False  # operands in the other order
    rest: int = 0  # elements of each head that are not rotated
    dtype: str = "float"
    size: int = 8
    heads: int = 2
    lines: list[str] = field(default_factory=list[str])

    def text(self) -> str:
        """The whole model."""
        axis = 2 if self.heads_third else 1
        shape = f"B, S, {self.heads}, {self.size + self.rest}" if self.heads_third else None
        shape = shape or f"B, {self.heads}, S, {self.size + self.rest}"
        batch = "B" if self.batched else "1"
        half = self.size // 2
        self.lines = ["x = Tanh(input)"]
        if self.rest:
            self.lines += ["t = Slice(x, zero, size, last)", "kept = Slice(x, size, far, last)"]
        else:
            self.lines += ["t = Identity(x)"]
        self._tables()
        self._parts()
        result = self._turned()
        self.lines.append(f"y = Concat <axis = -1> ({result}, kept)" if self.rest else f"y = Identity({result})")
        constants = {
            "zero": 0,
            "half": half,
            "size": self.size,
            "far": 2**40,
            "last": 3,
            "one": 1,
            "two": 2,
            "axis": axis,
        }
        named = ", ".join(f"int64[1] {name} = {{{value}}}" for name, value in constants.items())
        target = f"int64[4] joined = {{0, 0, {self.heads}, {self.size}}}"
        if not self.heads_third:
            target = f"int64[4] joined = {{0, {self.heads}, -1, {self.size}}}"
        wide = f"int64[2] sizes = {{{half}, {half}}}"
        return (
            '<ir_version: 11, opset_import: ["" : 23]>\n'
            f"agraph ({self.dtype}[{shape}] input, {self.dtype}[{batch}, S, {half}] angle)\n"
            f"=> ({self.dtype}[{shape}] y)\n"
            f"<{named}, {target}, {wide}> {{\n" + "\n".join(self.lines) + "\n}"
        )

    def _tables(self) -> None:
        for name, op in (("c", "Cos"), ("s", "Sin")):
            self.lines.append(f"{name}0 = {op}(angle)")
            if self.halves_apart:
                self.lines.append(f"{name} = Unsqueeze({name}0, axis)")
                continue
            inner, outer = (f"{name}1", name) if self.early else (f"{name}0", f"{name}1")
            if self.early:
                self.lines.append(f"{name}1 = Unsqueeze({name}0, axis)")
            self._doubled(inner, outer)
            if not self.early:
                self.lines.append(f"{name} = Unsqueeze({name}1, axis)")

    def _doubled(self, source: str, target: str) -> None:
        if not self.interleaved:
            self.lines.append(f"{target} = Concat <axis = -1> ({source}, {source})")
            return
        self.lines += [
            f"{target}_u = Unsqueeze({source}, minus)",
            f"{target}_k = Concat <axis = -1> ({target}_u, {target}_u)",
        ]
        self.lines.append(f"{target}_n = Shape <end = -2> ({target}_k)")
        self.lines.append(f"{target}_t = Concat <axis = 0> ({target}_n, size)")
        self.lines.append(f"{target} = Reshape({target}_k, {target}_t)")
        minus = "minus = Constant <value_ints = [-1]> ()"
        if minus not in self.lines:
            self.lines.insert(0, minus)

    def _parts(self) -> None:
        if self.interleaved:
            self.lines += ["a = Slice(t, zero, far, last, two)", "b = Slice(t, one, far, last, two)"]
        elif self.split:
            self.lines.append("a, b = Split <axis = -1> (t, sizes)")
        else:
            self.lines += ["a = Slice(t, zero, half, last)", "b = Slice(t, half, far, last)"]

    def _joined(self, one: str, two: str, target: str) -> None:
        if not self.interleaved:
            self.lines.append(f"{target} = Concat <axis = 3> ({one}, {two})")
            return
        self.lines += [f"{target}_1 = Unsqueeze({one}, minus2)", f"{target}_2 = Unsqueeze({two}, minus2)"]
        self.lines.append(f"{target}_k = Concat <axis = -1> ({target}_1, {target}_2)")
        self.lines.append(f"{target} = Reshape({target}_k, joined)")
        self.lines.insert(0, "minus2 = Constant <value_ints = [-1]> ()")

    def _mul(self, one: str, two: str) -> str:
        name = f"m{len(self.lines)}"
        one, two = (two, one) if self.crossed else (one, two)
        self.lines.append(f"{name} = Mul({one}, {two})")
        return name

    def _turned(self) -> str:
        if self.halves_apart:
            ac, bs, bc, as_ = (self._mul(*each) for each in (("a", "c"), ("b", "s"), ("b", "c"), ("a", "s")))
            self.lines += [
                f"re = Sub({ac}, {bs})",
                f"im = Add({as_}, {bc})" if self.crossed else f"im = Add({bc}, {as_})",
            ]
            self._joined("re", "im", "result")
            return "result"
        self.lines.append("n = Neg(b)")
        self._joined("n", "a", "turned")
        straight, across = self._mul("t", "c"), self._mul("turned", "s")
        self.lines.append(
            f"result = Add({across}, {straight})" if self.crossed else f"result = Add({straight}, {across})"
        )
        return "result"


def fused(text: str, *, rtol: float = 2e-6) -> tuple[ir.Model, Log]:
    """The model after the passes, compared with the source at sizes that are different for every axis."""
    model, log = run_passes(text, PASSES)
    assert_same_on_uneven_sizes(text, model, exact=False, rtol=rtol)
    return model, log


forms = st.builds(
    RotaryForm,
    heads_third=st.booleans(),
    interleaved=st.booleans(),
    halves_apart=st.booleans(),
    split=st.booleans(),
    batched=st.booleans(),
    early=st.booleans(),
    crossed=st.booleans(),
    rest=st.sampled_from([0, 3, 4]),
    size=st.sampled_from([2, 4, 8]),
    heads=st.sampled_from([1, 2, 3]),
)


@pytest.mark.slow
@given(forms)
@settings(max_examples=40, deadline=None)
def test_every_form_becomes_one_operator(form: RotaryForm) -> None:
    model, log = fused(form.text())
    ops = op_types(model)
    assert ops.count("RotaryEmbedding") == 1, (ops, reasons(log))
    assert not {"Neg", "Mul", "Slice", "Split"} & set(ops)
    node = next(node for node in model.graph if node.op_type == "RotaryEmbedding")
    assert node.attributes.get_int("interleaved", 0) == form.interleaved
    assert node.attributes.get_int("rotary_embedding_dim", 0) == (form.size if form.rest else 0)


def test_half_precision() -> None:
    model, _ = fused(RotaryForm(dtype="float16").text(), rtol=2e-3)
    assert "RotaryEmbedding" in op_types(model)


def test_double_precision_is_refused() -> None:
    """The operator has no double precision."""
    text = RotaryForm(dtype="double", halves_apart=True).text().replace("Cos(angle)", "Exp(angle)")
    model, log = run_passes(text.replace("Sin(angle)", "Exp(angle)"), PASSES)
    assert "RotaryEmbedding" not in op_types(model)
    assert any("type" in reason for reason in reasons(log))


def test_angles_that_are_constants() -> None:
    """Constant tables are halved; if the batch is a number, folding can repeat them."""
    angle = np.linspace(0, 3, 5 * 4, dtype=np.float32).reshape(5, 4)
    both = np.concatenate([angle, angle], -1)
    model, _ = run_passes(_constant_tables(both, batch="2"), (*PASSES, FoldConstants()), evaluate=evaluate)
    assert op_types(model) == ["RotaryEmbedding"]
    assert_same(_constant_tables(both, batch="2"), model, exact=False, rtol=2e-6)
    model, _ = run_passes(_constant_tables(both, batch="B"), (*PASSES, ShareSubexpressions()))
    assert sorted(op_types(model)) == ["Concat", "Expand", "Expand", "RotaryEmbedding", "Shape"]
    assert_same(_constant_tables(both, batch="B"), model, exact=False, rtol=2e-6)


def test_tables_whose_halves_differ_are_refused() -> None:
    angle = np.linspace(0, 3, 5 * 8, dtype=np.float32).reshape(5, 8)
    model, log = run_passes(_constant_tables(angle, batch="2"), PASSES)
    assert "RotaryEmbedding" not in op_types(model)
    assert any("two elements of a pair" in reason for reason in reasons(log))


def test_one_angle_for_all_positions_is_refused() -> None:
    """The angle is broadcast along the length, which the operator does not support."""
    model, log = run_passes(_constant_tables(np.ones((1, 8), np.float32), batch="2"), PASSES)
    assert "RotaryEmbedding" not in op_types(model)
    assert any("one row of angles per position" in reason for reason in reasons(log))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("n = Neg(b)", "n = Abs(b)"),
        ("b = Slice(t, half, far, last)", "b = Slice(t, one, size_less, last)"),
        ("= Sub(", "= Add("),
    ],
)
def test_similar_functions_stay(was: str, becomes: str) -> None:
    """Another sign, other parts of x than its halves."""
    text = RotaryForm(halves_apart="Sub" in was).text()
    assert was in text
    text = text.replace(was, becomes).replace("int64[1] zero", "int64[1] size_less = {5}, int64[1] zero")
    model, _ = run_passes(text, PASSES)
    assert "RotaryEmbedding" not in op_types(model)


def test_halves_in_the_wrong_order_stay() -> None:
    """(b, -a) rotates in the other direction, which is another function."""
    text = RotaryForm().text().replace("Concat <axis = 3> (n, a)", "Concat <axis = 3> (a, n)")
    model, _ = run_passes(text, PASSES)
    assert "RotaryEmbedding" not in op_types(model)


def test_an_inner_value_that_is_read_elsewhere_is_refused() -> None:
    text = RotaryForm().text().replace("S, 8] y)", "S, 8] y, float[B, 2, S, 8] turned)")
    model, log = run_passes(text, (FuseRotaryEmbedding(),))
    assert "RotaryEmbedding" not in op_types(model)
    assert any("read elsewhere" in reason for reason in reasons(log))


def _constant_tables(table: np.ndarray, batch: str) -> onnx.ModelProto:
    """x cos + turned sin on constants [length, size]."""
    text = f"""
        <ir_version: 11, opset_import: ["" : 23]>
        agraph (float[{batch}, 2, 5, 8] x) => (float[{batch}, 2, 5, 8] y)
        <int64[1] zero = {{0}}, int64[1] half = {{4}}, int64[1] far = {{99}}, int64[1] last = {{3}},
         float[1] cos = {{0}}, float[1] sin = {{0}}> {{
            a = Slice(x, zero, half, last)  b = Slice(x, half, far, last)  n = Neg(b)
            turned = Concat <axis = -1> (n, a)  p = Mul(x, cos)  q = Mul(sin, turned)  y = Add(p, q)
        }}"""
    model = onnx.parser.parse_model(text)
    for name, values in (("cos", np.cos(table)), ("sin", np.sin(table))):
        kept = [each for each in model.graph.initializer if each.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(values, name)])
    return model


HEADS = """
    <ir_version: 11, opset_import: ["" : 23]>
    agraph (float[B, S, 16] x, float[B, S, 4] c, float[B, S, 4] s) => (float[B, 2, S, 8] y)
    <int64[4] split = {0, 0, 2, 8}, float by = {0.5}> { %s }
"""


def test_a_scale_and_the_split_into_heads_move_behind_the_operator() -> None:
    body = """a = Tanh(x)  b = Reshape(a, split)  d = Transpose <perm = [0, 2, 1, 3]> (b)
              e = Mul(by, d)  y = RotaryEmbedding(e, c, s)"""
    model, _ = fused(HEADS % body)
    assert op_types(model) == ["Tanh", "RotaryEmbedding", "Reshape", "Transpose", "Mul"]


def test_heads_that_were_treated_one_by_one_are_merged_for_attention_only() -> None:
    """A norm of each head keeps them separate: merging them pays only if attention does the split afterwards."""
    body = """a = Reshape(x, split)  n = Softmax <axis = -1> (a)  d = Transpose <perm = [0, 2, 1, 3]> (n)
              y%s = RotaryEmbedding(d, c, s) %s"""
    alone, _ = run_passes(HEADS % (body % ("", "")), PASSES)
    assert op_types(alone) == ["Reshape", "Softmax", "Transpose", "RotaryEmbedding"]
    attention = "v = Transpose <perm = [0, 2, 1, 3]> (a)  y = Attention(y0, v, v)"
    text = HEADS % (body % ("0", attention))
    model, _ = fused(text)
    assert op_types(model)[:5] == ["Reshape", "Softmax", "Reshape", "RotaryEmbedding", "Reshape"]


def test_a_part_of_each_head_keeps_its_attributes_when_hoisted() -> None:
    body = """a = Tanh(x)  b = Reshape(a, split)  d = Transpose <perm = [0, 2, 1, 3]> (b)
              y = RotaryEmbedding <rotary_embedding_dim = 8, interleaved = 1> (d, c, s)"""
    model, _ = fused(HEADS % body)
    node = next(node for node in model.graph if node.op_type == "RotaryEmbedding")
    assert (node.attributes.get_int("num_heads"), node.attributes.get_int("interleaved")) == (2, 1)
