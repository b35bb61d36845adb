"""Operators of torch against the ONNX nodes they became, in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from onnx import TensorProto
from torch import nn

import sardonyx
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.dynamo import Operation, recorded
from sardonyx.ir.exact.reals import Numbers, Order, Real
from sardonyx.verbs.export import export as exporting
from sardonyx.verbs.export.aten_elements import DEFINITIONS
from sardonyx.verbs.export.operator_checks import check, decide, definition_of
from sardonyx.verification.exact_check import Claim

aten: Any = torch.ops.aten
CLOSE = 1e-6  # erf is known to 1.5e-7 here
RNG = torch.Generator().manual_seed(0)


def real(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=RNG)


def whole(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=RNG)


X, Y, POSITIVE, TRUE = real(2, 3, 4), real(2, 3, 4), real(2, 3, 4).abs() + 0.1, real(2, 3, 4) > 0
N, M, PICTURE, VECTOR = whole(-5, 6, 2, 3, 4), whole(1, 5, 2, 3, 4), real(2, 4, 9, 9), real(4)
KEYS, SPREAD = real(2, 2, 5, 4), real(4).abs() + 0.1
ELEMENTS = [
    "cos",
    "erf",
    "exp",
    "sigmoid",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "atan",
    "cosh",
    "floor",
    "ceil",
    "round",
    "neg",
    "square",
    "abs",
    "relu",
    "sign",
    "silu",
    "gelu",
]
ELEMENTS += [
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "elu",
    "hardtanh",
    "isnan",
    "isinf",
    "sum",
    "mean",
    "softplus",
    "reciprocal",
]
PAIRS = ["add", "sub", "rsub", "mul", "maximum", "minimum", "div"]
RELATIONS = ["eq", "ne", "lt", "le", "gt", "ge"]
CASES: list[tuple[Any, ...]] = [
    *((getattr(aten, name), X) for name in ELEMENTS),
    *((getattr(aten, name), POSITIVE) for name in ("sqrt", "rsqrt", "log", "log1p")),
    *((getattr(aten, name), X / 5) for name in ("acos", "asin")),
    *((getattr(aten, name), *pair) for name in PAIRS for pair in ((X, Y), (N, M))),
    *((getattr(aten, name), *pair) for name in RELATIONS for pair in ((X, Y), (N, M), (X, 0.5), (N, 2))),
    *((getattr(aten, name), X > 0, Y > 0) for name in ("bitwise_and", "bitwise_or", "logical_and", "logical_xor")),
    *((getattr(aten, name), TRUE) for name in ("bitwise_not", "logical_not", "any", "all")),
    *((getattr(aten, name), X, [1]) for name in ("sum", "mean", "amax", "amin", "any")),
    *((getattr(aten, name), X, -1, True) for name in ("max", "min", "argmax", "argmin")),
    *(
        (getattr(aten, name), X, 1)
        for name in ("softmax", "log_softmax", "cumsum", "unbind", "unsqueeze", "select")[:5]
    ),
    *((aten.add, X, 2.5), (aten.sub, X, Y, {"alpha": 3}), (aten.mul, N, 3), (aten.div, N, M)),
    *((aten.div, X, Y, {"rounding_mode": "floor"}), (aten.div, N, M, {"rounding_mode": "trunc"})),
    *((aten.floor_divide, N, M), (aten.remainder, N, M), (aten.remainder, X, Y)),
    *((aten.pow, X, 3), (aten.pow, POSITIVE, 0.5), (aten.pow, POSITIVE, Y), (aten.gelu, X, {"approximate": "tanh"})),
    *((aten.clamp, X, -0.5, 0.5), (aten.clamp_min, X, 0.2), (aten.clamp_max, X, 0.2), (aten.elu, X, 0.5)),
    *((aten.where, TRUE, X, Y), (aten.masked_fill, X, TRUE, -2.0), (aten.var, X, [1], {"correction": 1})),
    *((aten.var, X, [2], {"correction": 0}), (aten.std, X, [1], {"correction": 1}), (aten.sum, N)),
    *((aten.linalg_vector_norm, X, 2, [1]), (aten.mm, real(3, 4), real(4, 5)), (aten.bmm, X, real(2, 4, 5))),
    *((aten.matmul, X, VECTOR), (aten.linear, X, real(5, 4), real(5)), (aten.linear, X, real(5, 4))),
    *((aten.addmm, real(5), real(3, 4), real(4, 5)), (aten.addmm, real(5), real(3, 4), real(4, 5), {"alpha": 2})),
    *(
        (aten.layer_norm, X, [4], VECTOR, real(4), 1e-3),
        (aten.layer_norm, X, [3, 4]),
        (aten.rms_norm, X, [4], VECTOR, 0.1),
    ),
    *((aten.group_norm, PICTURE, 2, VECTOR, real(4)),),
    *((aten.batch_norm, PICTURE, VECTOR, real(4), real(4), SPREAD, False, 0.1, 1e-3, False),),
    *((aten.scaled_dot_product_attention, KEYS, KEYS + 1, KEYS),),
    *((aten.scaled_dot_product_attention, KEYS, KEYS, KEYS, real(5, 5), {"scale": 0.3}),),
    *((aten.scaled_dot_product_attention, KEYS, KEYS, KEYS, None, 0.0, True),),
    *((aten.view, X, [6, -1]), (aten.flatten, X, 1), (aten.permute, X, [2, 0, -2]), (aten.transpose, X, 0, -1)),
    *((aten.t, real(3, 4)), (aten.expand, real(3, 1), [2, -1, 4]), (aten.squeeze, real(3, 1, 2), 1)),
    *(
        (aten.unflatten, X, 2, [2, 2]),
        (aten.slice, X, 1, 1, -1),
        (aten.slice, X, 2, 0, 9, 2),
        (aten.narrow, X, 2, 1, 2),
    ),
    *((aten.slice_scatter, X, real(2, 1, 4), 1, 1, 2), (aten.select, X, 1, -1), (aten.cat, [X, Y], -1)),
    *((aten.stack, [X, Y], 1), (aten.split, X, 3, 2), (aten.split_with_sizes, X, [1, 3], 2), (aten.chunk, X, 3, 2)),
    *((aten.clone, X), (aten.repeat, X, [2, 1, 1, 2]), (aten.repeat_interleave, X, 2, 1), (aten.flip, X, [0, 2])),
    *(
        (aten.roll, X, [1, -1], [1, 2]),
        (aten.tril, X),
        (aten.triu, X, 1),
        (aten.constant_pad_nd, X, [1, 2, -1, 0], 3.0),
    ),
    *((aten.pad, X, [1, 2], "reflect"), (aten.pad, X, [1, 0], "constant", 2.0), (aten.fill, X, 2.0)),
    *((aten.full_like, X, 2.5), (aten.zeros_like, N), (aten.ones_like, X), (aten.new_full, X, [2, 2], 7.0)),
    *(
        (aten.arange, 5),
        (aten.arange, 2, 9, 3),
        (aten.full, [2, 3], 4),
        (aten.embedding, real(7, 3), whole(0, 7, 2, 3)),
    ),
    *((aten.index, X, [None, torch.tensor([0, 2])]), (aten.index, X, [torch.tensor([0, -1]), torch.tensor([1, 2])])),
    *((aten.index_select, X, 1, torch.tensor([2, 0])), (aten.gather, X, 2, whole(0, 4, 2, 3, 2))),
    *((aten.conv1d, real(2, 4, 9), real(6, 2, 3), real(6), [2], [1], [2], 2), (aten.conv2d, PICTURE, real(5, 4, 3, 2))),
    *((aten.convolution, PICTURE, real(4, 3, 3, 3), real(3), [2, 1], [1, 1], [1, 1], True, [1, 0], 1),),
    *((aten.convolution, PICTURE, real(4, 3, 3, 3), None, [1, 1], [1, 0], [2, 1], True, [0, 0], 2),),
    *((aten.max_pool2d, PICTURE, [3, 2], [2, 1], [1, 0]), (aten.avg_pool2d, PICTURE, [3, 2], [2, 2], [1, 1])),
    *((aten.avg_pool2d, PICTURE, [3, 3], [1, 1], [1, 1], False, False), (aten.adaptive_avg_pool2d, PICTURE, [1, 1])),
    *((aten.adaptive_avg_pool2d, PICTURE, [4, 3]), (aten.einsum, "bij,bkj->bki", [X, Y])),
]


def _value(argument: Any) -> Any:
    if isinstance(argument, list):
        return tuple(map(_value, argument))
    if not isinstance(argument, torch.Tensor):
        return argument
    array = argument.numpy()
    return Real.of(array, TensorProto.DOUBLE) if argument.dtype == torch.float64 else array


def _array(value: Any) -> Any:
    return value.doubles if isinstance(value, Real) else np.asarray(value)


def test_definitions_agree_with_torch() -> None:
    seen = set[str]()
    with np.errstate(all="ignore"):
        for packet, *given in CASES:
            kwargs = given.pop() if isinstance(given[-1], dict) else {}
            expected = packet(*given, **kwargs)
            name = packet.__name__
            mine = DEFINITIONS[name](Numbers(Order.TRUE, 0), *map(_value, given), **kwargs)
            one = isinstance(expected, torch.Tensor)
            for old, new in zip([expected] if one else expected, [mine] if one else mine, strict=True):
                assert tuple(old.shape) == tuple(_array(new).shape), name
                np.testing.assert_allclose(_array(new), old.numpy(), CLOSE, CLOSE, err_msg=name)
            seen.add(name)
    assert len(seen) > 110


class Net(nn.Module):
    """A module with the operators that occur most."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.inner = nn.Embedding(50, 32), nn.LayerNorm(32), nn.Linear(32, 64)
        self.conv, self.batch = nn.Conv2d(3, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32)

    def forward(self, ids: torch.Tensor, picture: torch.Tensor, mask: torch.Tensor) -> Any:
        x = self.norm(self.table(ids))
        heads = x.view(*ids.shape, 4, 8).transpose(1, 2)
        x = x - nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).reshape(x.shape)
        x, gate = nn.functional.gelu(self.inner(x)).split(32, -1)
        x = x / (1 + torch.exp(gate)) + torch.softmax(gate, -1).pow(2)
        scores = (x @ x.transpose(1, 2)).masked_fill(mask[:, None], -1e4)
        places = torch.arange(ids.shape[1])[None, :] < ids.sum(1, keepdim=True)
        x = torch.where(places[..., None], torch.cat([x[:, 1:], x[:, :1] * 0.1], 1), scores.mean(-1, keepdim=True))
        image = nn.functional.silu(nn.functional.max_pool2d(self.batch(self.conv(picture)), 2)).mean((2, 3))
        return (
            x.permute(2, 0, 1),
            image[:, 2:20],
            torch.rsqrt(image.square() + 1e-6) * torch.tanh(x[:, 0].expand(1, -1, -1)),
        )


def _inputs() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    ids, mask = torch.randint(0, 50, (2, 7)), torch.zeros(2, 7, dtype=torch.bool)
    return {"ids": ids, "picture": torch.randn(2, 3, 12, 12), "mask": mask}


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    """The operations of the module above, with dynamic dimensions."""
    call = ModuleCall(Net().eval(), (), _inputs())
    axes = {"ids": {0: "b", 1: "s"}, "picture": {0: "b"}, "mask": {0: "b", 1: "s"}}
    model, _ = traced.export(call, "dynamo", axes, None, traced.TagStyle())
    found = recorded(model)
    assert found is not None
    return found


@pytest.mark.slow
def test_every_operator_of_a_module_is_equal(operations: list[Operation]) -> None:
    checked = check(operations)
    assert not checked.unequal
    assert not checked.undecided
    assert checked.all_values == checked.operators == sum(len(each.modules) for each in operations) > 50
    assert all(definition_of(each) for each in operations)
    assert {"norm", "inner", "table"} <= {module for each in operations for module in each.modules}


def _swap(node: onnx.NodeProto) -> None:
    node.input[0], node.input[1] = node.input[1], node.input[0]


def _attribute(name: str, change: Callable[[Any], Any]) -> Callable[[onnx.NodeProto], None]:
    def apply(node: onnx.NodeProto) -> None:
        attribute = next(each for each in node.attribute if each.name == name)
        value = change(onnx.helper.get_attribute_value(attribute))
        attribute.CopyFrom(onnx.helper.make_attribute(name, value))

    return apply


def _drop_bias(node: onnx.NodeProto) -> None:
    del node.input[2:]


def _first(values: Any) -> list[int]:
    return [values[0] + 1, *values[1:]]


def _turned(perm: Any) -> list[int]:
    return [*perm[1:], perm[0]]


def _next(number: float) -> float:
    return float(np.nextafter(np.float32(number), np.float32(1)))


FAULTS: list[tuple[str, str, Callable[[onnx.NodeProto], None]]] = [
    ("aten.layer_norm.default", "LayerNormalization", _attribute("epsilon", _next)),
    ("aten.layer_norm.default", "LayerNormalization", _drop_bias),
    ("aten._native_batch_norm_legit_no_training.default", "BatchNormalization", _attribute("epsilon", _next)),
    ("aten.sub.Tensor", "Sub", _swap),
    ("aten.div.Tensor", "Div", _swap),
    ("aten.matmul.default", "MatMul", _swap),
    ("aten.linear.default", "MatMul", _swap),
    ("aten.lt.Tensor", "Less", _swap),
    ("aten.softmax.int", "Softmax", _attribute("axis", lambda axis: axis - 1)),
    ("aten.cat.default", "Concat", _attribute("axis", lambda axis: axis + 1)),
    ("aten.permute.default", "Transpose", _attribute("perm", _turned)),
    ("aten.transpose.int", "Transpose", _attribute("perm", _turned)),
    ("aten.conv2d.default", "Conv", _attribute("pads", _first)),
    ("aten.conv2d.default", "Conv", _attribute("strides", _first)),
    ("aten.conv2d.default", "Conv", _drop_bias),
    ("aten.max_pool2d.default", "MaxPool", _attribute("kernel_shape", _first)),
    ("aten.embedding.default", "Gather", _attribute("axis", lambda _: 1)),
    ("aten.mean.dim", "ReduceMean", _attribute("keepdims", lambda keep: 1 - keep)),
    ("aten.scaled_dot_product_attention.default", "Softmax", _attribute("axis", lambda axis: axis - 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op_type", "plant"), FAULTS)
def test_a_planted_fault_is_refused(
    operations: list[Operation], name: str, op_type: str, plant: Callable[[onnx.NodeProto], None]
) -> None:
    operation = next(each for each in operations if each.name == name)
    assert operation.excerpt is not None
    wrong = onnx.ModelProto.FromString(operation.excerpt.SerializeToString())
    plant(next(node for node in wrong.graph.node if node.op_type == op_type))
    decision = decide(
        Operation(name, operation.args, operation.kwargs, operation.results, wrong, operation.example, [""])
    )
    assert decision.claim is Claim.UNEQUAL, decision


@pytest.mark.slow
def test_every_changed_number_is_refused(operations: list[Operation]) -> None:
    """Floats by one unit in the last place, and the positions of slices by one."""
    count = 0
    for operation in operations:
        if operation.name == "aten.arange.default":  # its numbers are rounded to integers
            continue
        assert operation.excerpt is not None
        for place, node in enumerate(operation.excerpt.graph.node):
            if node.op_type != "Constant" or node.attribute[0].name != "value":
                continue
            numbers = onnx.numpy_helper.to_array(node.attribute[0].t)
            is_position = operation.name == "aten.slice.Tensor" and 0 < numbers.max() < 1 << 31
            if numbers.dtype != np.float32 and not is_position:
                continue
            wrong = onnx.ModelProto.FromString(operation.excerpt.SerializeToString())
            tensor = wrong.graph.node[place].attribute[0].t
            numbers = numbers + 1 if is_position else np.nextafter(numbers, np.float32(math.inf))
            tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, tensor.name))
            args = (operation.name, operation.args, operation.kwargs, operation.results, wrong, operation.example, [""])
            assert decide(Operation(*args)).claim is Claim.UNEQUAL, (operation.name, onnx.printer.to_text(wrong))
            count += 1
    assert count >= 10


@pytest.mark.slow
def test_an_export_names_a_wrong_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    right = exporting.traced.export

    def wrong(*args: Any, **kwargs: Any) -> Any:
        model, notes = right(*args, **kwargs)
        norm = next(node for node in model.graph if node.op_type == "LayerNormalization")
        norm.attributes["epsilon"] = onnx_ir.AttrFloat32("epsilon", 1.0001e-5)
        return model, notes

    monkeypatch.setattr(exporting.traced, "export", wrong)
    made = sardonyx.export(Normed(), torch.randn(2, 8))
    assert made.operators is not None
    assert made.operators.all_values == made.operators.operators - 1 == 1
    sentence = "aten.layer_norm.default in module 'body.1' became LayerNormalization, which differs in exact arithmetic"
    assert made.operators.unequal[0].startswith(sentence)
