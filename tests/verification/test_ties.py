"""Indices chosen by score: any index of an equal score is accepted, every other index is a fault."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from torch import nn

import sardonyx
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import IndexOrder, TorchEngine
from sardonyx.runtime import Choice
from sardonyx.verification import Oracle, verify
from sardonyx.verification.exclusions import Ties

SCORES = np.array([[1.0, 0.5, 1.0, 1.0 - 1e-7, 0.2]], np.float32)
BEST = np.array([[0, 2, 3]])


@pytest.mark.parametrize(
    ("chosen", "same"),
    [
        ([[2, 3, 0]], [True, True, True]),  # another order of equal scores
        ([[0, 2, 1]], [True, True, False]),  # a lower score
        ([[0, 0, 2]], [False, False, False]),  # one of them twice
        ([[0, 2, 5]], [True, True, False]),  # out of range
        ([[0, 2, -1]], [True, True, False]),
    ],
)
def test_an_index_is_accepted_if_its_score_is_equal(chosen: list[list[int]], same: list[bool]) -> None:
    indices = np.array(chosen)
    ties = Ties(lambda: [Choice(SCORES, 1, BEST)], lambda: [Choice(SCORES, 1, indices)])
    equal = ties.same_score(BEST, indices)
    assert equal is not None
    assert equal.tolist() == [same]
    assert ties.same_score(np.array([[7, 8, 9]]), indices) is None, "indices that the reference did not choose"


def test_an_index_is_wrong_if_the_other_model_gave_it_another_score() -> None:
    ties = Ties(lambda: [Choice(SCORES, 1, BEST)], lambda: [Choice(SCORES * 2, 1, BEST[:, ::-1])])
    equal = ties.same_score(BEST, BEST[:, ::-1])
    assert equal is not None
    assert not equal.any()


def test_every_index_is_as_good_where_all_scores_are_nan() -> None:
    """A row that a mask hides entirely is NaN in one graph and holds numbers in the other."""
    scores, best = np.array([[np.nan] * 3, [0.0, 2.0, 1.0]], np.float32), np.array([[0], [1]])
    other = np.where(np.isnan(scores), np.array([3.0, 4.0, 5.0], np.float32), scores)
    for chosen, same in (([[2], [1]], [True, True]), ([[2], [2]], [True, False])):
        indices = np.array(chosen)
        ties = Ties(lambda: [Choice(scores, 1, best)], lambda indices=indices: [Choice(other, 1, indices)])
        equal = ties.same_score(best, indices)
        assert equal is not None
        assert equal.ravel().tolist() == same
    partly = np.where([[False] * 3, [True, False, False]], np.nan, other)
    ties = Ties(lambda: [Choice(scores, 1, best)], lambda: [Choice(partly, 1, best + 1)])
    assert not np.asarray(ties.same_score(best, best + 1)).any(), "a NaN that the reference does not have"


def test_equal_scores_come_in_the_order_of_their_indices() -> None:
    scores = torch.tensor([0.0, 1.0] * 40)
    with IndexOrder() as order:
        values, indices = torch.topk(scores, 50)
        smallest = torch.sort(scores).indices
        best, first = scores.reshape(4, 20).max(1)
        highest = scores.argmax()
    assert indices.tolist() == [*range(1, 80, 2), *range(0, 20, 2)]
    assert torch.equal(values, scores[indices])
    assert smallest.tolist() == [*range(0, 80, 2), *range(1, 80, 2)]
    assert (best.tolist(), first.tolist(), highest.item()) == ([1.0] * 4, [1] * 4, 1)
    assert [choice[1] for choice in order.choices] == [-1, -1, 1, 0]


def test_only_equal_scores_are_shuffled() -> None:
    scores = torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0, 2.0])
    orders = set[tuple[int, ...]]()
    for sample in range(8):
        with IndexOrder(sample):
            values, indices = torch.topk(scores, 6)
        assert values.tolist() == [3.0, 2.0, 1.0, 1.0, 1.0, 1.0]
        assert indices.tolist()[:2] == [0, 5]
        orders.add(tuple(indices.tolist()))
    assert len(orders) > 2


class Detector(nn.Module):
    """Saturated scores, the best of them, and values computed from their positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(8, 30)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = torch.sigmoid(20 * self.scores(x))
        best, where = torch.topk(scores.flatten(1), 6)
        boxes = torch.gather(x, 1, (where // 30)[..., None].expand(-1, -1, 8))
        labels = scores.argmax(-1)
        return {"best": best, "where": where, "class": where % 30, "boxes": boxes, "labels": labels}


@pytest.fixture(scope="module")
def detector() -> tuple[ir.Model, Oracle]:
    x, module = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1)), Detector()
    exported = sardonyx.export(module, x, dynamic="auto")
    assert exported.model is not None
    engine = TorchEngine(ModuleCall(module.eval(), (x,), {}), ordered=True)
    return exported.model, Oracle(exported.model, inputs={"x": x.numpy()}, trials=3, engine=engine)


def shifted(model: ir.Model, index: int, step: int) -> ir.Model:
    """The model with an output of indices that are off by one."""
    mutant = model.clone()
    right = mutant.graph.outputs[index]
    name, right.name = right.name, "right"
    constant = ir.Node("", "Constant", [], attributes=[ir.AttrInt64("value_int", step)])
    wrong = ir.Node("", "Add", [right, constant.outputs[0]])
    wrong.outputs[0].name, wrong.outputs[0].type, wrong.outputs[0].shape = name, right.type, right.shape
    mutant.graph.extend([constant, wrong])
    mutant.graph.outputs[index] = wrong.outputs[0]
    return mutant


def test_a_head_that_saturates_is_exported(detector: tuple[ir.Model, Oracle]) -> None:
    model, oracle = detector
    verdict = oracle.check(model)
    assert verdict.passed
    assert any("whose scores are equal" in note or "order of equal scores" in note for note in verdict.notes)


@pytest.mark.parametrize("output", ["where", "class", "labels"])
def test_a_wrong_index_is_found_though_others_are_tied(output: str, detector: tuple[ir.Model, Oracle]) -> None:
    model, oracle = detector
    index = [value.name for value in model.graph.outputs].index(output)
    verdict = oracle.check(shifted(model, index, 1))
    assert not verdict.passed
    assert all(output in line for line in verdict.failures)


def test_the_lowest_scores_are_not_accepted_as_the_highest(detector: tuple[ir.Model, Oracle]) -> None:
    model, oracle = detector
    mutant = model.clone()
    topk = next(node for node in mutant.graph if node.op_type == "TopK")
    topk.attributes["largest"] = ir.AttrInt64("largest", 0)
    verdict = oracle.check(mutant)
    assert {line.split("'")[1] for line in verdict.failures} >= {"best", "where"}


def choosing(scores: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]>'
        f"g (float[b, 40] x) => (int64[b, k] y) <int64[1] k = {{5}}, float c = {{60.0}}, float one = {{1.0}}>"
        f"{{ z = Mul (x, c) {scores} v, i = TopK (s, k) y = Identity (i) }}"
    )


STABLE, PLAIN = "s = Sigmoid (z)", "n = Neg (z) e = Exp (n) d = Add (e, one) s = Div (one, d)"


def test_saturated_scores_with_different_rounding_are_tied_between_two_graphs_too() -> None:
    verdict = verify(choosing(STABLE), choosing(PLAIN))
    assert verdict.passed, verdict.failures
    assert "the output 'y' has different indices with equal scores" in verdict.notes


@pytest.mark.parametrize("scores", ["s = Neg (z)", "s = Abs (z)"])
def test_lower_scores_are_found_between_two_graphs_too(scores: str) -> None:
    assert not verify(choosing(STABLE), choosing(scores)).passed
