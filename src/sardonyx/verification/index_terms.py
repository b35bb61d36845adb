"""Tensors described by their element: a term over index variables (digits) that make up the axes.

Reshape, Transpose, Slice and Expand only change how digits make up axes and indices. All other operators are functions
of which nothing is known but their name, applied to elements or to rows of them. Equal texts mean equal tensors, for
every size at which no tensor is empty.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sardonyx.ir.ops import COMMUTATIVE
from sardonyx.ir.shapes.expr import Expr, Size, add, exact_quotient, multiply, product


class Unproven(Exception):
    """The nodes, or how their sizes relate, are not described here."""


class Digit(Struct, eq=False):
    """A variable that counts from 0 to below its size."""

    size: Size


class Index(Struct, frozen=True, eq=False):
    """A sum of digits times their strides, and an offset."""

    offset: Size
    strides: Mapping[Digit, Size]


class Read(Struct, frozen=True, eq=False):
    """An element of the border or of a constant."""

    source: str
    indices: tuple[Index, ...]


class Applied(Struct, frozen=True, eq=False):
    """A function of elements. The digits that it binds run over rows of them; `at` is the place in its result."""

    operator: str
    operands: tuple[Term, ...]
    bound: tuple[Digit, ...] = ()
    at: tuple[Index, ...] = ()


Term = Read | Applied


class Tensor(Struct, frozen=True, eq=False):
    """The element at any place; the digits of an axis make up its index, the last one the fastest."""

    axes: tuple[tuple[Digit, ...], ...]
    term: Term
    is_float: bool

    @property
    def shape(self) -> tuple[Size, ...]:
        """The sizes of the axes."""
        return tuple(product(digit.size for digit in axis) for axis in self.axes)


def is_uniform(tensor: Tensor) -> bool:
    """Return whether an element does not depend on the number of elements."""
    sizes = Counter(digit.size for axis in tensor.axes for digit in axis if isinstance(digit.size, Expr))
    return max(sizes.values(), default=0) <= 1 and _is_plain(tensor.term)  # two may be equal at the sizes tried


def _is_plain(term: Term) -> bool:
    """Return whether no dynamic size is part of a term, and no dynamic axis is read at another place than its own."""
    if isinstance(term, Read):
        return "?" not in term.source and all(map(_is_plain_index, term.indices))
    if not all(isinstance(digit.size, int) for digit in term.bound) or "?" in term.operator:
        return False
    places = [digit for index in term.at for digit in index.strides]
    return all(isinstance(digit.size, int) for digit in places) and all(map(_is_plain, term.operands))


def _is_plain_index(index: Index) -> bool:
    is_dynamic = any(isinstance(digit.size, Expr) for digit in index.strides)
    numbers = (index.offset, *index.strides.values())
    return all(isinstance(each, int) for each in numbers) and not (is_dynamic and numbers != (0, 1))


def _changed(term: Term, change: Callable[[Index], Index]) -> Term:
    if isinstance(term, Read):
        return Read(term.source, tuple(map(change, term.indices)))
    operands = tuple(_changed(operand, change) for operand in term.operands)
    return Applied(term.operator, operands, term.bound, tuple(map(change, term.at)))


def _indices(term: Term) -> Iterator[Index]:
    if isinstance(term, Read):
        yield from term.indices
    else:
        yield from term.at
        for operand in term.operands:
            yield from _indices(operand)


def substituted(term: Term, digit: Digit, value: Index) -> Term:
    """Return a term with a sum of others in place of a digit."""

    def change(index: Index) -> Index:
        by = index.strides.get(digit)
        if by is None:
            return index
        strides = {other: stride for other, stride in index.strides.items() if other is not digit}
        for other, stride in value.strides.items():
            strides[other] = add(strides.get(other, 0), multiply(stride, by))
        return Index(add(index.offset, multiply(value.offset, by)), strides)

    return _changed(term, change)


def fresh(tensor: Tensor) -> Tensor:
    """Return a tensor with digits of its own."""
    axes, term = list[tuple[Digit, ...]](), tensor.term
    for axis in tensor.axes:
        new = tuple(Digit(digit.size) for digit in axis)
        for old, digit in zip(axis, new, strict=True):
            term = substituted(term, old, Index(0, {digit: 1}))
        axes.append(new)
    return replace(tensor, axes=tuple(axes), term=term)


def joined(digits: Sequence[Digit], term: Term) -> tuple[tuple[Digit, ...], Term]:
    """Return neighbouring digits as one wherever they only occur as the digits of one number."""
    result: list[Digit] = []
    for low in digits:
        if result and all(_is_one(index, result[-1], low) for index in _indices(term)):
            high = result.pop()
            one = Digit(multiply(high.size, low.size))
            term = substituted(substituted(term, high, Index(0, {})), low, Index(0, {one: 1}))
            result.append(one)
        else:
            result.append(low)
    return tuple(result), term


def _is_one(index: Index, high: Digit, low: Digit) -> bool:
    return index.strides.get(high, 0) == multiply(index.strides.get(low, 0), low.size)


def fused(tensor: Tensor) -> Tensor:
    """Return a tensor with as few digits as possible."""
    axes, term = list[tuple[Digit, ...]](), tensor.term
    for axis in tensor.axes:
        digits, term = joined(axis, term)
        axes.append(digits)
    return replace(tensor, axes=tuple(axes), term=term)


def text_of(tensor: Tensor) -> str:
    """Return the term in a form that does not depend on the names of digits."""
    names = {digit: f"{axis}.{place}" for axis, digits in enumerate(tensor.axes) for place, digit in enumerate(digits)}
    sizes = [[digit.size for digit in axis] for axis in tensor.axes]
    return f"{sizes} {_term_text(tensor.term, names, 0)}"


def _term_text(term: Term, names: Mapping[Digit, str], depth: int) -> str:
    if isinstance(term, Read):
        return f"{term.source}[{', '.join(_index_text(index, names) for index in term.indices)}]"
    bound, operands = term.bound, term.operands
    inner = {**names, **{digit: f"b{depth}.{place}" for place, digit in enumerate(bound)}}
    texts = [_term_text(operand, inner, depth + 1) for operand in operands]
    texts = sorted(texts) if term.operator in COMMUTATIVE else texts
    at = [_index_text(index, names) for index in term.at]
    return f"{term.operator}{[digit.size for digit in bound]}({', '.join(texts)}){at}"


def _index_text(index: Index, names: Mapping[Digit, str]) -> str:
    parts = sorted(f"{names[digit]}*({stride!r})" for digit, stride in index.strides.items() if stride != 0)
    return "+".join([repr(index.offset), *parts])


def digits_of(size: Size) -> tuple[Digit, ...]:
    """Return the digits of a new axis."""
    if size == 0:
        raise Unproven("an empty tensor")
    return () if size == 1 else (Digit(size),)


def linear(digits: Sequence[Digit]) -> Index:
    """Return the number that digits make up."""
    strides, stride = dict[Digit, Size](), 1
    for digit in reversed(digits):
        strides[digit], stride = stride, multiply(stride, digit.size)
    return Index(0, strides)


def source(name: str, shape: Iterable[Size], *, is_float: bool) -> Tensor:
    """Return a tensor that is read from the border or is a constant."""
    axes = tuple(map(digits_of, shape))
    return Tensor(axes, Read(name, tuple(map(linear, axes))), is_float)


def regrouped(tensor: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Return the elements in the same order in another shape."""
    tensor = fused(tensor)
    digits, term = joined([digit for axis in tensor.axes for digit in axis], tensor.term)
    waiting, axes = deque(digits), list[tuple[Digit, ...]]()
    for size in sizes:
        axis, missing = list[Digit](), size
        while missing != 1:
            if not waiting:
                raise Unproven("sizes that do not fit")
            digit = waiting.popleft()
            rest, part = exact_quotient(missing, digit.size), exact_quotient(digit.size, missing)
            if rest is not None:
                axis.append(digit)
                missing = rest
            elif part is not None:
                high, low = Digit(missing), Digit(part)
                term = substituted(term, digit, linear((high, low)))
                axis.append(high)
                waiting.appendleft(low)
                missing = 1
            else:
                raise Unproven("sizes that do not divide each other")
        axes.append(tuple(axis))
    if waiting:
        raise Unproven("sizes that do not fit")
    return replace(tensor, axes=tuple(axes), term=term)


def matched(a: Sequence[Digit], b: Sequence[Digit], one: Term, two: Term) -> tuple[tuple[Digit, ...], Term, Term]:
    """Return the digits that two axes of the same size have in common, and both terms with these."""
    left, right, common = deque(a), deque(b), list[Digit]()
    while left and right:
        x, y = left.popleft(), right.popleft()
        if x.size == y.size:
            two = substituted(two, y, Index(0, {x: 1}))
            common.append(x)
            continue
        is_longer = exact_quotient(x.size, y.size) is not None
        longer, shorter, queue = (x, y, left) if is_longer else (y, x, right)
        rest = exact_quotient(longer.size, shorter.size)
        if rest is None:
            raise Unproven("axes that are made up of other sizes")
        high, low = Digit(shorter.size), Digit(rest)
        one, two = substituted(one, longer, linear((high, low))), substituted(two, longer, linear((high, low)))
        queue.extendleft((low, high))
        (right if is_longer else left).appendleft(shorter)
    if left or right:
        raise Unproven("axes of other sizes")
    return tuple(common), one, two


def broadcast(tensors: Sequence[Tensor]) -> tuple[tuple[tuple[Digit, ...], ...], list[Term]]:
    """Return common axes, and the elements of all tensors there."""
    axes: list[tuple[Digit, ...]] = []
    terms: list[Term] = []
    for tensor in map(fresh, map(fused, tensors)):
        rank, term = max(len(axes), len(tensor.axes)), tensor.term
        mine = [None] * (rank - len(tensor.axes)) + list(tensor.axes)
        axes = [()] * (rank - len(axes)) + axes
        for place, axis in enumerate(mine):
            if not axis:
                continue
            if not axes[place]:
                axes[place] = axis
                continue
            joint = Applied("", tuple(terms))
            axes[place], changed, term = matched(axes[place], axis, joint, term)
            terms = list(changed.operands) if isinstance(changed, Applied) else terms
        terms.append(term)
    return tuple(axes), terms
