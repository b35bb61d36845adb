"""f(g(x, …), …): operations element by element on tensors of one size, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.analysis.costs.regions.growth import ELEMENTWISE, Board, Found, grow, pull, same_elements


class ElementwiseRule:
    """What the other rules left of operations that work element by element."""

    name = "elementwise"
    algebra = "f(g(x, y), z)"
    stops = "where the size changes, and at a value that is needed elsewhere too"

    def find(self, board: Board) -> Iterator[Found]:
        """Chains from where they begin."""
        flow = board.flow
        for start in flow.steps:
            if start not in board.free or flow.kind(start) not in ELEMENTWISE or not flow.writes[start]:
                continue
            result = flow.writes[start][0]

            def alike(step: int, _: set[int], result: int = result) -> bool:
                return flow.kind(step) in ELEMENTWISE and same_elements(flow, step, result)

            steps = grow(board, [start], alike)
            steps += pull(board, steps, alike)
            if len(steps) > 1:
                yield Found(tuple(steps), 2)
