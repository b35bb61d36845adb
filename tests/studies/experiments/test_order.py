"""Shuffled orders give one result for independent passes; conflicting pairs are named."""

from __future__ import annotations

import random
from pathlib import Path

import onnx
import pytest

from sardonyx.verbs.study.experiment import CellAnswer, StudyOptions, Subject
from sardonyx.verbs.study.order import ENDLESS, OTHER, SAME, Order
from studies.experiments.conflicting import ASIDE, BEHIND, CHAIN, EARLY, LATE, replacing


@pytest.fixture
def chain(tmp_path: Path) -> Subject:
    onnx.save(onnx.parser.parse_model(CHAIN), tmp_path / "chain.onnx")
    return Subject("chain", tmp_path / "chain.onnx")


def answered(order: Order, subject: Subject) -> list[CellAnswer]:
    cells = order.cells(subject, StudyOptions(thorough=True))
    return [CellAnswer(cell, subject, order.run(cell, subject)) for cell in cells]


def test_two_conflicting_passes_are_named_with_their_shared_operator(chain: Subject) -> None:
    usual = [ASIDE, EARLY, LATE, BEHIND]
    order = Order(usual)
    answers = answered(order, chain)
    for each in answers:
        shuffled = list(usual)
        random.Random(each.cell.options["shuffle"]).shuffle(shuffled)
        swapped = shuffled.index(LATE) < shuffled.index(EARLY)
        assert each.answer["outcome"] == (OTHER if swapped else SAME)
        if swapped:
            assert (each.answer["first"], each.answer["then"]) == (EARLY.name, LATE.name)
            assert each.answer["alone"] is True
            assert (
                f"with {EARLY.name} first it rewrites Neg+Abs at d, nodes that {LATE.name} rewrites"
                in each.answer["why"]
            )
            assert each.answer["difference"] == "Relu(), Sigmoid() / Neg(), Tanh()"
    outcomes = {each.answer["outcome"] for each in answers}
    assert outcomes == {OTHER, SAME}  # of ten shuffles
    (table,) = order.tables(answers, StudyOptions(), {})
    finding = order.findings({"order": table})
    different = sum(each.answer["outcome"] == OTHER for each in answers)
    assert f"{len(answers) - different} give the usual graph" in finding[0].text
    assert finding[1].text.startswith(f"The order of {EARLY.name} and {LATE.name} decides the graph")


def test_independent_passes_give_one_result(chain: Subject) -> None:
    order = Order([ASIDE, EARLY, BEHIND])
    answers = answered(order, chain)
    assert {each.answer["outcome"] for each in answers} == {SAME}
    (table,) = order.tables(answers, StudyOptions(), {})
    (finding,) = order.findings({"order": table})
    assert finding.text.startswith(f"Of {len(answers)} shuffled orders, {len(answers)} give the usual graph")


@pytest.mark.slow
def test_an_order_that_does_not_terminate_is_an_outcome(chain: Subject) -> None:
    there_and_back = [replacing("there", "Neg", "Abs"), replacing("back", "Abs", "Neg")]
    for each in answered(Order([ASIDE, *there_and_back]), chain):
        assert each.answer["outcome"] == ENDLESS
        assert "these passes undo each other" in each.answer["why"]


def test_the_default_passes_are_used_where_none_are_given(chain: Subject) -> None:
    cell = Order().cells(chain, StudyOptions())[0]
    assert Order().run(cell, chain)["outcome"] == SAME
