"""A part of the mutation campaign: the verifier finds planted faults and accepts harmless changes.

The campaign itself, over more models and more mutants, is `benchmarks/mutants.py`.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import mutants
import mutations
import subjects


@pytest.fixture(scope="module")
def models() -> dict[str, onnx.ModelProto]:
    return subjects.handmade()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "at_least"), [("branches", 10), ("pair", 16), ("picture", 14), ("half", 8), ("masked", 6), ("narrow", 2)]
)
def test_planted_faults_are_found(name: str, at_least: int, models: dict[str, onnx.ModelProto]) -> None:
    outcomes = mutants.judge(name, models[name], per_kind=2, seed=0)
    assert [o for o in outcomes if o.result == "silent"] == []
    assert sum(o.result == "detected" for o in outcomes) >= at_least


@pytest.mark.slow
def test_half_a_percent_of_one_weight_is_found_in_half_precision(models: dict[str, onnx.ModelProto]) -> None:
    kinds = ["weight × 1.02", "weight × 1.01", "weight × 0.995"]
    outcomes = mutants.judge("deep16", models["deep16"], per_kind=2, seed=0, kinds=kinds)
    assert {o.result for o in outcomes} == {"detected"}
    assert len(outcomes) == 6


@pytest.mark.parametrize("name", ["branches", "pair", "picture", "half", "masked", "narrow", "gated"])
def test_correct_rewrites_pass(name: str, models: dict[str, onnx.ModelProto]) -> None:
    assert mutants.control(models[name])


def test_a_removed_key_bias_is_recognised_as_harmless(models: dict[str, onnx.ModelProto]) -> None:
    """Adding a number to every score of a row does not change softmax: a key bias may be removed, a query bias not."""
    with_bias = onnx.ModelProto()
    with_bias.CopyFrom(models["pair"])
    for node in with_bias.graph.node:
        if node.output[0] == "k":
            node.output[0] = "unbiased"
    bias = onnx.helper.make_node("Add", ["unbiased", "bq"], ["k"])
    nodes = list(with_bias.graph.node)
    place = next(i for i, node in enumerate(nodes) if "k" in node.input)
    nodes.insert(place, bias)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del with_bias.graph.node[:]
    with_bias.graph.node.extend(copies)
    assert mutants.moved_in_double(models["pair"], with_bias, seed=0) < mutants.SAME_IN_DOUBLE
    outcomes = mutants.judge("pair", models["pair"], per_kind=3, seed=0, kinds=["channel's bias zeroed"])
    assert outcomes
    assert {o.result for o in outcomes} == {"detected"}


def test_every_kind_of_mutation_applies_to_some_model(models: dict[str, onnx.ModelProto]) -> None:
    """A kind that never applies would not contribute to the score."""
    rng = np.random.default_rng(0)
    for kind, sites in mutations.KINDS.items():
        assert any(next(iter(sites(model, rng)), None) is not None for model in models.values()), kind
