"""Proofs for every size: what is proven holds at sizes that were not tried, and what holds by chance is not proven."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import recorded
from passes.near_models import near_models
from sardonyx.errors import RuntimeFailure
from sardonyx.ir.shapes.expr import Size, multiply, symbol, value_of
from sardonyx.runtime import Session
from sardonyx.verification.every_size import EverySize, at_every_size
from sardonyx.verification.exact_check import Claim, decide
from sardonyx.verification.index_terms import Index, Read, Tensor, Unproven, fused, source, text_of
from sardonyx.verification.rewrite_models import Border, Excerpt, SmallModel
from sardonyx.verification.symbolic_operators import Known, SymbolicCall, Value, evaluated

N, M = symbol("N"), symbol("M")
HEADER = '<ir_version: 10, opset_import: ["": 23]> agraph (float[D] x) => (float[E] y)'


def excerpt_of(shape: tuple[Size, ...], before: str | onnx.ModelProto, after: str | onnx.ModelProto) -> Excerpt:
    excerpt = Excerpt.__new__(Excerpt)
    excerpt.before, excerpt.exact = map(side_of, (before, after))
    excerpt.border = (Border("x", ir.DataType.FLOAT, shape, None, hides=False),)
    excerpt.operators = frozenset(n.op_type for each in (excerpt.before, excerpt.exact) for n in each.proto.graph.node)
    excerpt.has_parameters, excerpt.folds, excerpt.results = False, (False,), 1
    return excerpt


def side_of(side: str | onnx.ModelProto) -> SmallModel:
    proto = onnx.parser.parse_model(HEADER + side) if isinstance(side, str) else side
    constants = {each.name: ir.tensor(onnx.numpy_helper.to_array(each)) for each in proto.graph.initializer}
    return SmallModel(proto, constants)


SAME = "{ y = Identity(x) }"
# Of x[N, 6]; together they use all operators that are described.
PROGRAMS = {
    "sizes": "<int64 o = {0}, int64[1] s = {0}, int64 two = {2}, int64 one = {1}, int64[1] six = {6}>"
    "{ a = Shape(x)  n = Gather(a, o)  p = Add(n, one)  q = Mul(p, two)  r = Sub(q, n)  d = Sub(r, two)"
    "  e = Div(q, two)  f = Sub(e, one)  g = Min(d, f)  u = Unsqueeze(g, s)  b = Concat<axis = 0>(u, six)"
    "  y = Reshape(x, b) }",
    "choices of sizes": "<int64 o = {0}, int64[1] s = {0}, int64 one = {1}, int64 k = {9}, int64[1] six = {6}>"
    "{ a = Shape(x)  n = Gather(a, o)  p = Add(n, one)  m = Max(n, one, p)  e = Equal(p, n)  h = Not(e)"
    "  w = Where(h, m, k)  c = Cast<to = 7>(w)  i = Identity(c)  j = Sub(i, one)  u = Unsqueeze(j, s)"
    "  b = Concat<axis = 0>(u, six)  y = Reshape(x, b) }",
    "parts of sizes": "<int64[1] a = {0}, int64[1] b = {1}, int64[1] z = {0}, int64 h = {1}, int64[1] m = {-1}>"
    "{ s = Shape(x)  p = Slice(s, a, b, z)  q = Gather(s, h)  r = Reshape(q, m)  t = Squeeze(r, a)  u = Unsqueeze(t, z)"
    "  v = Concat<axis = 0>(u, p)  w = Transpose(x)  y = Expand(w, v) }",
    "parts": "<int64[1] a = {1}, int64[1] e = {-1}, int64[1] k = {1}, int64[1] t = {2}, int64[2] l = {1, 1}>"
    "{ p = Slice(x, a, e, k, t)  q, r = Split<axis = 1>(p, l)  y = Concat<axis = -1>(r, q, x) }",
    "equal parts": "{ p, q, r = Split<axis = -1, num_outputs = 3>(x)  y = Add(p, r) }",
    "rows": "<int64 i = {-1}, int64[2] j = {2, 0}, int64[1] k = {0}> { p = Gather<axis = 1>(x, i)"
    "  q = Gather<axis = 1>(x, j)  g = Flatten<axis = -1>(x)  t = Transpose(g)  r = MatMul(t, q)"
    "  s = ReduceSum<keepdims = 0>(r, k)  f = Flatten<axis = 0>(x)  u = Gather<axis = 0>(f, i)  v = ReduceMin(u, k)"
    "  w = Unsqueeze(p, k)  a = Transpose(w)  b = Sub(a, s)  y = Add(b, v) }",
    "a norm": "<float[6] w = {1, 2, 3, 4, 5, 6}, float[6] b = {6, 5, 4, 3, 2, 1}>"
    "{ n = LayerNormalization<epsilon = 0.5>(x, w, b)  m = RMSNormalization<axis = 1>(n, w)"
    "  y = Softmax<axis = -1>(m) }",
    "means": "<int64[1] k = {1}, int64[1] e = {-1}> { a = ReduceMean(x, k)  b = ReduceMax<keepdims = 0>(x, e)"
    "  c = Unsqueeze(b, e)  d = Sub(c, a)  y = Mul(d, x) }",
    "matrices": "<float[6, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[2] b = {1, 2}>"
    "{ g = Gemm(x, w, b)  t = Transpose(g)  u = Gemm<transA = 1, transB = 1>(t, w)"
    "  y = MatMul(u, w) }",
    "attention": "<int64[4] s = {0, 1, 2, 3}, int64[3] f = {1, -1, 6}> { h = Reshape(x, s)"
    "  q = Transpose<perm = [1, 2, 0, 3]>(h)  a = Attention<scale = 0.25>(q, q, q)"
    "  b = Transpose<perm = [0, 2, 1, 3]>(a)  c = Reshape(b, f)"
    "  y = Attention<q_num_heads = 2, kv_num_heads = 2>(c, c, c) }",
    "choices": "<float[1] o = {0}, int64[1] z = {0}, float two = {2}> { s = Shape(x)  f = ConstantOfShape(s)"
    "  l = Less(x, f)  c = Cast<to = 1>(l)  w = Where(l, two, x)  k = CastLike(w, x)  m = Max(k, c)"
    "  y = Min(m, x, w) }",
    "counts": "<int64[1] s = {0}, int64 o = {0}, int64 i = {1}, int64[1] k = {1}> { a = Shape<start = 0, end = -1>(x)"
    "  b = Squeeze(a, s)  r = Range(o, b, i)  c = Cast<to = 1>(r)  u = Unsqueeze(c, k)  y = Add(x, u) }",
}
COUNT = "<int64[1] s = {0}, int64 o = {0}, int64 i = {1}> { a = Shape<start = 0, end = 1>(x) b = Squeeze(a, s) "
COUNT += "r = Range(o, b, i) "
NUMBER = "a = Shape<start = 0, end = 1>(x)  n = Squeeze(a, o)  "
# Of x[N, 6]; how sizes relate in these is not known, or they have no description.
UNPROVEN = {
    "a computed target": "{ s = Cast<to = 7>(x)  y = Reshape(x, s) }",
    "axes that are sizes": "{ s = Shape(x)  y = ReduceSum(x, s) }",
    "a quotient that may be negative": "<int64[1] o = {0}, int64 k = {9}, int64 t = {2}> {" + NUMBER +
        "d = Sub(n, k)  e = Div(d, t)  c = Cast<to = 1>(e)  y = Mul(x, c) }",
    "a divisor that may be 0": "<int64[1] o = {0}, int64 k = {9}, int64 t = {2}> {" + NUMBER +
        "d = Sub(n, t)  e = Div(k, d)  c = Cast<to = 1>(e)  y = Mul(x, c) }",
    "sizes that may be equal": "<int64[1] o = {0}, int64 k = {9}, int64 t = {2}> {" + NUMBER +
        "e = Equal(n, k)  w = Where(e, k, t)  c = Cast<to = 1>(w)  y = Mul(x, c) }",
    "axes of any length": "{ y = Squeeze(x) }",
    "a long axis": "<int64[1] o = {0}> { y = Squeeze(x, o) }",
    "a target that may be 0": "<int64[1] o = {0}, int64[1] i = {1}, int64[1] e = {99999999999}, int64[1] k = {6}> {"
        "a = Shape<start = 0, end = 1>(x)  m = Sub(a, i)  p = Slice(x, i, e, o)  t = Concat<axis = 0>(m, k)"
        "  y = Reshape(p, t) }",
    "a size that does not divide": "<int64[2] k = {-1, 4}> { y = Reshape(x, k) }",
    "another size": "<int64[2] k = {5, 6}> { y = Expand(x, k) }",
    "a part of a joined axis": "<int64[1] k = {-1}, int64[1] a = {1}, int64[1] e = {3}> "
        "{ t = Transpose(x)  r = Reshape(t, k)  y = Slice(r, a, e) }",
    "backwards": "<int64[1] a = {5}, int64[1] e = {0}, int64[1] k = {1}, int64[1] m = {-1}>"
        "{ y = Slice(x, a, e, k, m) }",
    "from a place that may be negative": "<int64[1] o = {0}, int64[1] k = {9}> { a = Shape<start = 0, end = 1>(x)"
        "  d = Sub(a, k)  y = Slice(x, d, a, o) }",
    "to a place before the start": "<int64[1] k = {9}, int64[1] e = {5}, int64[1] o = {0}> { y = Slice(x, k, e, o) }",
    "halves of any size": "{ y, z = Split<num_outputs = 2>(x) }",
    "parts of any size": "<int64[2] k = {2, 3}> { y, z = Split(x, k) }",
    "a row that may be negative": "<int64[1] o = {0}, int64 k = {9}> {" + NUMBER + "d = Sub(n, k)  y = Gather(x, d) }",
    "a column of another length": "<float[2, 1] k = {2, 3}> { y = Concat<axis = 1>(x, k) }",
    "integers like floats": "<int64 k = {9}> { y = CastLike(k, x) }",
    "floats like integers": "<int64 k = {9}> { y = CastLike(x, k) }",
    "a sum of all": "{ y = ReduceSum(x) }",
    "a sum of all that are listed": "<int64[0] k = {}> { y = ReduceSum(x, k) }",
    "a vector": "<float[6] v = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, v) }",
    "sizes that may not fit": "{ y = MatMul(x, x) }",
    "a factor of a product": "<float[6, 1] w = {1, 2, 3, 4, 5, 6}> { y = Gemm<alpha = 2.0>(x, w) }",
    "a factor of a bias": "<float[6, 1] w = {1, 2, 3, 4, 5, 6}, float[1] b = {1}> { y = Gemm<beta = 2.0>(x, w, b) }",
    "attention in an order": "<int64[3] k = {1, -1, 6}> { q = Reshape(x, k)"
        "  y = Attention<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>(q, q, q) }",
    "heads of another width": "<int64[3] k = {1, -1, 6}> { q = Reshape(x, k)"
        "  y = Attention<q_num_heads = 4, kv_num_heads = 4>(q, q, q) }",
    "numbers from one": "<int64[1] o = {0}, int64 i = {1}> {" + NUMBER + "r = Range(i, n, i)  y = Cast<to = 1>(r) }",
    "even numbers": "<int64[1] o = {0}, int64 z = {0}, int64 t = {2}> {" + NUMBER +
        "r = Range(z, n, t)  y = Cast<to = 1>(r) }",
    "no numbers": "<int64[1] o = {0}, int64 z = {0}, int64 i = {1}> {" + NUMBER +
        "m = Sub(n, i)  r = Range(z, m, i)  y = Cast<to = 1>(r) }",
    "what has no description": "<int64[1] k = {2}> { y, z = TopK(x, k) }",
}  # fmt: skip
EQUAL_EVERYWHERE = {
    "a round trip": ("<int64[3] s = {-1, 2, 3}, int64[2] f = {-1, 6}> { a = Reshape(x, s)  y = Reshape(a, f) }", SAME),
    "a target of sizes": (
        "<int64[3] s = {0, 2, 3}> { y = Reshape(x, s) }",
        "<int64[2] t = {2, 3}> { a = Shape<start = 0, end = 1>(x)  b = Concat<axis = 0>(a, t)  y = Reshape(x, b) }",
    ),
    "elements in any order": ("{ a = Relu(x)  y = Transpose(a) }", "{ a = Transpose(x)  y = Relu(a) }"),
    "two slices": (
        "<int64[1] a = {1}, int64[1] e = {9223372036854775807}, int64[1] k = {1}>"
        "{ p = Slice(x, a, e, k)  y = Slice(p, a, e, k) }",
        "<int64[1] b = {2}, int64[1] e = {9223372036854775807}, int64[1] k = {1}> { y = Slice(x, b, e, k) }",
    ),
    "a column": (
        "<int64 i = {2}> { y = Gather<axis = 1>(x, i) }",
        "<int64[1] a = {2}, int64[1] e = {3}, int64[1] k = {1}> { p = Slice(x, a, e, k)  y = Squeeze(p, k) }",
    ),
    "the last column": (
        "<int64 i = {-1}> { y = Gather<axis = 1>(x, i) }",
        "<int64[1] a = {5}, int64[1] e = {6}, int64[1] k = {1}> { p = Slice(x, a, e, k)  y = Squeeze(p, k) }",
    ),
    "a row of twos": (
        "<int64[1] s = {6}> { c = ConstantOfShape<value = float[1] {2}>(s)  y = Mul(x, c) }",
        "<int64[1] s = {6}> { c = ConstantOfShape<value = float[1] {2}>(s)  k = Cast<to = 1>(c)  y = Mul(x, k) }",
    ),
    "zeros": (
        "<float z = {0}> { s = Shape(x)  y = Expand(z, s) }",
        "{ s = Shape(x)  y = ConstantOfShape(s) }",
    ),
    "a product of matrices": (
        "{ t = Transpose(x)  y = MatMul(x, t) }",
        "<int64[3] s = {-1, 2, 3}, int64[2] f = {-1, 6}>"
        "{ a = Reshape(x, s)  b = Reshape(a, f)  y = Gemm<transB = 1>(b, x) }",
    ),
    "rows of a fixed length": (
        "<int64[1] k = {1}> { y = ReduceMean(x, k) }",
        "<int64[1] k = {1}, float n = {6}> { s = ReduceSum(x, k)  y = Div(s, n) }",
    ),
}
EQUAL_WHERE_TRIED = {
    "an end beyond the sizes tried": ("<int64[1] a = {0}, int64[1] e = {1000}> { y = Slice(x, a, e) }", SAME),
    "places below a limit": (
        COUNT + "c = Cast<to = 1>(r)  t = Transpose(x)  y = Add(t, c) }",
        COUNT.replace("int64[1] s", "int64 h = {1000}, int64[1] s")
        + "m = Min(r, h)  c = Cast<to = 1>(m)  t = Transpose(x)  y = Add(t, c) }",
    ),
    "a size below a limit": (
        "{ a = Shape<start = 0, end = 1>(x)  c = Cast<to = 1>(a)  y = Mul(x, c) }",
        "<int64 h = {1000}> { a = Shape<start = 0, end = 1>(x)  m = Min(a, h)  c = Cast<to = 1>(m)  y = Mul(x, c) }",
    ),
}


@pytest.mark.parametrize("what", EQUAL_EVERYWHERE)
def test_what_holds_for_every_size_is_proven(what: str) -> None:
    decision = decide(excerpt_of((N, 6), *EQUAL_EVERYWHERE[what]))
    assert (decision.claim, decision.every_size) == (Claim.ALL_VALUES, True)


@pytest.mark.parametrize("what", EQUAL_WHERE_TRIED)
def test_what_holds_for_the_sizes_tried_is_not_proven(what: str) -> None:
    decision = decide(excerpt_of((N, 6), *EQUAL_WHERE_TRIED[what]))
    assert (decision.claim, decision.every_size) == (Claim.ALL_VALUES, False)


def results(model: onnx.ModelProto) -> Iterator[np.ndarray]:
    """The outputs for several numbers of rows, up to the first for which the model does not run."""
    with contextlib.suppress(RuntimeFailure):
        session = Session(model, threads=1)
        for rows in (2, 1, 6):
            array = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
            yield np.asarray(session.run({"x": array})[0])


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether each node has as many operands as its operator takes."""
    counts = [(onnx.defs.get_schema(node.op_type, 23).min_input, len(node.input)) for node in model.graph.node]
    return all(least <= count for least, count in counts)


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_is_equal_to_itself_and_to_no_other(what: str) -> None:
    """What is said to have the same terms computes the same: no description forgets an operand or an attribute."""
    model = onnx.parser.parse_model(HEADER.replace("[D] x", "[D, 6] x") + PROGRAMS[what])
    model.graph.output[0].type.tensor_type.ClearField("shape")
    excerpt, expected = excerpt_of((N, 6), model, model), list(results(model))
    assert at_every_size(excerpt) is EverySize.SAME_TERMS
    found = Counter[str]()
    for change, other in near_models(model, values=2):
        if model.graph.input != other.graph.input or not is_valid(other):
            continue
        excerpt.exact = side_of(other)
        follows = at_every_size(excerpt)
        found[follows.name] += 1
        excerpt.before = excerpt.exact
        found[f"itself {at_every_size(excerpt).name}"] += 1
        excerpt.before = side_of(model)
        if follows is EverySize.SAME_TERMS:
            for before, after in zip(expected, results(other), strict=False):
                np.testing.assert_allclose(before, after, 1e-5, 1e-6, err_msg=change)
    recorded.check("every_size", {what: found})


@pytest.mark.parametrize("what", UNPROVEN)
def test_what_is_not_described_is_not_proven(what: str) -> None:
    assert at_every_size(excerpt_of((N, 6), UNPROVEN[what], UNPROVEN[what])) is EverySize.UNKNOWN


def test_old_operators_and_unknown_ranks_are_not_described() -> None:
    excerpt = excerpt_of((N, 6), SAME, SAME)
    assert at_every_size(excerpt) is EverySize.SAME_TERMS
    excerpt.border = (Border("x", ir.DataType.FLOAT, None, None, hides=False),)
    assert at_every_size(excerpt) is EverySize.UNKNOWN
    for opset, domain in ((12, ""), (23, "com.microsoft")):
        excerpt = excerpt_of((N, 6), SAME, SAME)
        for side in (excerpt.before, excerpt.exact):
            side.proto.opset_import[0].version, side.proto.graph.node[0].domain = opset, domain
        assert at_every_size(excerpt) is EverySize.UNKNOWN


def test_fixed_sizes_are_all_there_are() -> None:
    assert at_every_size(excerpt_of((2000, 6), *EQUAL_EVERYWHERE["a round trip"])) is EverySize.IF_TRIED


def test_truth_values_are_not_floats() -> None:
    """A cast of floats to floats is nothing; one of truth values is not."""
    less = "<float o = {0}> { a = Less(x, o)  y = Cast<to = 1>(a) }"
    assert at_every_size(excerpt_of((N, N), less, "<float o = {0}> { y = Less(x, o) }")) is EverySize.UNKNOWN


def test_a_size_is_no_known_place() -> None:
    """A Gather of sizes at a place that is a size itself: nothing is proven, and nothing fails."""
    text = "<int64[1] o = {0}> { s = Shape(x)  n = Size(x)  t = Gather(s, n)  c = Cast<to = 1>(t)  y = Add(x, c) }"
    assert at_every_size(excerpt_of((N, 6), text, text)) is EverySize.UNKNOWN


def moves(
    rng: np.random.Generator, tensor: Tensor, array: np.ndarray, sizes: dict[str, int]
) -> tuple[Value, np.ndarray]:
    """A random move of a tensor, and of an array in the same way."""
    rank = len(tensor.axes)
    match rng.integers(4):
        case 0:
            perm = [int(axis) for axis in rng.permutation(rank)]
            node = onnx.helper.make_node("Transpose", ["x"], ["y"], perm=perm)
            return evaluated(call_of(node, tensor))[0], array.transpose(perm)
        case 1:
            axis = int(rng.integers(rank))
            start, end = int(rng.integers(2)), (1 << 60, -1)[int(rng.integers(2))]
            node = onnx.helper.make_node("Slice", ["x", "a", "e", "k"], ["y"])
            limits = [Known(np.array([each], object)) for each in (start, end, axis)]
            part = [slice(None)] * rank
            part[axis] = slice(start, None if end > 0 else end)
            return evaluated(call_of(node, tensor, *limits))[0], array[tuple(part)]
        case 2 if rank > 1:
            axis = int(rng.integers(rank - 1))
            shape = [
                *tensor.shape[:axis],
                multiply(tensor.shape[axis], tensor.shape[axis + 1]),
                *tensor.shape[axis + 2 :],
            ]
        case _:
            axis = int(rng.integers(rank))
            factors = [
                (k, n // k) for n in [tensor.shape[axis]] if isinstance(n, int) for k in range(2, n) if n % k == 0
            ]
            factor = factors[int(rng.integers(len(factors)))] if factors else (1, tensor.shape[axis])
            shape = [*tensor.shape[:axis], *factor, *tensor.shape[axis + 1 :]]
    node = onnx.helper.make_node("Reshape", ["x", "s"], ["y"])
    target = Known(np.array([*shape, None], object)[:-1])
    return evaluated(call_of(node, tensor, target))[0], array.reshape([value_of(size, sizes) for size in shape])


def call_of(node: onnx.NodeProto, *operands: Value) -> SymbolicCall:
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    return SymbolicCall(node, list(operands), attributes, 23, frozenset((N, M)))


def elements(tensor: Tensor, array: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
    """The elements that a description reads from an array."""
    digits = [digit for axis in tensor.axes for digit in axis]
    grid = np.indices([value_of(digit.size, sizes) for digit in digits])
    places = dict(zip(map(id, digits), grid, strict=True))

    def at(index: Index) -> np.ndarray:
        parts = (places[id(digit)] * value_of(stride, sizes) for digit, stride in index.strides.items())
        return sum(parts, np.full(grid.shape[1:], value_of(index.offset, sizes)))

    assert isinstance(tensor.term, Read)
    found = array[tuple(at(index) for index in tensor.term.indices)]
    return found.reshape([value_of(size, sizes) for size in tensor.shape])


def test_a_description_reads_the_elements_that_the_operators_move() -> None:
    """Random moves of a tensor with dynamic sizes, at sizes that are chosen later; equal descriptions are equal."""
    rng = np.random.default_rng(0)
    sizes = {"N": 5, "M": 7}
    array = np.arange(5 * 12 * 7).reshape(5, 12, 7)
    seen: dict[str, np.ndarray] = {}
    described = 0
    for _ in range(400):
        tensor, moved = source("x", (N, 12, M), is_float=True), array
        try:
            for _ in range(int(rng.integers(1, 6))):
                value, moved = moves(rng, tensor, moved, sizes)
                assert isinstance(value, Tensor)
                tensor = value
        except Unproven:
            continue
        described += 1
        short = fused(tensor)
        np.testing.assert_array_equal(elements(tensor, array, sizes), moved)
        np.testing.assert_array_equal(elements(short, array, sizes), moved)
        np.testing.assert_array_equal(seen.setdefault(text_of(short), moved), moved)
    assert described > 200
    assert len(seen) < described


@pytest.mark.parametrize(
    ("contents", "places", "follows"),
    [
        ((N, M, 3), (1, 1), EverySize.SAME_TERMS),
        ((N, M, 3), (0, 1), EverySize.UNKNOWN),
        ((N, M, M), (1, 2), EverySize.SAME_TERMS),
        ((N, None, None), (1, 1), EverySize.SAME_TERMS),
        ((N, None, None), (1, 2), EverySize.IF_TRIED),
        ((N, None, None), (0, 1), EverySize.IF_TRIED),
        (None, (1, 1), EverySize.SAME_TERMS),
        (None, (1, 2), EverySize.IF_TRIED),
    ],
)
def test_sizes_that_are_not_known_are_not_the_same(
    contents: tuple[Size | None, ...] | None, places: tuple[int, int], follows: EverySize
) -> None:
    before, after = (f"<int64 i = {{{place}}}> {{ y = Gather(s, i) }}" for place in places)
    excerpt = excerpt_of((N, 6), before, after)
    excerpt.border += (Border("s", ir.DataType.INT64, (3,), contents, hides=False),)
    assert at_every_size(excerpt) is follows


def test_a_place_that_is_a_size_is_described() -> None:
    text = "<int64[1] o = {0}, int64 i = {1}> {" + NUMBER + "m = Max(n, i)  y = Gather(x, m) }"
    assert at_every_size(excerpt_of((N, 6), text, text)) is EverySize.SAME_TERMS
    other = text.replace("{1}", "{2}")
    assert at_every_size(excerpt_of((N, 6), text, other)) is EverySize.UNKNOWN
