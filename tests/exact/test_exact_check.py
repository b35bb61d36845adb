"""Exact decisions: the rewrites of every pass's example are equal, and changed ones are not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest

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
# Their results depend on an order: of bounds, of sizes.
BY_ORDER = {"fuse-hard-sigmoid", "merge-clips"}
# Multiplies a mask by a number just below one, so that hidden positions stay hidden: close, and not equal.
NOT_EQUAL = {"fuse-attention"}
# Changes that change nothing: operands of a sum in another order, any number for "true", an end beyond the last axis,
# the bias of keys (which shifts all scores of a row alike), a shift of zeros, bounds that never apply, any negative
# size of a view, and a type of weights that has no kernel. What a kernel computed has no exact value: its bits are
# compared.
HARMLESS = {
    ("fuse-gemm-transpose", "Gemm.transA"), ("fuse-gemm-activation", "FusedGemm.transB"),
    ("fuse-bias-gelu", "BiasGelu"), ("fuse-matmul-transpose", "FusedMatMul.transB"),
    ("fuse-shape-gather", "Shape.end"), ("merge-clips", "Clip without"), ("merge-slices", "constant [2]"),
    ("fuse-packed-attention", "constant [4]"), ("fuse-skip-layer-norm", "SkipLayerNormalization"),
    ("fuse-skip-rms-norm", "SkipSimplifiedLayerNormalization"), ("fuse-skip-bias", "SkipLayerNormalization"),
    ("fuse-conv-affine", "Conv without"),
    ("fuse-batch-norm", "constant [1]"), ("fuse-conv-affine", "constant [1]"), ("fuse-product-scale", "constant [1]"),
    ("fuse-product-scale", "constant [2]"), ("fuse-norm-affine", "constant [1]"), ("fuse-skip-bias", "constant [1]"),
    ("fuse-packed-attention", "Concat.axis"), ("fold-where-branches", "constant []"), ("fuse-batch-norm", "Cast.to"),
    ("fuse-conv-affine", "Cast.to"), ("fold-constants", "constant [2]"),
}  # fmt: skip
SYMMETRIC = {"Add", "Mul", "And", "Or", "Max", "Min", "Sum", "Equal"}


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


def mutants(excerpt: Excerpt) -> Iterator[tuple[str, Excerpt]]:
    """Copies of an excerpt with one small change after the rewrite, and what was changed."""
    proto, constants = excerpt.exact.proto, excerpt.exact.constants

    def changed(change: Callable[[onnx.GraphProto], object]) -> Excerpt:
        other, model = copy.copy(excerpt), onnx.ModelProto()
        model.CopyFrom(proto)
        change(model.graph)
        other.exact = SmallModel(model, constants)
        return other

    for index, node in enumerate(proto.graph.node):
        for place, attribute in enumerate(node.attribute):
            new = _other(attribute)
            if new is not None:
                yield (
                    f"{node.op_type}.{attribute.name}",
                    changed(lambda g, i=index, k=place, a=new: g.node[i].attribute[k].CopyFrom(a)),
                )
        names = list(node.input)
        if len(set(names[:2])) == 2 and all(names[:2]) and node.op_type not in SYMMETRIC:
            turned = [names[1], names[0], *names[2:]]
            yield node.op_type, changed(lambda g, i=index, n=turned: _rewire(g.node[i], n))
        if len(names) > 2 and names[-1]:
            yield f"{node.op_type} without", changed(lambda g, i=index, n=names[:-1]: _rewire(g.node[i], n))
    for name, tensor in constants.items():
        array = np.array(tensor.numpy())
        if not array.size or array.dtype.kind not in "fiu":
            continue
        middle = np.unravel_index(array.size // 2, array.shape)
        more = np.nextafter(array[middle], array.dtype.type(np.inf)) if array.dtype.kind == "f" else array[middle] - 1
        array[middle] = more
        other = changed(
            lambda g, old=name: [_rewire(n, ["mutant" if i == old else i for i in n.input]) for n in g.node]
        )
        other.exact = SmallModel(other.exact.proto, {**constants, "mutant": ir.tensor(array)})
        yield f"constant {list(array.shape)}", other


def _rewire(node: onnx.NodeProto, names: list[str]) -> None:
    node.input[:] = names


def _other(attribute: onnx.AttributeProto) -> onnx.AttributeProto | None:
    """An attribute with the next number, or its numbers in another order; None for other types."""
    new = onnx.AttributeProto()
    new.CopyFrom(attribute)
    match attribute.type:
        case onnx.AttributeProto.FLOAT:
            new.f = float(np.nextafter(np.float32(attribute.f), np.float32(np.inf)))
        case onnx.AttributeProto.INT:
            new.i += 1
        case onnx.AttributeProto.INTS if list(attribute.ints) != list(attribute.ints)[::-1]:
            new.ints[:] = list(attribute.ints)[::-1]
        case onnx.AttributeProto.INTS if attribute.ints:
            new.ints[0] += 1
        case _:
            return None
    return new


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_changed_rewrite_is_not_equal(one: Pass) -> None:
    survivors = set[str]()

    def change(excerpt: Excerpt) -> None:
        if decide(excerpt).claim in EQUAL:
            survivors.update(what for what, mutant in mutants(excerpt) if decide(mutant).claim is not Claim.UNEQUAL)

    observed(one, change)
    assert {(one.name, what) for what in survivors} <= HARMLESS
