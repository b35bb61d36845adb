"""Attention and its projections become one operator on the ort target, and no weight is stored twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from passes.util import assert_same, op_types, reasons, run_passes
from sardonyx.passes.attention.merge_attention_heads import MergeAttentionHeads
from sardonyx.passes.ort.fuse_packed_attention import FusePackedAttention

FUSE = [FusePackedAttention()]
HIDDEN, HEADS, WIDTH = 6, 2, 4
WHOLE = HEADS * WIDTH
HIDDEN_BY = -3e38  # above the lowest number, as in masks written by fuse-attention
RNG = np.random.default_rng(11)


Dims = list[str | int]


class Net:
    """A small network around one Attention, which each test modifies."""

    def __init__(self, *, values: int = WHOLE) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, Dims] = {"x": ["N", "S", HIDDEN]}
        self.outputs: dict[str, Dims] = {"y": ["N", "S", values]}
        self.constants: dict[str, np.ndarray] = {}
        self.widths = {"q": WHOLE, "k": WHOLE, "v": values}

    def node(self, op: str, inputs: Sequence[str], outputs: str | list[str], **attributes: Any) -> str:
        names = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0]

    def constant(self, name: str, *shape: int) -> str:
        self.constants[name] = RNG.standard_normal(shape).astype(np.float32)
        return name

    def projection(self, name: str, *, bias: int | None = 1, source: str = "x") -> str:
        """x * W + b; `bias` is the rank of b."""
        width = self.widths[name]
        product = self.node("MatMul", [source, self.constant(f"w{name}", HIDDEN, width)], f"{name}0")
        if bias is None:
            return product
        vector = self.constant(f"b{name}", *[1] * (bias - 1), width)
        return self.node("Add", [vector, product], name)

    def attention(self, operands: Sequence[str], mask: str = "", **attributes: Any) -> None:
        given = {"q_num_heads": HEADS, "kv_num_heads": HEADS, **attributes}
        self.node("Attention", [*operands, mask] if mask else operands, "y", **given)

    def model(self, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        tensors = [
            numpy_helper.from_array(array.astype(dtype) if array.dtype.kind == "f" else array, name)
            for name, array in self.constants.items()
        ]
        inputs, outputs = (
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in group.items()]
            for group in (self.inputs, self.outputs)
        )
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, tensors)
        return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 23)])


def plain(*, biases: Sequence[int | None] = (1, 1, 1), mask: Dims | None = None, **attributes: Any) -> Net:
    net = Net()
    operands = [net.projection(name, bias=bias) for name, bias in zip("qkv", biases, strict=True)]
    if mask is not None:
        net.inputs["m"] = mask
        net.constants |= {"zero": np.zeros((), np.float32), "hidden": np.array(HIDDEN_BY, np.float32)}
        net.node("Where", [net.node("Greater", ["m", "zero"], "keep"), "zero", "hidden"], "chosen")
    net.attention(operands, "" if mask is None else "chosen", **attributes)
    return net


def split_net() -> Net:
    net = Net()
    net.widths["all"] = 3 * WHOLE
    whole = net.projection("all", bias=3)
    net.node("Split", [whole], ["q", "k", "v"], axis=-1, num_outputs=3)
    net.attention(["q", "k", "v"])
    return net


def apart_net() -> Net:
    """Heads split and transposed before an Attention of four axes."""
    net = Net()
    net.constants["heads"], net.constants["merged"] = np.array([0, 0, HEADS, WIDTH]), np.array([0, 0, WHOLE])
    operands = [
        net.node("Transpose", [net.node("Reshape", [net.projection(n), "heads"], f"r{n}")], f"t{n}", perm=[0, 2, 1, 3])
        for n in "qkv"
    ]
    turned = net.node("Transpose", [net.node("Attention", operands, "a")], "t", perm=[0, 2, 1, 3])
    net.node("Reshape", [turned, "merged"], "y")
    return net


def wide_values() -> Net:
    net = Net(values=HEADS * 3)
    net.attention([net.projection(name) for name in "qkv"])
    return net


FUSED = {
    "three projections": plain(),
    "no biases at all": plain(biases=(None, None, None)),
    "no bias for the keys": plain(biases=(1, None, 1)),
    "biases with more axes": plain(biases=(3, 2, 1)),
    "a scale": plain(scale=0.7),
    "causal": plain(is_causal=1),
    "a mask for each": plain(mask=["N", 1, "S", "S"]),
    "a mask for each head": plain(mask=["N", HEADS, "S", "S"]),
    "one mask for all": plain(mask=[1, 1, "S", "S"]),
    "a mask for heads alone": plain(mask=[HEADS, "S", "S"]),
    "a mask of two axes": plain(mask=["S", "S"]),
    "causal with a mask": plain(mask=["N", 1, "S", "S"], is_causal=1),
    "split after one product": split_net(),
    "values of another width": wide_values(),
    "heads apart": apart_net(),
}


@pytest.mark.parametrize("case", FUSED)
def test_it_fuses(case: str) -> None:
    source = FUSED[case].model()
    model, _ = run_passes(source, [MergeAttentionHeads(), *FUSE], target="ort")
    assert op_types(model)[-1] == "Attention"
    assert {"Attention"} <= set(op_types(model)) <= {"Attention", "Unsqueeze", "Greater", "Where"}
    assert model.graph.node(-1).domain == "com.microsoft"
    assert_same(source, model, exact=False)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}])
def test_fully_masked_rows_are_unchanged(attributes: dict[str, Any]) -> None:
    """Scores masked by a huge finite number are all equal, so both operators return the mean of the values."""
    source = plain(mask=["N", 1, "S", "S"], **attributes).model()
    model, _ = run_passes(source, FUSE, target="ort")
    assert model.graph.node(-1).domain == "com.microsoft"
    for hidden in (np.s_[:], np.s_[..., 0], np.s_[..., 1:], np.s_[:, :, 0], np.s_[..., :2, 0]):
        mask = np.ones((1, 1, 3, 3), np.float32)
        mask[hidden] = 0
        feeds = {"x": RNG.standard_normal((1, 3, HIDDEN)).astype(np.float32), "m": mask}
        assert_same(source, model, exact=False, feeds=feeds)


def constant_mask(mask: np.ndarray, **attributes: int) -> Net:
    net = Net()
    net.inputs["x"] = ["N", 3, HIDDEN]
    net.outputs["y"] = ["N", 3, WHOLE]
    operands = [net.projection(name) for name in "qkv"]
    net.constants["m"] = mask.astype(np.float32)
    net.attention(operands, "m", **attributes)
    return net


CAUSAL = np.triu(np.full((3, 3), -np.inf), 1)
LOWEST = np.finfo(np.float32).min


@pytest.mark.parametrize(
    ("mask", "causal", "fuses"),
    [
        (CAUSAL, 0, True), (CAUSAL, 1, True), (CAUSAL.T, 0, True), (np.fliplr(CAUSAL), 1, False),
        (np.full((3, 3), -np.inf), 0, False), (np.full((3, 3), LOWEST), 0, False), (np.full((3, 3), -1e38), 0, True),
        (np.where(CAUSAL < 0, LOWEST, -np.inf), 0, False),
    ],
)  # fmt: skip
def test_constant_masks_fuse_where_every_row_keeps_a_key(mask: np.ndarray, causal: int, fuses: bool) -> None:
    """For a fully masked row the standard operator returns 0, the runtime's NaN or a mean."""
    source = constant_mask(mask, is_causal=causal).model()
    model, log = run_passes(source, FUSE, target="ort")
    assert (model.graph.node(-1).domain == "com.microsoft") == fuses
    assert fuses or "may mask all keys of a row" in " ".join(reasons(log))
    assert_same(source, model, exact=False)


def test_unused_outputs_do_not_prevent_fusion() -> None:
    net = plain()
    net.nodes[-1].output.extend(["present_key", "present_value"])
    model, _ = run_passes(net.model(), FUSE, target="ort")
    assert model.graph.node(-1).domain == "com.microsoft"
    assert_same(net.model(), model, exact=False)


def test_the_portable_target_only_reports_it() -> None:
    model, log = run_passes(plain().model(), FUSE)
    assert op_types(model).count("MatMul") == 3
    assert reasons(log) == ["needs the ort target's Attention"]


def refused(name: str) -> tuple[Net, str]:
    """A near miss and the reason why it stays."""
    match name:
        case "grouped":
            net = Net()
            net.widths["k"] = net.widths["v"] = WIDTH
            net.attention([net.projection(n) for n in "qkv"], kv_num_heads=1)
            return net, "queries and keys have different numbers of heads"
        case "softcap":
            return plain(softcap=3.0), "it has a softcap or another internal precision"
        case "a mask without rows":
            return plain(mask=["N", 1, 1, "S"]), "its mask may not have a row for every query"
        case "a mask of unknown length":
            return plain(mask=["N", 1, "S", "T"]), "its mask may not have a row for every query"
        case "a mask of other batches":
            return plain(mask=["M", 1, "S", "S"]), "its mask may not have a row for every query"
        case "a weight read twice":
            net = plain()
            net.node("ReduceSum", ["wk"], "z", keepdims=0)
            net.outputs["z"] = []
            return net, "packing would store it twice"
        case "a projection read twice":
            net = plain()
            net.node("Neg", ["k0"], "z")
            net.outputs["z"] = ["N", "S", WHOLE]
            return net, "a projection is read elsewhere"
        case "windows":
            net = plain()
            net.inputs["x"], net.outputs["y"] = [4, "S", HIDDEN], [4, "S", WHOLE]
            return net, "the batch is larger than one"
        case "a weight that is an input":
            net = plain()
            del net.constants["wv"]
            net.inputs["wv"] = [HIDDEN, WHOLE]
            return net, "is not a constant"
        case _:
            net = Net()
            net.inputs["c"] = ["N", "S", HIDDEN]
            net.attention([net.projection("q"), net.projection("k", source="c"), net.projection("v", source="c")])
            return net, "projections of different states"


@pytest.mark.parametrize(
    "case",
    [
        "grouped",
        "softcap",
        "a mask without rows",
        "a mask of unknown length",
        "a mask of other batches",
        "a weight read twice",
        "a projection read twice",
        "windows",
        "a weight that is an input",
        "cross attention",
    ],
)
def test_near_misses_are_reported(case: str) -> None:
    net, reason = refused(case)
    model, log = run_passes(net.model(), FUSE, target="ort")
    assert not log.events
    assert op_types(model).count("MatMul") == 3
    assert [reason in each for each in reasons(log)] == [True], reasons(log)


def test_a_past_is_reported() -> None:
    net = plain()
    net.inputs["pk"] = net.inputs["pv"] = ["N", HEADS, "P", WIDTH]
    net.nodes[-1].input.extend(["", "pk", "pv"])
    model, log = run_passes(net.model(), FUSE, target="ort")
    assert reasons(log) == ["it has a past"]
    assert op_types(model)[-1] == "Attention"


def test_parts_of_a_split_in_another_order_stay() -> None:
    net = split_net()
    net.nodes[-1].input[:] = ["k", "q", "v"]
    model, log = run_passes(net.model(), FUSE, target="ort")
    assert "Split" in op_types(model)
    assert not log.events


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_precisions_have_no_kernel(kind: int) -> None:
    _, log = run_passes(plain().model(kind), FUSE, target="ort")
    assert not log.events
