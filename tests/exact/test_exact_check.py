"""Exact decisions: the rewrites of every pass's example are equal, and changed ones are not."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from exact_mutants import mutants
from sardonyx import runtime
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.ir.rules import Rule
from sardonyx.ir.transaction import Substitution
from sardonyx.passes import ALL, Pass
from sardonyx.verification.exact_check import EQUAL, Claim, decide
from sardonyx.verification.rewrite_models import Excerpt

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
