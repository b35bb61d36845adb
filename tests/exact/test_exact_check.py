"""Exact decisions: the rewrites of every pass's example are equal, and changed ones are not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from msgspec.structs import replace

from exact_mutants import mutants
from sardonyx import runtime
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.rules import Rule
from sardonyx.ir.transaction import Substitution
from sardonyx.passes import ALL, Pass
from sardonyx.verification.exact_check import EQUAL, Claim, decide
from sardonyx.verification.rewrite_models import Excerpt, SmallModel

MOST_NODES = 60
# Their results depend on the order of bounds.
BY_ORDER = {"merge-clips"}
# Multiplies a mask by a number just below one, so that hidden positions stay hidden: close, and not equal.
NOT_EQUAL = {"fuse-attention"}
# Changes that change nothing: operands of a sum in another order, any number for "true", an end beyond the last axis,
# the bias of keys (which shifts all scores of a row alike), a shift of zeros, bounds that never apply, and a type of
# weights that has no kernel. What a kernel computed is not known exactly: its bits are compared.
HARMLESS = {
    ("fuse-gemm-transpose", "Gemm.transA"), ("fuse-gemm-activation", "FusedGemm.transB"),
    ("fuse-bias-gelu", "BiasGelu"), ("fuse-matmul-transpose", "FusedMatMul.transB"),
    ("fuse-shape-gather", "Shape.end"), ("merge-clips", "Clip without"), ("merge-slices", "constant [2]"),
    ("fuse-packed-attention", "constant [4]"), ("fuse-skip-layer-norm", "SkipLayerNormalization"),
    ("fuse-skip-rms-norm", "SkipSimplifiedLayerNormalization"), ("fuse-skip-bias", "SkipLayerNormalization"),
    ("fuse-conv-affine", "Conv without"), ("fuse-packed-attention", "Concat.axis"), ("fuse-batch-norm", "Cast.to"),
    ("fuse-conv-affine", "Cast.to"), ("fold-where-branches", "constant []"), ("fold-constants", "constant [2]"),
}  # fmt: skip


def observed(one: Pass, observe: Callable[[Excerpt], None]) -> None:
    """Call with the narrowest excerpt of each rewrite of the example that exact arithmetic finds equal, if any does."""

    def widened(facts: Facts, _rule: Rule, _root: str, rewrite: Substitution) -> None:
        if rewrite.pairs:
            narrow = Excerpt.narrowest(facts, rewrite)
            excerpts = (narrow, *narrow.widened(MOST_NODES))
            observe(next((each for each in excerpts if decide(each).claim in EQUAL), narrow))

    model = io.from_proto(onnx.parser.parse_model(one.example.before))
    Rewriter(Facts(model, target=one.targets[0], evaluate=runtime.evaluate), [one], observe=widened).run()


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_the_rewrites_of_an_example_are_equal(one: Pass) -> None:
    claims = set[Claim]()
    observed(one, lambda excerpt: claims.add(decide(excerpt).claim))
    expected = (
        Claim.UNEQUAL if one.name in NOT_EQUAL else Claim.ORDERS_TRIED if one.name in BY_ORDER else Claim.ALL_VALUES
    )
    assert claims <= {expected, Claim.ALL_VALUES}
    assert not claims or expected in claims


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_changed_rewrite_is_not_equal(one: Pass) -> None:
    survivors = set[str]()

    def change(excerpt: Excerpt) -> None:
        if decide(excerpt).claim in EQUAL:
            survivors.update(what for what, mutant in mutants(excerpt) if decide(mutant).claim is not Claim.UNEQUAL)

    observed(one, change)
    assert {(one.name, what) for what in survivors} <= HARMLESS


BATCH_NORM = """<ir_version: 8, opset_import: ["": 17]>
agraph (float[N, 64, 5, 5] x) => (float[N, 64, 5, 5] y)
<float[64, 64, 1, 1] w, float[64] b, float[64] g, float[64] h, float[64] m, float[64] v> {
    c = Conv(x, w, b)  y = BatchNormalization(c, g, h, m, v)
}"""
EXPONENTIAL = """<ir_version: 8, opset_import: ["": 17]>
agraph (float[N, 64] x) => (float[N, 64] y) <float[64] w> { a = Exp(w)  y = Add(x, a) }"""


def folded(text: str, seed: int = 0) -> Excerpt:
    """The excerpt of the only rewrite of a model with random weights."""
    model, excerpts = onnx.parser.parse_model(text), list[Excerpt]()
    rng = np.random.default_rng(seed)
    for info in model.graph.value_info:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        weight = rng.uniform(0.5, 2, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, info.name))

    def observe(facts: Facts, _rule: Rule, _root: str, rewrite: Substitution) -> None:
        excerpts.append(Excerpt.narrowest(facts, rewrite))

    Rewriter(Facts(io.from_proto(model), evaluate=runtime.evaluate), list(ALL), observe=observe).run()
    (excerpt,) = excerpts
    return excerpt


def with_exact(excerpt: Excerpt, model: onnx.ModelProto, constants: Mapping[str, ir.TensorProtocol]) -> Excerpt:
    other = copy.copy(excerpt)
    other.exact = SmallModel(model, constants)
    return other


def test_a_folded_normalisation_is_decided_with_exact_weights() -> None:
    """The stored weights are rounded, so that only the expressions are equal: for all weights, and decided once."""
    excerpt = folded(BATCH_NORM)
    assert decide(excerpt).claim is Claim.ALL_VALUES
    assert 0.5 < excerpt.rounding_units < 0.51
    assert excerpt.signature == folded(BATCH_NORM, seed=1).signature
    assert not excerpt.computed_elements
    assert decide(with_exact(excerpt, excerpt.after.proto, excerpt.after.constants)).claim is Claim.UNEQUAL


def test_a_wrong_expression_is_not_equal() -> None:
    """Along the wrong axis of a square weight, with a neighbour of epsilon, other operators, and without the bias."""
    excerpt = folded(BATCH_NORM)
    proto, constants = excerpt.exact.proto, excerpt.exact.constants
    named = {tensor.shape.numpy(): name for name, tensor in constants.items()}
    turned, neighbour = np.array([1, -1, 1, 1]), np.nextafter(constants[named[()]].numpy(), np.float32(1))
    for name, wrong in ((named[(4,)], turned), (named[()], neighbour)):
        assert decide(with_exact(excerpt, proto, {**constants, name: ir.tensor(wrong)})).claim is Claim.UNEQUAL
    changes = {"Sqrt": "Neg", "Add": "Sub", "Sub": "Add", "Div": "Mul", "Conv": ""}
    for index, node in enumerate(proto.graph.node):
        if node.op_type in changes:
            model = onnx.ModelProto()
            model.CopyFrom(proto)
            changed = model.graph.node[index]
            if changes[node.op_type]:
                changed.op_type = changes[node.op_type]
            else:
                del changed.input[2:]
            assert decide(with_exact(excerpt, model, constants)).claim is Claim.UNEQUAL


def test_a_folded_constant_must_be_near_its_exact_value() -> None:
    excerpt = folded(EXPONENTIAL)
    decision = decide(excerpt)
    assert decision.claim is Claim.ALL_VALUES
    assert 0 < decision.units < 2
    ((name, tensor),) = excerpt.exact.constants.items()
    far = ir.tensor(tensor.numpy() * np.float32(1.0001))
    assert decide(with_exact(excerpt, excerpt.exact.proto, {name: far})).claim is Claim.UNEQUAL


def excerpt_of(shape: tuple[int, ...], before: str, after: str) -> Excerpt:
    """An excerpt of two models with one input of this shape; both are written without their types."""
    excerpt = folded(BATCH_NORM)
    excerpt.border = (replace(excerpt.border[0], name="x", shape=shape),)
    excerpt.before, excerpt.exact = (side_of(text) for text in (before, after))
    excerpt.operators = frozenset(n.op_type for each in (excerpt.before, excerpt.exact) for n in each.proto.graph.node)
    return excerpt


def side_of(text: str) -> SmallModel:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> agraph (float[D] x) => (float[E] y)' + text
    )
    constants = {each.name: ir.tensor(onnx.numpy_helper.to_array(each)) for each in proto.graph.initializer}
    return SmallModel(proto, constants)


def test_a_number_that_fits_one_smaller_size_by_chance_is_not_equal() -> None:
    """The mean of 40 numbers is not their sum divided by 8, to which the size is reduced first."""
    for scale, claim in ((0.125, Claim.UNEQUAL), (0.025, Claim.ALL_VALUES)):
        after = f"<float s = {{{scale}}}> {{ a = ReduceSum(x)  y = Mul(a, s) }}"
        assert decide(excerpt_of((40,), "{ y = ReduceMean(x) }", after)).claim is claim


CHOSEN = "<float z = {{0}}, float o = {{1}}> {{ c = {}(x, z)  y = Where(c, x, o) }}"
SCALE_FIRST = "<float s = {{{}}}, float t = {{{}}}> {{ a = Mul(x, s)  y = Max(a, t) }}"
SCALE_LAST = "<float s = {{{}}}, float u = {{{}}}> {{ a = {}(x, u)  y = Mul(a, s) }}"


def test_numbers_that_are_equal_are_tried_too() -> None:
    """Below 0, and below or equal to it, are not the same for 0 alone."""
    for relation, claim in (("LessOrEqual", Claim.UNEQUAL), ("Less", Claim.ALL_VALUES)):
        assert decide(excerpt_of((40,), CHOSEN.format("Less"), CHOSEN.format(relation))).claim is claim


@pytest.mark.parametrize("number", [6.0, -6.0, 1 / 6, 17.0, -17.0, 1e-3])
@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_a_limit_may_be_scaled_by_a_positive_number(number: float, bound: float) -> None:
    before = SCALE_FIRST.format(number, bound * number)
    afters = (SCALE_LAST.format(number, bound, name) for name in (("Max", "Min") if number > 0 else ("Min", "Max")))
    right, wrong = (decide(excerpt_of((40,), before, after)).claim for after in afters)
    assert right in EQUAL
    assert wrong is Claim.UNEQUAL
    assert (right is Claim.ALL_VALUES) == (abs(number) == 6)  # a product of 2 and 3


def test_a_limit_is_not_scaled_by_any_number() -> None:
    first, last = "{{ a = {}  b = Mul(a, x)  y = Relu(b) }}", "{{ a = {}  b = Relu(x)  y = Mul(a, b) }}"
    claims = {"Exp(x)": Claim.ORDERS_TRIED, "Sin(x)": Claim.UNEQUAL}  # of Exp it is not known that it is positive
    for factor, claim in claims.items():
        assert decide(excerpt_of((40,), first.format(factor), last.format(factor))).claim is claim


CUT = "<int64[1] a = {{0}}, int64[1] b = {{{}}}> {{ y = Slice(x, a, b) }}"
HEADS = """<int64[4] s = {{1, 1500, 6, 64}}, int64[3] f = {{1, 1500, {}}}> {{
    a = Reshape(x, s)  b = Transpose<perm = [0, 2, 1, 3]>(a)  c = Attention(b, b, b)
    d = Transpose<perm = {}>(c)  y = Reshape(d, f)
}}"""
MERGED = "{ y = Attention<q_num_heads = 6, kv_num_heads = 6>(x, x, x) }"


def test_a_smaller_size_is_not_taken_beyond_a_number_that_lies_inside_the_larger_one() -> None:
    """The first 1499 elements are not all of 1500, and are all of any smaller number of elements."""
    for end, claim in ((1499, Claim.UNEQUAL), (1500, Claim.ALL_VALUES), (2**40, Claim.ALL_VALUES)):
        assert decide(excerpt_of((1500, 20), CUT.format(end), "{ y = Identity(x) }")).claim is claim


def test_attention_over_a_long_fixed_length_is_decided_at_a_smaller_one() -> None:
    decision = decide(excerpt_of((1, 1500, 384), HEADS.format(384, "[0, 2, 1, 3]"), MERGED))
    assert (decision.claim, decision.is_smaller) == (Claim.ALL_VALUES, True)
    wrong = decide(excerpt_of((1, 1500, 384), HEADS.format(384, "[0, 1, 2, 3]"), MERGED))
    assert wrong.claim is Claim.UNDECIDED  # unequal at the smaller size, too large at its own
    assert not decide(excerpt_of((1, 15, 384), "{ y = Relu(x) }", "{ a = Relu(x)  y = Relu(a) }")).is_smaller


def test_an_integer_that_is_not_defined_may_be_any() -> None:
    """The logarithm of 0 is no integer; a result that does not use it is decided."""
    text = "<float o = {{0}}, int64 k = {{7}}, bool c = {{{}}}> {{ l = Log(o)  i = Cast<to = 7>(l)  z = Where(c, k, i) "
    text += " f = Cast<to = 1>(z)  y = Add(x, f) }}"
    after = "<float f = {7}> { y = Add(x, f) }"
    assert decide(excerpt_of((3,), text.format(1), after)).claim is Claim.ALL_VALUES
    assert decide(excerpt_of((3,), text.format(0), after)).claim is Claim.UNEQUAL
