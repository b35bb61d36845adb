"""The family of small real models and of handwritten models, under any names and in any form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx
from narrowing import present
from sardonyx.ir.io import from_proto
from sardonyx.verbs.analyze.fingerprint import Family, Fingerprint, fingerprint

FAMILIES = {
    "bert": Family.ENCODER,
    "gpt2": Family.DECODER,
    "llama": Family.DECODER,
    "swin": Family.VISION_TRANSFORMER,
    "cnn": Family.CONVOLUTIONAL,
    "mobilenet": Family.CONVOLUTIONAL,
}
SmallModel = Callable[[str, str], Path]


def fingerprint_of(model: onnx.ModelProto) -> Fingerprint:
    return fingerprint(from_proto(model))


def written(body: str, inputs: str, outputs: str = "float[N, M] y", weights: str = "") -> onnx.ModelProto:
    """A model from ONNX text."""
    header = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>'
    return parser.parse_model(f"{header} main ({inputs}) => ({outputs}) {weights} {{ {body} }}")


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        *(
            pytest.param(name, "torchscript", marks=pytest.mark.campaign if i % 3 else ())
            for i, name in enumerate(FAMILIES)
        ),
        ("gpt2", "dynamo"),
    ],
)
def test_optimizing_a_real_model_does_not_change_its_family(name: str, exporter: str, small_model: SmallModel) -> None:
    source = onnx.load(small_model(name, exporter))
    raw = fingerprint_of(source)
    assert raw.family is FAMILIES[name], raw
    for target in ("portable", "ort"):
        after = fingerprint(present(sardonyx.optimize(source, target=target, verify="off").model))
        assert after.family is raw.family, after
        assert after.features.attention == raw.features.attention
        assert after.features.causal == raw.features.causal


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with meaningless or misleading names."""
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"lstm.{len(names)}")

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.metadata_props[:]
    graph = copy.graph
    graph.name = "recurrent"
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = new(value.name)
    for index, node in enumerate(graph.node):
        node.name, node.doc_string = f"gru/{index}", ""
        del node.metadata_props[:]
        node.input[:], node.output[:] = map(new, node.input), map(new, node.output)
    return copy


@pytest.mark.parametrize("name", ["gpt2", "swin"])
def test_names_annotations_and_dead_nodes_have_no_effect(name: str, small_model: SmallModel) -> None:
    model = onnx.load(small_model(name, "torchscript"))
    expected = fingerprint_of(model)
    assert fingerprint_of(renamed(model)) == expected
    del model.graph.value_info[:]
    assert fingerprint_of(model) == expected
    add_dead_layers(model)
    assert fingerprint_of(model) == expected


def add_dead_layers(model: onnx.ModelProto) -> None:
    """Add unused convolutions and an unused recurrence on the first input."""
    first = model.graph.input[0].name
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "dead weight"))
    for index in range(40):
        conv = helper.make_node("Conv", [first, "dead weight"], [f"dead {index}"], kernel_shape=[3, 3])
        model.graph.node.append(conv)
    model.graph.node.append(helper.make_node("LSTM", [first, "dead weight", "dead weight"], ["dead"], hidden_size=4))


PROJECTED = "q = MatMul(x, w) k = MatMul({memory}, w) v = MatMul({memory}, w) t = Transpose <perm = [1, 0]> (k)"
WEIGHT = "<float[8, 8] w = {" + ", ".join(["0.5"] * 64) + "}>"
SELF = PROJECTED.format(memory="x") + " s = MatMul(q, t) "
WEIGHED = " p = Softmax(m) y = MatMul(p, v)"
AXES = "zero = Constant <value_int = 0> () one = Constant <value_int = 1> () low = Constant <value_float = -1e30> () "
AXES += "zeros = Constant <value_ints = [0]> () ones = Constant <value_ints = [1]> () "
RANGES = AXES + "shape = Shape(x) n = Gather(shape, zero) r = Range(zero, n, one) "
RANGES += "rows = Unsqueeze(r, ones) columns = Unsqueeze(r, zeros) "
TRIANGLES = {
    "comparison": RANGES + "seen = LessOrEqual(columns, rows) m = Where(seen, s, low)",
    "comparison the other way": RANGES + "hidden = Less(rows, columns) m = Where(hidden, low, s)",
    "triangle": AXES + "e = Shape(s) o = ConstantOfShape(e) b = Add(o, low) u = Trilu <upper = 1> (b) m = Add(s, u)",
}
FAR = "four = Constant <value_int = 4> () d = Sub(rows, columns) far = Abs(d) near = Less(far, four) "
OPEN = {
    "no mask": "m = Identity(s)",
    "padding": AXES + "kept = Cast <to = 9> (mask) m = Where(kept, s, low)",
    "lengths": RANGES + "seen = Less(columns, mask) m = Where(seen, s, low)",
    "corners of a window": AXES + "e = Shape(s) o = ConstantOfShape(e) b = Add(o, low) u = Trilu <upper = 1> (b) "
    "end = Constant <value_ints = [-99]> () back = Constant <value_ints = [-1]> () "
    "turned = Slice(u, back, end, zeros, back) m = Add(s, turned)",
    "a window": RANGES + FAR + "m = Where(near, s, low)",
}


@pytest.mark.parametrize("mask", TRIANGLES)
def test_a_causal_mask_makes_a_decoder(mask: str) -> None:
    result = fingerprint_of(written(SELF + TRIANGLES[mask] + WEIGHED, "float[N, 8] x", weights=WEIGHT))
    assert (result.family, result.features.causal) == (Family.DECODER, 1)


@pytest.mark.parametrize("mask", OPEN)
def test_another_mask_does_not_make_a_decoder(mask: str) -> None:
    result = fingerprint_of(written(SELF + OPEN[mask] + WEIGHED, "float[N, 8] x, int64[1, N] mask", weights=WEIGHT))
    assert (result.family, result.features.attention, result.features.causal) == (Family.ENCODER, 1, 0)


@pytest.mark.parametrize(
    ("mask", "family"),
    [
        (np.triu(np.full((6, 6), -np.inf, np.float32), 1), Family.DECODER),
        (np.tril(np.ones((6, 6), bool)), Family.DECODER),
        (np.repeat(np.triu(np.full((1, 6, 6), -1e4, np.float32), 1), 2, 0), Family.DECODER),  # for each of a batch
        (np.triu(np.ones((6, 6), np.uint8), 1), Family.DECODER),
        (np.tril(np.ones((6, 6), bool)) & ~np.tril(np.ones((6, 6), bool), -3), Family.DECODER),  # and a window
        (np.tril(np.random.default_rng(0).normal(size=(6, 6))).astype(np.float32), Family.ENCODER),  # a learned bias
        (np.tril(np.full((6, 6), 0.5, np.float32)), Family.ENCODER),  # a table that masks nothing
        (np.ones((6, 6), bool), Family.ENCODER),
        (np.eye(6, dtype=np.float32)[:, ::-1].copy(), Family.ENCODER),
    ],
)
def test_the_values_of_a_constant_mask_are_read(mask: np.ndarray, family: Family) -> None:
    how = "m = Add(s, c)" if mask.dtype == np.float32 else AXES + "b = Cast <to = 9> (c) m = Where(b, s, low)"
    model = written(SELF + how + WEIGHED, "float[6, 8] x", "float[6, 8] y", WEIGHT)
    model.graph.initializer.append(numpy_helper.from_array(mask, "c"))
    assert fingerprint_of(model).family is family


def test_keys_concatenated_to_past_ones_make_a_decoder() -> None:
    body = PROJECTED.format(memory="x") + " all = Concat <axis = 1> (past, t) s = MatMul(q, all) m = Identity(s)"
    body += " values = Concat <axis = 0> (past_values, v) p = Softmax(m) y = MatMul(p, values)"
    inputs = "float[1, 8] x, float[8, P] past, float[P, 8] past_values"
    result = fingerprint_of(written(body, inputs, "float[1, 8] y, float[8, Q] all", WEIGHT))
    assert (result.family, result.features.cached) == (Family.DECODER, 1)


def test_keys_from_another_input_make_an_encoder_decoder() -> None:
    body = PROJECTED.format(memory="z") + " s = MatMul(q, t) m = Identity(s)" + WEIGHED
    result = fingerprint_of(written(body, "float[N, 8] x, float[K, 8] z", weights=WEIGHT))
    assert (result.family, result.features.cross) == (Family.ENCODER_DECODER, 1)


def test_a_cast_like_the_queries_is_no_source_of_keys() -> None:
    body = PROJECTED.format(memory="z") + " two = Constant <value_float = 2.0> () like = CastLike(two, q)"
    body += " scaled = Mul(t, like) cast = CastLike(scaled, q) s = MatMul(q, cast) m = Identity(s)" + WEIGHED
    assert (
        fingerprint_of(written(body, "float[N, 8] x, float[K, 8] z", weights=WEIGHT)).family is Family.ENCODER_DECODER
    )


def test_keys_from_a_downsampled_query_input_are_self_attention() -> None:
    body = "h = Relu(x) less = Slice(h, a, b) q = MatMul(h, w) k = MatMul(less, w) v = MatMul(less, w)"
    body += " t = Transpose <perm = [1, 0]> (k) s = MatMul(q, t) m = Identity(s)" + WEIGHED
    weights = WEIGHT[:-1] + ", int64[1] a = {0}, int64[1] b = {4}>"
    assert fingerprint_of(written(body, "float[9, 8] x", "float[9, 8] y", weights)).family is Family.ENCODER


@pytest.mark.parametrize(
    ("node", "family"),
    [
        ("GroupQueryAttention <num_heads = 2, kv_num_heads = 2>", Family.DECODER),
        ("MultiHeadAttention <num_heads = 2>", Family.ENCODER),
        ("MultiHeadAttention <num_heads = 2, unidirectional = 1>", Family.DECODER),
    ],
)
def test_attention_operators(node: str, family: Family) -> None:
    body = f"q = MatMul(x, w) k = MatMul(x, w) v = MatMul(x, w) y = com.microsoft.{node} (q, k, v)"
    assert fingerprint_of(written(body, "float[B, N, 8] x", "float[B, N, 8] y", WEIGHT)).family is family


@pytest.mark.parametrize("opset", [17, 18])
def test_functions_are_inlined(opset: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "own" : 1]>
    main (float[N, 8] x) => (float[N, 8] y) {WEIGHT} {{ y = own.Layer(x, w) }}
    <domain: "own", opset_import: ["" : {opset}]> Layer (x, w) => (y) {{ {SELF} m = Identity(s) {WEIGHED} }}"""
    model = from_proto(parser.parse_model(text))
    assert fingerprint(model).features.attention == 1
    assert len(model.functions) == 1, "the model is not changed"
    assert model.functions["own", "Layer", ""].opset_imports == {"": opset}


def stepped(steps: int, *, same_weight: bool) -> onnx.ModelProto:
    """An unrolled recurrence: each step multiplies the state and adds the next row."""
    nodes, weights = [], [numpy_helper.from_array(np.ones((8, 8), np.float32), f"w{i}") for i in range(steps)]
    nodes.append(helper.make_node("Split", ["x"], [f"row{i}" for i in range(steps + 1)], axis=0, num_outputs=steps + 1))
    state = "row0"
    for i in range(steps):
        nodes.append(helper.make_node("MatMul", [state, "w0" if same_weight else f"w{i}"], [f"moved{i}"]))
        nodes.append(helper.make_node("Add", [f"moved{i}", f"row{i + 1}"], [f"state{i}"]))
        state = f"state{i}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps + 1, 8])
    answer = helper.make_tensor_value_info(state, TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(nodes, "g", [given], [answer], weights[: 1 if same_weight else steps])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize(("same_weight", "family"), [(True, Family.RECURRENT), (False, Family.MLP)])
def test_unrolled_steps_with_one_weight_are_a_recurrence(same_weight: bool, family: Family) -> None:
    assert fingerprint_of(stepped(6, same_weight=same_weight)).family is family


def test_a_model_without_layers_is_unknown() -> None:
    result = fingerprint_of(written("y = Relu(x)", "float[N, M] x"))
    assert result.family is Family.OTHER
    assert result.confidence <= 0.5


def test_an_empty_graph_has_a_fingerprint() -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="empty")
    assert fingerprint(ir.Model(graph, ir_version=10)).family is Family.OTHER
