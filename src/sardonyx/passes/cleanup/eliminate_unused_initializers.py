"""A constant without uses => nothing.

Keeps default values of graph inputs and constants that are graph outputs. Helps because weights that were replaced by a
fold or fusion would otherwise stay in the file beside their replacements.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.passes.base import Accuracy, Drop, Example, Facts, ModelPass


class EliminateUnusedInitializers(ModelPass):
    """Unused initializers of the main graph and of bodies."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            (float[N, 2] x) => (float[N, 2] y) <float[2] w = {1.0, 2.0}, float[2] old = {3.0, 4.0}> { y = Mul(x, w) }
        """,
        after="<float[2] w = {1.0, 2.0}> { y = Mul(x, w) }",
        near_miss="(float[N, 2] x, float[2] w) => (float[N, 2] y) <float[2] w = {1.0, 2.0}> { y = Relu(x) }",
    )

    def propose(self, graph: Facts) -> Iterator[Drop]:
        """Propose to drop every unused initializer."""
        for scope in graph.live_scopes():
            for value in tuple(scope.graph.initializers.values()):
                if not (value.uses() or value.is_graph_input() or value.is_graph_output()):
                    yield Drop(value)
