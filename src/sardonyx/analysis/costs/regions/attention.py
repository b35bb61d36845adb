"""softmax(scale * (q @ k^T) + mask) @ v, with dropout and casts wherever they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.dataflow import Flow
from sardonyx.analysis.costs.regions.growth import ELEMENTWISE, Board, Found, grow, is_layout_copy, pull, same_elements

_BETWEEN = ELEMENTWISE | {OpKind.COPY, OpKind.REDUCTION}  # a reduction: the maximum that is taken off, or a masked row


class AttentionRule:
    """From the product that makes the scores to the one that mixes the values; a whole attention kernel is one too."""

    name = "attention"
    algebra = "softmax(scale * (q @ k^T) + mask) @ v"
    stops = ("at the products: what makes q, k, v and the mask comes in from outside; only scaling by a number and "
             "copies into another order that are made for it alone are taken along")  # fmt: skip

    def find(self, board: Board) -> Iterator[Found]:
        """By the softmax, backwards to the scores and forwards to the mix."""
        for step in board.flow.steps:
            if step not in board.free:
                continue
            kind = board.flow.kind(step)
            core = [step] if kind is OpKind.ATTENTION else _spelled_out(board, step) if kind is OpKind.SOFTMAX else []
            if core:
                merged = grow(board, core, lambda one, _: is_layout_copy(board.flow, one))  # heads side by side again
                prelude = pull(board, core, lambda one, _: _is_prelude(board.flow, one))
                yield Found((*merged, *prelude), len(core))


def _spelled_out(board: Board, softmax: int) -> list[int]:
    flow = board.flow

    def is_product(step: int) -> bool:
        return flow.kind(step) is OpKind.MATMUL and not any(flow.is_weight(piece) for piece in flow.reads[step])

    def writers(step: int) -> Iterable[int]:
        return (piece.writer for piece in flow.reads[step] if piece.writer is not None)

    back = _closure(board, softmax, writers, is_product)
    ahead = _closure(board, softmax, flow.followers, is_product)
    scores = [step for step in back if is_product(step)]
    mixes = [step for step in ahead if is_product(step)]
    if not scores or not mixes:
        return []
    from_scores = _within(back, scores, flow.followers)  # so that what makes the mask stays outside
    to_mix = _within(ahead, mixes, writers)  # so that what else is made of the weights stays outside
    return sorted({softmax, *scores, *mixes, *(back & from_scores), *(ahead & to_mix)})


def _closure(board: Board, start: int, following: Callable[[int], Iterable[int]],
             ends: Callable[[int], bool]) -> set[int]:  # fmt: skip
    """What is reached through steps that may stand between the products, and the products themselves."""
    reached, waiting = set[int](), [start]
    while waiting:
        for step in following(waiting.pop()):
            if step in reached or step not in board.free:
                continue
            if ends(step):
                reached.add(step)
            elif board.flow.kind(step) in _BETWEEN:
                reached.add(step)
                waiting.append(step)
    return reached


def _within(field: set[int], start: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
    reached, waiting = set[int](), list(start)
    while waiting:
        new = {step for step in following(waiting.pop()) if step in field} - reached
        reached |= new
        waiting += new
    return reached


def _is_prelude(flow: Flow, step: int) -> bool:
    """A copy into another order, or a product with a number."""
    if is_layout_copy(flow, step):
        return True
    sources = flow.activations(step)
    has_weights = any(flow.is_weight(piece) and flow.elements(piece.value) != 1 for piece in flow.reads[step])
    is_scaling = flow.kind(step) is OpKind.ARITHMETIC and len(sources) == 1 and not has_weights
    return is_scaling and same_elements(flow, step, sources[0].value)
