"""A model one change away from an example of a pass is rewritten to one that computes the same, or not at all."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest

from passes.near_models import near_models
from passes.util import compare, draw, undone
from sardonyx import runtime
from sardonyx.errors import ModelError, RuntimeFailure
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Rewriter
from sardonyx.passes import ALL, Pass
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Session

SIZES = ({"*": 2}, {"*": 3})  # for all symbolic dims
# The driver undoes no rewrite, except of the first; the others refuse with the same words.
MAY_BE_UNDONE = ("merge-attention-heads", "eliminate-expand", "fold-repeated-gather")
INDICES = (-2, 2)  # the range of integer inputs: they are mostly positions


def rewritten(one: Pass, model: ir.Model) -> onnx.ModelProto | None:
    """The model after the pass alone; None if it changes nothing."""
    log = Rewriter(Facts(model, target=one.targets[0], evaluate=runtime.evaluate), [one]).run()
    assert not undone(log) or one.name in MAY_BE_UNDONE
    return io.to_proto(model) if log.events else None


def assert_same_where_it_runs(before: onnx.ModelProto, after: onnx.ModelProto, *, exact: bool) -> None:
    """Both compute the same for inputs that the first one accepts."""
    try:
        first = Session(before, threads=1)
    except RuntimeFailure:  # of a type without a kernel, or invalid
        return
    second: Session | None = None
    for seed, sizes in enumerate(SIZES):
        feeds = draw(before, seed, sizes)
        feeds = {n: np.clip(v, *INDICES) if v.dtype.kind in "iu" else v for n, v in feeds.items()}
        try:
            wanted = first.run(feeds)
        except RuntimeFailure:
            continue
        second = second or Session(after, threads=1)
        for output, one, other in zip(before.graph.output, wanted, second.run(feeds), strict=True):
            compare(output.name, np.asarray(one), np.asarray(other), exact=exact, rtol=1e-4)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_changed_example_is_rewritten_correctly(one: Pass) -> None:
    for text in (one.example.before, one.example.near_miss):
        for what, proto in near_models(onnx.parser.parse_model(text)):
            try:
                onnx.shape_inference.infer_shapes(proto, strict_mode=True)
                model = io.from_proto(proto)
            except (onnx.shape_inference.InferenceError, ModelError):
                continue  # the change made it invalid
            after = rewritten(one, model)
            if after is not None:
                try:
                    assert_same_where_it_runs(proto, after, exact=one.accuracy is Accuracy.EXACT)
                except (AssertionError, RuntimeFailure) as error:
                    raise AssertionError(f"{what}: {error}") from error
