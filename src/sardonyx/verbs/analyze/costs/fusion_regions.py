"""The rules of fusion regions, and `partition`, which assigns every operation of a program to exactly one region."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from sardonyx.records.analysis import ALONE
from sardonyx.verbs.analyze.costs.dataflow import Flow, Piece, Quotient, Region, Write, region_of
from sardonyx.verbs.analyze.costs.program import OpKind, Program

ELEMENTWISE = frozenset((OpKind.ARITHMETIC, OpKind.ACTIVATION, OpKind.SELECT, OpKind.DROPOUT))


class Board(Struct):
    """The state while the rules run one after the other: free steps, and the regions so far."""

    flow: Flow
    quotient: Quotient
    free: set[int]
    claims: list[tuple[str, tuple[int, ...]]] = field(default_factory=list[tuple[str, tuple[int, ...]]])  # rule, steps

    def claim(self, rule: str, match: RegionMatch) -> None:
        """Form a region of a match, without its last steps if other steps would have to run in between."""
        for count in range(len(match.steps), match.least - 1, -1):
            steps = match.steps[:count]
            if self.quotient.merge(steps):
                self.free -= set(steps)
                self.claims.append((rule, steps))
                return


class RegionMatch(Struct, frozen=True):
    """The steps of a possible region; those after the first `least` are optional and dropped from the end."""

    steps: tuple[int, ...]
    least: int


def is_layout_copy(flow: Flow, step: int) -> bool:
    """Return whether a step only copies a tensor into another memory order, which a kernel can access directly."""
    if flow.kind(step) is not OpKind.COPY or len(flow.writes[step]) != 1:
        return False
    operation = flow.program.operations[step]
    elements = flow.program.values[operation.writes[0]].elements
    same_size = [value for value in operation.reads if flow.program.values[value].elements == elements]
    return len(same_size) == 1 == len(flow.reads[step])


def is_linear(flow: Flow, step: int) -> bool:
    """Return whether a step is a product of one activation with weights."""
    reads = flow.reads[step]
    is_product = flow.kind(step) is OpKind.MATMUL and any(flow.is_parameter(piece) for piece in reads)
    return is_product and sum(not flow.is_parameter(piece) for piece in reads) == 1


def same_elements(flow: Flow, step: int, like: int) -> bool:
    """Return whether all results of a step have as many elements as a value."""
    elements = flow.elements[like]
    return bool(flow.writes[step]) and all(flow.elements[value] == elements for value in flow.writes[step])


def outside(flow: Flow, step: int, inside: set[int]) -> int:
    """Count the tensors a step reads that none of these steps wrote, without parameters and scalars."""
    return sum(piece.is_mixed or piece.writer not in inside for piece in flow.activations(step))


class _Border:
    """A growing region, with the number of its values that are needed outside, updated step by step."""

    def __init__(self, flow: Flow) -> None:
        self.inside = set[int]()
        self._flow = flow
        # value needed outside -> number of readers outside, plus 1 if it outlives the run
        self._leaving = dict[Write, int]()

    def add(self, step: int) -> None:
        """Add a step; values that only it needed are internal from now on."""
        self.inside.add(step)
        for write in self._flow.written([step]):
            others = sum(reader not in self.inside for reader in self._flow.readers.get(write, ()))
            if needed := others + (write in self._flow.persistent):
                self._leaving[write] = needed
        for source in self._flow.sources[step]:
            if source in self._leaving and source[0] != step:
                self._leaving[source] -= 1
                if not self._leaving[source]:
                    del self._leaving[source]

    @property
    def leaving(self) -> int:
        return len(self._leaving)


def grow(board: Board, start: Sequence[int], takes: Callable[[int, set[int]], bool]) -> list[int]:
    """Extend a region by the steps after it, as long as no more values leave it than at the start.

    A value that is needed outside thus ends the region, unless later steps include all of its readers.
    """
    flow = board.flow
    border = _Border(flow)
    for step in start:
        border.add(step)
    steps, most, length = list(start), max(1, border.leaving), len(start)
    waiting = [reader for step in start for reader in flow.followers(step)]
    heapq.heapify(waiting)
    while waiting:
        step = heapq.heappop(waiting)
        if step in border.inside or step not in board.free or not takes(step, border.inside):
            continue
        steps.append(step)
        border.add(step)
        for reader in flow.followers(step):
            heapq.heappush(waiting, reader)
        if border.leaving <= most:
            length = len(steps)
    return steps[:length]


def pull(board: Board, steps: Iterable[int], takes: Callable[[int, set[int]], bool]) -> list[int]:
    """Return the steps before a region whose results only the region reads."""
    flow = board.flow
    inside, new = set(steps), list[int]()
    waiting = list(inside)
    while waiting:
        for piece in flow.reads[waiting.pop()]:
            step = piece.writer
            if step is None or step in inside or step not in board.free or not takes(step, inside):
                continue
            is_kept = any(write in flow.persistent for write in flow.written([step]))
            if not is_kept and inside.issuperset(flow.followers(step)):
                inside.add(step)
                new.append(step)
                waiting.append(step)
    return new


_NORMS = (OpKind.NORM, OpKind.BATCH_NORM)
_INSIDE_ATTENTION = ELEMENTWISE | {OpKind.COPY, OpKind.REDUCTION}  # a reduction: the row maximum, or a masked row
_WORK = frozenset((OpKind.MATMUL, OpKind.CONVOLUTION, OpKind.RECURRENT, OpKind.SOFTMAX))  # end the use of a projection


def find_attention(board: Board) -> Iterator[RegionMatch]:
    """softmax(scale * (q @ k^T) + mask) @ v with dropout and casts anywhere, or an attention kernel."""
    for step, _ in _free(board, (OpKind.ATTENTION, OpKind.SOFTMAX)):
        core = [step] if board.flow.kind(step) is OpKind.ATTENTION else _decomposed(board, step)
        if core:
            merged = grow(board, core, lambda one, _: is_layout_copy(board.flow, one))  # joins the heads again
            prelude = pull(board, core, lambda one, _: _is_prelude(board.flow, one))
            yield RegionMatch((*merged, *prelude), len(core))


def _decomposed(board: Board, softmax: int) -> list[int]:
    flow = board.flow

    def is_product(step: int) -> bool:
        return flow.kind(step) is OpKind.MATMUL and not any(flow.is_weight(piece) for piece in flow.reads[step])

    def writers(step: int) -> Iterable[int]:
        return (piece.writer for piece in flow.reads[step] if piece.writer is not None)

    def inside(following: _Following) -> _Following:
        """Leave out what cannot stand between the products."""
        return lambda step: [
            other
            for other in following(step)
            if other in board.free and (is_product(other) or flow.kind(other) in _INSIDE_ATTENTION)
        ]

    back = _reached([softmax], inside(writers), lambda step: not is_product(step))
    ahead = _reached([softmax], inside(flow.followers), lambda step: not is_product(step))
    scores = [step for step in back if is_product(step)]
    mixes = [step for step in ahead if is_product(step)]
    if not scores or not mixes:
        return []
    from_scores = _reached(scores, lambda step: back.intersection(flow.followers(step)))  # without those of the mask
    to_mix = _reached(mixes, lambda step: ahead.intersection(writers(step)))  # without other uses of the weights
    return sorted({softmax, *scores, *mixes, *(back & from_scores), *(ahead & to_mix)})


_Following = Callable[[int], Iterable[int]]


def _reached(start: Iterable[int], following: _Following, goes_on: Callable[[int], bool] = lambda _: True) -> set[int]:
    """Return what is reached from some steps; at a step that does not go on, the search ends."""
    reached, waiting = set[int](), list(start)
    while waiting:
        for step in set(following(waiting.pop())) - reached:
            reached.add(step)
            if goes_on(step):
                waiting.append(step)
    return reached


def _is_prelude(flow: Flow, step: int) -> bool:
    """Return whether a step is a layout copy or a multiplication with a number."""
    if is_layout_copy(flow, step):
        return True
    sources = flow.activations(step)
    has_weights = any(flow.is_weight(piece) and flow.elements[piece.value] != 1 for piece in flow.reads[step])
    is_scaling = flow.kind(step) is OpKind.ARITHMETIC and len(sources) == 1 and not has_weights
    return is_scaling and same_elements(flow, step, sources[0].value)


def find_parallel_qkv(board: Board) -> Iterator[RegionMatch]:
    """x @ [Wq Wk Wv]: projections of one tensor whose results are used by the same attention."""
    claims = enumerate(board.claims)
    attention_of = {step: index for index, (rule, steps) in claims if rule == "attention" for step in steps}
    for linears in _siblings(board):
        by_attention = defaultdict[frozenset[int], list[int]](list)
        for step in linears:
            by_attention[_attentions_after(board.flow, step, attention_of)].append(step)
        for attentions, group in by_attention.items():
            if attentions and len(group) > 1:
                yield _with_epilogues(board, group)


def find_parallel_linears(board: Board) -> Iterator[RegionMatch]:
    """Linear layers of one tensor with results of one size, and the product of these results if there is one."""
    for linears in _siblings(board):
        by_size = defaultdict[object, list[int]](list)
        for step in linears:
            by_size[board.flow.elements[board.flow.writes[step][0]]].append(step)
        for group in by_size.values():
            if len(group) > 1:
                yield _with_epilogues(board, group)


def _siblings(board: Board) -> list[list[int]]:
    """Return the groups of free linear layers that read the same tensor and have different weights."""
    flow = board.flow
    by_input = defaultdict[Piece, dict[frozenset[Piece], int]](dict)
    for step in flow.steps:
        if step in board.free and is_linear(flow, step) and len(flow.writes[step]) == 1:
            (source,) = (piece for piece in flow.reads[step] if not flow.is_parameter(piece))
            weights = frozenset(piece for piece in flow.reads[step] if flow.is_parameter(piece))
            by_input[source].setdefault(weights, step)
    return [list(linears.values()) for linears in by_input.values() if len(linears) > 1]


def _with_epilogues(board: Board, linears: list[int]) -> RegionMatch:
    flow = board.flow

    def takes(step: int, inside: set[int]) -> bool:
        fits = any(same_elements(flow, step, flow.writes[linear][0]) for linear in linears)
        return flow.kind(step) in ELEMENTWISE and fits and not outside(flow, step, inside)

    return RegionMatch(tuple(grow(board, linears, takes)), len(linears))


def _attentions_after(flow: Flow, linear: int, attention_of: dict[int, int]) -> frozenset[int]:
    """Return the attention regions that the result of a linear layer reaches without another product in between."""
    reached = _reached([linear], flow.followers, lambda step: step not in attention_of and flow.kind(step) not in _WORK)
    return frozenset(attention_of[step] for step in reached if step in attention_of)


def _free(board: Board, kinds: Container[OpKind]) -> Iterator[tuple[int, int]]:
    """Yield the steps of these kinds that are free when they are reached, with their first results."""
    flow = board.flow
    for step in flow.steps:
        if step in board.free and flow.kind(step) in kinds and flow.writes[step]:
            yield step, flow.writes[step][0]


def find_convolution(board: Board) -> Iterator[RegionMatch]:
    """A convolution, its batch normalization, one residual and an activation."""
    flow = board.flow
    for start, result in _free(board, (OpKind.CONVOLUTION,)):
        residuals = set[int]()

        def takes(step: int, inside: set[int], result: int = result, residuals: set[int] = residuals) -> bool:
            kind = flow.kind(step)
            if kind is OpKind.BATCH_NORM:
                return flow.elements[flow.writes[step][0]] == flow.elements[result]
            if kind not in ELEMENTWISE or not same_elements(flow, step, result):
                return False
            others = outside(flow, step, inside)
            if others == 1 and kind is OpKind.ARITHMETIC and not residuals:
                residuals.add(step)
                return True
            return others == 0

        yield RegionMatch(tuple(grow(board, [start], takes)), 2)


def find_linear(board: Board) -> Iterator[RegionMatch]:
    """A product, its bias and its activation, which may be decomposed: `0.5 * y * (1 + tanh(…))`."""
    for start, result in _free(board, (OpKind.MATMUL,)):
        yield RegionMatch(tuple(grow(board, [start], _elementwise_on(board.flow, result, alone=True))), 2)


def find_norm(board: Board) -> Iterator[RegionMatch]:
    """norm(x + residual): a normalization, one operator or decomposed, with the sum before and the scaling after it."""
    flow = board.flow
    for start, _ in _free(board, (OpKind.REDUCTION, *_NORMS)):
        core = [start] if flow.kind(start) in _NORMS else _decomposed_norm(board, start)
        if not core:
            continue
        is_alike, inside = _elementwise_on(flow, flow.writes[core[-1]][0]), set(core)
        # the elementwise steps that compute the rows, even if others read the rows too
        writers = dict.fromkeys(piece.writer for step in sorted(core) for piece in flow.reads[step])
        before = [step for step in writers if step in board.free and step not in inside and is_alike(step, inside)]
        steps = grow(board, [*core, *before], is_alike)
        yield RegionMatch((*steps, *pull(board, steps, is_alike)), max(2, len(core)))


def _decomposed_norm(board: Board, reduction: int) -> list[int]:
    """Match x / sqrt(mean(x^2) + eps) and the like: a reduction over rows whose result is applied to the same rows."""
    flow = board.flow
    rows = flow.activations(reduction)
    if len(rows) != 1 or not flow.writes[reduction]:
        return []
    size, few = flow.elements[rows[0].value], flow.elements[flow.writes[reduction][0]]
    if size == few:
        return []
    is_on_rows = _elementwise_on(flow, rows[0].value)
    start = [*pull(board, [reduction], is_on_rows), reduction]
    sources = {piece for step in start for piece in flow.activations(step)}

    def takes(step: int, inside: set[int]) -> bool:
        if flow.kind(step) not in ELEMENTWISE and flow.kind(step) is not OpKind.REDUCTION:
            return False
        fits = all(flow.elements[value] in (size, few) for value in flow.writes[step])
        others = [piece for piece in flow.activations(step) if piece.writer not in inside and piece not in sources]
        return fits and not others

    steps = grow(board, start, takes)
    return steps if steps[-1] != reduction and is_on_rows(steps[-1], set()) else []


def find_elementwise(board: Board) -> Iterator[RegionMatch]:
    """f(g(x, …), …): chains of elementwise operations on tensors of one size that no other rule took."""
    for start, result in _free(board, ELEMENTWISE):
        is_alike = _elementwise_on(board.flow, result)
        steps = grow(board, [start], is_alike)
        yield RegionMatch((*steps, *pull(board, steps, is_alike)), 2)


def _elementwise_on(flow: Flow, like: int, *, alone: bool = False) -> Callable[[int, set[int]], bool]:
    """Return a test for elementwise steps with as many elements as a value; `alone`: without reads from outside."""

    def takes(step: int, inside: set[int]) -> bool:
        fits = flow.kind(step) in ELEMENTWISE and same_elements(flow, step, like)
        return fits and not (alone and outside(flow, step, inside))

    return takes


# The order decides which rule gets an operation that two could take. Attention is the largest; parallel projections are
# recognized by the attention they lead to; a linear layer takes its bias and activation before a norm or a chain can.
RULES: Mapping[str, Callable[[Board], Iterator[RegionMatch]]] = {
    "attention": find_attention,
    "parallel-qkv": find_parallel_qkv,
    "parallel-linears": find_parallel_linears,
    "conv-bn-activation": find_convolution,
    "linear-activation": find_linear,
    "norm-residual": find_norm,
    "elementwise": find_elementwise,
}


def partition(program: Program) -> tuple[Region, ...]:
    """Return every operation of a program in exactly one region, in an order in which the regions can run."""
    flow = Flow(program)
    quotient = Quotient(flow.steps, flow.before)
    board = Board(flow, quotient, set(flow.steps))
    for rule, find in RULES.items():
        for match in find(board):
            board.claim(rule, match)
    rule_of = {step: rule for rule, steps in board.claims for step in steps}
    groups = quotient.groups()
    region_at = {step: index for index, steps in enumerate(groups) for step in steps}
    views = _views_by_region(flow, region_at, len(groups))
    regions = [
        region_of(
            flow,
            rule_of.get(steps[0], ALONE),
            steps,
            views.pop(index, []),
            {region_at[earlier] for step in steps for earlier in flow.before[step]} - {index},
        )
        for index, steps in enumerate(groups)
    ]
    regions += [region_of(flow, ALONE, [], alone, []) for alone in views.values()]
    return tuple(regions)


def _views_by_region(flow: Flow, region_at: dict[int, int], spare: int) -> dict[int, list[int]]:
    """Assign each view to the region of its only reader, otherwise of its writer, otherwise of its first reader.

    Views cost nothing and do not separate regions. A view of an input that is an output is a region by itself.
    """
    views = defaultdict[int, list[int]](list)
    for view, readers in flow.views.items():
        regions = sorted({region_at[reader] for reader in readers})
        source = flow.view_sources[view]
        if source is not None and len(regions) != 1:
            regions = [region_at[source]]
        views[regions[0] if regions else spare + view].append(view)
    return views
