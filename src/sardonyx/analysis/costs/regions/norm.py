"""norm(x + residual): the sum and its normalisation read each row once; the sum is written too where it goes on."""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.growth import ELEMENTWISE, Board, Found, grow, pull, same_elements

_NORMS = (OpKind.NORM, OpKind.BATCH_NORM)


class NormRule:
    """A normalisation, as one operator or written out, with the sum before it and what is done to its rows after it."""

    name = "norm-residual"
    algebra = "norm(x + residual) * gamma + beta"
    stops = "where the size changes, and after the sum: a sum that is needed later is written, and listed as escaping"

    def find(self, board: Board) -> Iterator[Found]:
        """Every normalisation with what stands before and after it."""
        flow = board.flow
        for start in flow.steps:
            if start not in board.free:
                continue
            kind = flow.kind(start)
            core = [start] if kind in _NORMS else _written_out(board, start) if kind is OpKind.REDUCTION else []
            if not core:
                continue
            result = flow.writes[core[-1] if kind is OpKind.REDUCTION else start][0]
            before = _sum_before(board, core, result)

            def alike(step: int, _: set[int], result: int = result) -> bool:
                return flow.kind(step) in ELEMENTWISE and same_elements(flow, step, result)

            steps = grow(board, [*core, *before], alike)
            steps += pull(board, steps, alike)
            if len(steps) > 1:
                yield Found(tuple(steps), max(2, len(core)))


def _sum_before(board: Board, core: list[int], result: int) -> list[int]:
    """What makes the rows element by element, whether or not others need them too."""
    flow, inside = board.flow, set(core)
    made = [piece.writer for step in sorted(core) for piece in flow.reads[step] if piece.writer not in inside]
    return [step for step in dict.fromkeys(made) if step is not None and step in board.free
            and flow.kind(step) in ELEMENTWISE and same_elements(flow, step, result)]  # fmt: skip


def _written_out(board: Board, reduction: int) -> list[int]:
    """x / sqrt(mean(x^2) + eps) and its like: a reduction over rows that comes back to the rows it was made of."""
    flow = board.flow
    rows = flow.activations(reduction)
    if len(rows) != 1 or not flow.writes[reduction]:
        return []
    size, few = flow.elements(rows[0].value), flow.elements(flow.writes[reduction][0])
    if size == few:
        return []

    def is_on_rows(step: int, _: set[int]) -> bool:
        return flow.kind(step) in ELEMENTWISE and same_elements(flow, step, rows[0].value)

    start = [*pull(board, [reduction], is_on_rows), reduction]
    sources = {piece for step in start for piece in flow.activations(step)}

    def takes(step: int, inside: set[int]) -> bool:
        if flow.kind(step) not in ELEMENTWISE and flow.kind(step) is not OpKind.REDUCTION:
            return False
        fits = all(flow.elements(value) in (size, few) for value in flow.writes[step])
        news = [piece for piece in flow.activations(step) if piece.writer not in inside and piece not in sources]
        return fits and not news

    steps = grow(board, start, takes)
    comes_back = (
        steps[-1] != reduction and flow.kind(steps[-1]) in ELEMENTWISE and same_elements(flow, steps[-1], rows[0].value)
    )
    return steps if comes_back else []
