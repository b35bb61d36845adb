"""x @ [W1 W2 …]: linear layers that read the same tensor, so that it need be read only once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sardonyx.analysis.costs.program import OpKind
from sardonyx.analysis.costs.regions.dataflow import Flow, Piece
from sardonyx.analysis.costs.regions.growth import ELEMENTWISE, Board, Found, grow, is_linear, outside, same_elements

_WORK = frozenset(
    (OpKind.MATMUL, OpKind.CONVOLUTION, OpKind.RECURRENT, OpKind.SOFTMAX)
)  # a projection is used before these


class ParallelQkvRule:
    """Projections of one tensor whose results meet in the same attention."""

    name = "parallel-qkv"
    algebra = "x @ [Wq Wk Wv] + [bq bk bv]"
    stops = "after the bias, and at whatever reads a second tensor (rotary tables, norms of q and k, the attention)"

    def find(self, board: Board) -> Iterator[Found]:
        """Linear layers by what they read, then by the attention they end in."""
        attention_of = {step: number for number, claim in enumerate(board.claims)
                        if claim.rule == "attention" for step in claim.steps}  # fmt: skip
        for linears in _siblings(board):
            by_attention = defaultdict[frozenset[int], list[int]](list)
            for step in linears:
                by_attention[_met(board.flow, step, attention_of)].append(step)
            for met, group in by_attention.items():
                if met and len(group) > 1:
                    yield _with_epilogues(board, group)


class ParallelLinearsRule:
    """Linear layers of one tensor with results of one size; where they are multiplied with each other, that too."""

    name = "parallel-linears"
    algebra = "act(x @ W1 + b1) * (x @ W2 + b2), or both apart"
    stops = "at whatever reads a tensor from elsewhere"

    def find(self, board: Board) -> Iterator[Found]:
        """Linear layers by what they read and how much they write."""
        for linears in _siblings(board):
            by_size = defaultdict[object, list[int]](list)
            for step in linears:
                by_size[board.flow.elements(board.flow.writes[step][0])].append(step)
            for group in by_size.values():
                if len(group) > 1:
                    yield _with_epilogues(board, group)


def _siblings(board: Board) -> list[list[int]]:
    """Free linear layers that read the same thing, with weights that are not the same."""
    flow = board.flow
    by_input = defaultdict[Piece, dict[frozenset[Piece], int]](dict)
    for step in flow.steps:
        if step in board.free and is_linear(flow, step) and len(flow.writes[step]) == 1:
            (read,) = (piece for piece in flow.reads[step] if not flow.is_parameter(piece))
            weights = frozenset(piece for piece in flow.reads[step] if flow.is_parameter(piece))
            by_input[read].setdefault(weights, step)
    return [list(linears.values()) for linears in by_input.values() if len(linears) > 1]


def _with_epilogues(board: Board, linears: list[int]) -> Found:
    flow = board.flow

    def takes(step: int, inside: set[int]) -> bool:
        fits = any(same_elements(flow, step, flow.writes[one][0]) for one in linears)
        return flow.kind(step) in ELEMENTWISE and fits and not outside(flow, step, inside)

    steps = grow(board, linears, takes)
    return Found(tuple(steps), len(linears))


def _met(flow: Flow, linear: int, attention_of: dict[int, int]) -> frozenset[int]:
    """The attentions it reaches before any other work is done with it."""
    met, seen, waiting = set[int](), {linear}, [linear]
    while waiting:
        for step in flow.followers(waiting.pop()):
            if step in seen:
                continue
            seen.add(step)
            if step in attention_of:
                met.add(attention_of[step])
            elif flow.kind(step) not in _WORK:
                waiting.append(step)
    return frozenset(met)
