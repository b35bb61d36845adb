"""act(x @ W + b): a matrix product with what is done to its result element by element."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.growth import ELEMENTWISE, Board, Found, grow, outside, same_elements


class LinearRule:
    """A product, its bias, and its activation, also one that is written out (`0.5 * y * (1 + tanh(…))`)."""

    name = "linear-activation"
    algebra = "act(x @ W + b)"
    stops = ("at whatever reads a tensor from elsewhere (a residual is left to the norm that follows it), and at a "
             "value that is needed elsewhere too")  # fmt: skip

    def find(self, board: Board) -> Iterator[Found]:
        """Every product with what follows it."""
        flow = board.flow
        for start in flow.steps:
            if start not in board.free or flow.kind(start) is not OpKind.MATMUL:
                continue
            result = flow.writes[start][0]

            def takes(step: int, inside: set[int], result: int = result) -> bool:
                is_alike = flow.kind(step) in ELEMENTWISE and same_elements(flow, step, result)
                return is_alike and not outside(flow, step, inside)

            steps = grow(board, [start], takes)
            if len(steps) > 1:
                yield Found(tuple(steps), 2)
