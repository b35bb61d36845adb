"""act(batch_norm(conv(x, w) + b) + residual): a convolution with all that is done to its result element by element."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.growth import ELEMENTWISE, Board, Found, grow, outside, same_elements


class ConvolutionRule:
    """A convolution, its normalisation by stored statistics, one residual and an activation."""

    name = "conv-bn-activation"
    algebra = "act(batch_norm(conv(x, w) + b) + residual)"
    stops = "where the size changes, at a second tensor from elsewhere, and at a value that is needed elsewhere too"

    def find(self, board: Board) -> Iterator[Found]:
        """Every convolution with what follows it."""
        flow = board.flow
        for start in flow.steps:
            if start not in board.free or flow.kind(start) is not OpKind.CONVOLUTION:
                continue
            result, residuals = flow.writes[start][0], set[int]()

            def takes(step: int, inside: set[int], result: int = result, residuals: set[int] = residuals) -> bool:
                kind = flow.kind(step)
                if kind is OpKind.BATCH_NORM:
                    return flow.elements(flow.writes[step][0]) == flow.elements(result)
                if kind not in ELEMENTWISE or not same_elements(flow, step, result):
                    return False
                others = outside(flow, step, inside)
                if others == 1 and kind is OpKind.ARITHMETIC and not residuals:
                    residuals.add(step)
                    return True
                return others == 0

            steps = grow(board, [start], takes)
            if len(steps) > 1:
                yield Found(tuple(steps), 2)
