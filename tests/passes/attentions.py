"""Models of attention in many forms, with inputs that mask no key, some keys, or all keys of a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
HEADS = 2
FILLS = ("-inf", "lowest", "above lowest", "-3e38", "-1e9", "-1e4")
SHAPES = (
    ("K",),
    ("S", "K"),
    ("B", 1, 1, "K"),
    ("B", 1, "S", "K"),
    (1, 1, "S", "K"),
    (1, HEADS, "S", "K"),
    (HEADS, 1, "K"),
)
CASTS = ((), ("DOUBLE",), ("INT32",), ("BOOL",), ("FLOAT16",), ("DOUBLE", "FLOAT"))


def number(fill: str, dtype: type[np.floating]) -> float:
    """A number in a given type."""
    lowest = np.finfo(dtype).min
    named = {"lowest": lowest, "above lowest": np.nextafter(lowest, dtype(0))}
    return float(named[fill]) if fill in named else max(float(fill), float(lowest)) if fill != "-inf" else -np.inf


@dataclass
class Form:
    """A model under construction, and the arrays to feed it."""

    kind: str
    sizes: dict[str, int]
    rng: np.random.Generator
    magnitude: float = 1.0
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    feeds: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    shapes: dict[str, list[str | int]] = field(default_factory=dict[str, list[str | int]])
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    outputs: list[str] = field(default_factory=lambda: ["y"])
    dims: dict[str | int, str] = field(default_factory=dict[str | int, str])  # other names of dims

    @property
    def dtype(self) -> type[np.floating]:
        """The type of the scores."""
        return np.dtype(self.kind).type

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, array: object, dtype: type | None = None) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype or self.dtype)
        return name

    def given(self, array: np.ndarray, *shape: str | int) -> str:
        """Add an input and return its name."""
        name = f"x{len(self.feeds)}"
        self.feeds[name], self.shapes[name] = array, [self.dims.get(dim, dim) for dim in shape]
        return name

    def states(self, *shape: str | int) -> str:
        """Add an input of random numbers."""
        return self.given((self.magnitude * self.rng.standard_normal(self.real(shape))).astype(self.dtype), *shape)

    def real(self, shape: tuple[str | int, ...]) -> tuple[int, ...]:
        """The sizes of a symbolic shape in this run."""
        return tuple(self.sizes.get(dim, 0) if isinstance(dim, str) else dim for dim in shape)

    def model(self, opset: int) -> onnx.ModelProto:
        """The finished model."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), self.shapes[name])
            for name, array in self.feeds.items()
        ]
        results = [helper.make_tensor_value_info(name, KINDS[self.kind], None) for name in self.outputs]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, results, tensors)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


@st.composite
def forms(draw: st.DrawFn, *, kinds: tuple[str, ...] = tuple(KINDS)) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and its inputs."""
    queries = draw(st.sampled_from((1, 2, 5)))
    sizes = {"B": draw(st.sampled_from((1, 2))), "S": queries, "K": draw(st.sampled_from((queries, 1, 4)))}
    form = Form(draw(st.sampled_from(kinds)), sizes, np.random.default_rng(draw(st.integers(0, 999))))
    form.magnitude = draw(st.sampled_from((1.0, 1.0, 4.0)))
    width = draw(st.sampled_from((4, 8)))
    split = draw(st.booleans())
    if draw(st.booleans()):
        split = True
        q, k, v = _projected(draw, form, width)
    else:
        q, k, v = (_operand(draw, form, length, width, split=split) for length in ("S", "K", "K"))
    turned = form.add("Transpose", k, perm=[0, 1, 3, 2])
    scores = form.add("MatMul", _scaled(draw, form, q), _scaled(draw, form, turned))
    scores = _scaled(draw, form, scores)
    for _ in range(draw(st.integers(0, 2))):
        scores = _masked(draw, form, scores)
    weights = form.add("Softmax", scores, axis=-1)
    if draw(st.sampled_from((False,) * 7 + (True,))):
        form.outputs.append(weights)
    if draw(st.booleans()) and draw(st.booleans()):
        nan = form.add("IsNaN", weights)
        weights = form.add("Where", nan, form.constant(0), weights)
    weights = _cast(draw, form, weights)
    result = _scaled(draw, form, form.add("MatMul", weights, _scaled(draw, form, v)))
    if split:
        result = form.add("Transpose", result, perm=[0, 2, 1, 3])
        result = form.add("Reshape", result, form.constant([0, 0, HEADS * width], np.int64))
    form.nodes.append(helper.make_node("Identity", [result], ["y"]))
    return form.model(draw(st.sampled_from((13, 18, 23)))), form.feeds


def _projected(draw: st.DrawFn, form: Form, width: int) -> list[str]:
    """Queries, keys and values as projections of the same states, which the runtime's own operator can include."""
    form.sizes["K"] = form.sizes["S"]
    form.dims["K"] = "S"
    whole = HEADS * width
    states = form.states("B", "S", whole)
    products = [
        form.add("MatMul", states, form.constant(form.rng.standard_normal((whole, whole)) / whole**0.5))
        for _ in range(3)
    ]
    return [_apart(form, product, width) for product in products]


def _apart(form: Form, states: str, width: int) -> str:
    split = form.add("Reshape", states, form.constant([0, 0, HEADS, width], np.int64))
    return form.add("Transpose", split, perm=[0, 2, 1, 3])


def _operand(draw: st.DrawFn, form: Form, length: str, width: int, *, split: bool) -> str:
    """Queries, keys or values with separate heads, or split from rows; sometimes a projection of rows."""
    if not split:
        return form.states("B", HEADS, length, width)
    whole = HEADS * width
    states = form.states("B", length, whole)
    if draw(st.booleans()):
        states = form.add("MatMul", states, form.constant(form.rng.standard_normal((whole, whole)) / whole**0.5))
    return _apart(form, states, width)


def _scaled(draw: st.DrawFn, form: Form, value: str) -> str:
    """Sometimes multiplied with or divided by a constant."""
    if not draw(st.sampled_from((False, False, True))):
        return value
    by = form.constant(np.full((1,) * draw(st.integers(0, 4)), draw(st.sampled_from((0.5, 0.25, 2.0)))))
    return form.add(draw(st.sampled_from(("Mul", "Div"))), value, by)


def _hidden(draw: st.DrawFn, form: Form, shape: tuple[str | int, ...]) -> np.ndarray:
    """Which keys are masked: none, all, the first, the last, future ones, whole rows, or any."""
    real = form.real(shape)
    hidden = np.zeros(real, bool)
    match draw(st.sampled_from(("none", "all", "left", "right", "causal", "rows", "any"))):
        case "all":
            hidden[:] = True
        case "left":
            hidden[..., : max(1, real[-1] // 2)] = True
        case "right":
            hidden[..., real[-1] // 2 :] = True
        case "causal" if len(real) > 1:
            hidden |= np.triu(np.ones(real[-2:], bool), 1)
        case "rows" if len(real) > 1:
            hidden[..., ::2, :] = True
        case "any":
            hidden |= form.rng.random(real) < 0.6
        case _:
            pass
    return hidden


def _masked(draw: st.DrawFn, form: Form, scores: str) -> str:
    """Scores masked once, by Where or by Add."""
    shape = draw(st.sampled_from(SHAPES))
    fills = [number(draw(st.sampled_from(FILLS)), form.dtype) for _ in range(2)]
    hidden = _hidden(draw, form, shape)
    if draw(st.booleans()):
        keeps = draw(st.booleans())
        condition = form.given(~hidden if keeps else hidden, *shape)
        fill = form.constant(fills[0])
        return form.add("Where", condition, *((scores, fill) if keeps else (fill, scores)))
    mask = _added(draw, form, shape, hidden, fills)
    return form.add("Add", *((scores, mask) if draw(st.booleans()) else (mask, scores)))


def _added(draw: st.DrawFn, form: Form, shape: tuple[str | int, ...], hidden: np.ndarray, fills: list[float]) -> str:
    """A mask to add: an input, a constant, a Where, computed from integers, or a bias."""
    both = np.where(form.rng.random(hidden.shape) < 0.5, *fills)
    match draw(st.sampled_from(("given", "mixed", "constant", "chosen", "ranked", "integers", "bias"))):
        case "given":
            return form.given(np.where(hidden, fills[0], 0).astype(form.dtype), *shape)
        case "mixed":
            return form.given(np.where(hidden, both, 0).astype(form.dtype), *shape)
        case "constant":
            return form.constant(np.where(hidden, both if draw(st.booleans()) else fills[0], 0))
        case "chosen":
            least = fills[1] if draw(st.booleans()) else 0
            return form.add("Where", form.given(hidden, *shape), form.constant(fills[0]), form.constant(least))
        case "ranked":
            ones = (1,) * draw(st.integers(len(shape), 4))
            return form.add(
                "Where", form.given(hidden, *shape), form.constant(np.full(ones, fills[0])), form.constant(0)
            )
        case "integers":
            visible = form.add("Cast", form.given((~hidden).astype(np.int64), *shape), to=KINDS[form.kind])
            inverse = form.add("Sub", form.constant(1), visible)
            return form.add("Mul", inverse, form.constant(max(fills[0], float(np.finfo(form.dtype).min))))
        case _:
            return form.given(form.rng.standard_normal(hidden.shape).astype(form.dtype), *shape)


def _cast(draw: st.DrawFn, form: Form, weights: str) -> str:
    """Sometimes cast to another type and back."""
    through = draw(st.sampled_from(CASTS)) if draw(st.sampled_from((False, False, True))) else ()
    for kind in (*through, form.kind) if through else ():
        weights = form.add("Cast", weights, to=KINDS.get(kind) or TensorProto.DataType.Value(kind))
    return weights
