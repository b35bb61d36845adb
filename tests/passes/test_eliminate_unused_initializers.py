"""Unused constants are removed; the interface and constants used in bodies stay."""

from __future__ import annotations

from passes.util import assert_same, graph_text, run_passes
from sardonyx.passes.cleanup.eliminate_unused_initializers import EliminateUnusedInitializers

DROP = [EliminateUnusedInitializers()]


def test_only_unused_constants_are_removed() -> None:
    text = graph_text("""agraph (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}, float[2] old = {3.0, 4.0}> { y = Mul(x, w) }""")
    model, log = run_passes(text, DROP)
    assert list(model.graph.initializers) == ["w"]
    assert sum(tally.bytes for tally in log.tallies.values()) == -8
    assert_same(text, model)


def test_the_default_of_an_input_stays() -> None:
    text = graph_text("agraph (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Relu(x) }")
    model, _ = run_passes(text, DROP)
    assert list(model.graph.initializers) == ["w"]


def test_a_constant_that_is_an_output_stays() -> None:
    text = graph_text("agraph (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1.0, 2.0}> { y = Relu(x) }")
    model, _ = run_passes(text, DROP)
    assert list(model.graph.initializers) == ["w"]


def test_uses_in_bodies_count_and_bodies_are_cleaned_too() -> None:
    text = graph_text("""agraph (float[2] x, bool c) => (float[2] y) <float[2] w = {1.0, 2.0}> {
        y = If (c) <then_branch = t () => (float[2] p) <float[2] mine = {5.0, 6.0}> { p = Mul(x, w) },
                    else_branch = e () => (float[2] q) <float[2] used = {7.0, 8.0}> { q = Mul(x, used) }>
    }""")
    model, _ = run_passes(text, DROP)
    assert list(model.graph.initializers) == ["w"]
    branches = {name: attribute.as_graph() for name, attribute in next(iter(model.graph)).attributes.items()}
    assert not branches["then_branch"].initializers
    assert list(branches["else_branch"].initializers) == ["used"]
    assert_same(text, model)
