"""Prove that a rewrite is equal for every size: evaluate both sides with sizes that are polynomials.

A tensor is described by its element: a term over index variables. Reshape, Transpose, Slice and Expand only change
how the variables (digits) make up the axes and the indices; all other operators are functions of which nothing is
known but their name, applied to elements (Add) or to rows of them (Softmax, a sum). Two sides are equal for every
size if

- their terms are the same, or - no term depends on a dynamic size: every element is then computed in the same way,
however many there are, and the   sides were found to be equal at other sizes. Softmax along an axis of fixed length
in a batch of any size is such one.

Sizes at which a tensor is empty are not part of the proof. What has no description here is not proven.

A size that is fixed, such as the height of an image, may be replaced by a smaller one, if the nodes do not depend on
it: smaller ones take less time, and decide rewrites whose values are too large otherwise. A size that constants name
(the target of a Reshape) is replaced there too, on both sides, if the values are large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.exact.call import FLOATS, Invalid, Undecided
from sardonyx.ir.ops import ARITHMETIC, ATTENTION_NAMES, MATRIX_PRODUCTS, REARRANGES, SOFTMAXES
from sardonyx.ir.shapes import Size
from sardonyx.verification.index_terms import Unproven, fused, is_uniform, source, text_of
from sardonyx.verification.rewrite_models import LARGE_BYTES, Border, Excerpt, SmallModel
from sardonyx.verification.symbolic_operators import (
    Known,
    SymbolicCall,
    Value,
    evaluated,
    number_text,
    stored_tensor,
    tensor_of,
)

_REDUCED = (8, 16)  # to which sizes are reduced, in the first and in the second choice
_PERIOD = 8  # sizes keep their remainders, for strides
_MOST_ITEMS = 64  # elements of a constant that may hold sizes
_MAX_TENSOR_ELEMENTS = 1 << 14  # elements of one tensor
_ENDLESS_SLICE = 1 << 31  # a number from which on it stands for the end of an axis
_COUNTS = frozenset(("group", "hidden_size", "kv_num_heads", "num_heads", "q_num_heads"))  # attributes of channels
_TRIED_POWERS, _POWER_TOLERANCE = (-4, -2, -1, 1, 2, 4), 1e-5
# Sizes and indices that these read fit the tensors or are refused. Others (Slice) take a number beyond the end, so that
# what differs at one size may be equal at a smaller one.
_FITTING = ARITHMETIC | ATTENTION_NAMES | MATRIX_PRODUCTS | REARRANGES | SOFTMAXES | {"Concat", "Gather", "Split"}

Sizes = Mapping[Size | None, int]  # in place of fixed ones
AS_THEY_ARE: Sizes = MappingProxyType({})


def holds_sizes(stored: ir.TensorProtocol) -> bool:
    """Return whether a constant may hold sizes."""
    return stored.dtype.is_integer() and stored.size <= _MOST_ITEMS


def has_many_elements(excerpt: Excerpt) -> bool:
    """Return whether a value of the border, or a weight that may be any other, is large."""
    shapes = [entry.shape or () for entry in excerpt.border]
    shapes += [excerpt.before.constants[name].shape.numpy() for name in excerpt.free_weights]
    return any(math.prod(size for size in shape if isinstance(size, int)) >= _MAX_TENSOR_ELEMENTS for shape in shapes)


class FixedSizes(Struct, frozen=True):
    """The fixed sizes of an excerpt, and the other numbers that its nodes know."""

    found: frozenset[int]  # of the border and of weights that may be any others
    named: frozenset[int]  # by constants that hold sizes
    kept: frozenset[int]  # other numbers: attributes, and sizes of constants whose values matter
    places: frozenset[int]  # numbers that may lie inside a tensor of one size and beyond the end of a smaller one
    is_large: bool

    @classmethod
    def of(cls, excerpt: Excerpt) -> FixedSizes:
        """Collect the sizes of an excerpt."""
        free, sides = excerpt.free_weights, (excerpt.before, excerpt.exact)
        stored = {**excerpt.before.constants, **excerpt.exact.constants}
        shapes = {name: tuple(each.shape.numpy()) for name, each in stored.items()}
        found, named, kept, places = set[Size | None](), set[int](), {0, 1}, set[int]()
        for name, each in stored.items():
            (found if name in free else kept).update(shapes[name])
            if holds_sizes(each):
                items = [int(item) for item in np.asarray(each.numpy()).reshape(-1)]
                named.update(items)
                kept.update({sum(items), math.prod(max(item, 1) for item in items)} - set(items))
            elif each.dtype.is_integer():
                places.update((int(np.min(each.numpy())), int(np.max(each.numpy()))))
        for entry in excerpt.border:
            named.update(item for item in entry.contents or () if isinstance(item, int))
            found.update(entry.shape or ())
        for attribute in (each for side in sides for node in side.proto.graph.node for each in node.attribute):
            (kept if attribute.name in _COUNTS else places).update((attribute.i, *attribute.ints))
        kept.update(number for side in sides for number in _made_of(side))
        sizes = frozenset(size for size in found if isinstance(size, int)) - kept - places
        is_fitting = excerpt.operators <= _FITTING
        compared = frozenset[int]() if is_fitting else frozenset(places | named)
        return cls(sizes, frozenset(named), frozenset(kept | places), compared, has_many_elements(excerpt))

    def choices(self, is_accepted: Callable[[Sizes], bool]) -> list[Sizes]:
        """Return two choices of smaller sizes that the nodes accept, or none."""
        sizes = sorted(size for size in self.found if size > _REDUCED[0] and (self.is_large or size not in self.named))
        sizes = sorted(size for size in self._smaller(sizes, _REDUCED[0]) if isinstance(size, int))
        if sizes and not is_accepted(self._smaller(sizes, _REDUCED[0])):
            sizes = self._accepted(sizes, is_accepted) if self.is_large else []
        return [smaller for least in _REDUCED if (smaller := self._smaller(sizes, least))]

    def _accepted(self, sizes: list[int], is_accepted: Callable[[Sizes], bool]) -> list[int]:
        """Return all sizes but one, as is mostly enough, or as many as can be replaced together."""
        for size in reversed(sizes):
            others = [other for other in sizes if other != size]
            if others and is_accepted(self._smaller(others, _REDUCED[0])):
                return others
        accepted: list[int] = []
        for size in reversed(sizes):
            tried = sorted([*accepted, size])
            accepted = tried if is_accepted(self._smaller(tried, _REDUCED[0])) else accepted
        return accepted

    def names(self, sizes: Sizes) -> bool:
        """Return whether constants name one of the sizes that are replaced."""
        return not self.named.isdisjoint(size for size in sizes if isinstance(size, int))

    def _smaller(self, sizes: Sequence[int], least: int) -> Sizes:
        """Return smaller sizes in the same order, with the same remainders; different sizes stay different."""
        others = {abs(number) for number in (self.kept | self.named) - set(sizes)}
        compared = [abs(number) for number in self.places - set(sizes) if abs(number) < _ENDLESS_SLICE]
        new, last = dict[Size | None, int](), least - 1
        for size in sizes:
            if any(number > size for number in compared):
                continue
            lowest = max(last, *compared, 0) + 1
            small = next(
                each for each in itertools.count(lowest + (size - lowest) % _PERIOD, _PERIOD) if each not in others
            )
            if small < size:
                new[size] = last = small
        return new


def _made_of(side: SmallModel) -> Iterator[int]:
    """Yield the integers that single floats are made from, such as d in 1 / √d."""
    floats = [attribute.f for node in side.proto.graph.node for attribute in node.attribute if attribute.f]
    floats += [
        float(each.numpy().item()) for each in side.constants.values() if each.size == 1 and each.dtype.value in FLOATS
    ]
    if not floats:
        return
    with np.errstate(all="ignore"):
        made = np.abs(np.array(floats))[:, None] ** np.array(_TRIED_POWERS, np.float64)
        whole = (made > 1) & (made < _ENDLESS_SLICE) & (np.abs(made - np.round(made)) < _POWER_TOLERANCE * made)
    yield from (round(number) for number in made[whole].tolist())


_OLDEST_OPSET = 13  # opset whose operators are described


class EverySize(Enum):
    """Whether two sides are equal at every size, those at which a tensor is empty aside."""

    UNKNOWN = "unknown"
    IF_TRIED = "if they are equal at the sizes that were tried"
    SAME_TERMS = "they are computed by the same terms"


def at_every_size(excerpt: Excerpt) -> EverySize:
    """Return what follows for other sizes from how the results are computed."""
    shapes = [entry.shape for entry in excerpt.border]
    sizes = [size for entry in excerpt.border for size in (*(entry.shape or ()), *(entry.contents or ()))]
    if None not in shapes and all(isinstance(size, int) for size in sizes):
        return EverySize.IF_TRIED  # there is one size
    try:
        before, after = (_Side(excerpt, side).outputs() for side in (excerpt.before, excerpt.exact))
        return min(itertools.starmap(_compared, zip(before[: excerpt.results], after, strict=True)), key=_WORST.index)
    except (Unproven, Invalid, Undecided, ValueError, IndexError, KeyError, TypeError):
        return EverySize.UNKNOWN


_WORST = list(EverySize)


def _compared(old: Value, new: Value) -> EverySize:
    if isinstance(old, Known) and isinstance(new, Known):
        is_same = old.items.shape == new.items.shape and bool(np.all(old.items == new.items))
        return EverySize.SAME_TERMS if is_same else EverySize.UNKNOWN
    a, b = fused(tensor_of(old)), fused(tensor_of(new))
    if a.shape != b.shape:
        return EverySize.UNKNOWN
    if text_of(a) == text_of(b):
        return EverySize.SAME_TERMS
    return EverySize.IF_TRIED if is_uniform(a) and is_uniform(b) else EverySize.UNKNOWN


class _Side:
    """Evaluates one side of an excerpt."""

    def __init__(self, excerpt: Excerpt, side: SmallModel) -> None:
        self._graph, self._scope = side.proto.graph, dict[str, Value]()
        self._opset = max(entry.version for entry in side.proto.opset_import if entry.domain == "")
        self._dims = frozenset(size for entry in excerpt.border for size in entry.shape or ())
        self._constants = side.constants
        self._border = {entry.name: entry for entry in excerpt.border}

    def outputs(self) -> list[Value]:
        """Return the outputs."""
        for node in self._graph.node:
            operands = [self._value(name) for name in node.input]
            if node.domain not in ("", "ai.onnx") or self._opset < _OLDEST_OPSET:
                raise Unproven(f"{node.domain} {node.op_type} {self._opset}")
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            results = evaluated(SymbolicCall(node, operands, attributes, self._opset, self._dims))
            for name, value in zip(node.output, results, strict=False):
                self._scope[name] = value
        return [self._value(output.name) for output in self._graph.output]

    def _value(self, name: str) -> Value:
        if name and name not in self._scope:
            border = self._border.get(name)
            self._scope[name] = _constant(name, self._constants[name]) if border is None else _border(border)
        return self._scope[name] if name else None


def _border(entry: Border) -> Value:
    if entry.shape is None:
        raise Unproven("an unknown rank")
    numbers = [size for size in entry.shape if isinstance(size, int)]
    if entry.contents is not None and None not in entry.contents and len(numbers) == len(entry.shape):
        return Known(np.array([*entry.contents, None], object)[:-1].reshape(numbers))
    return source(entry.name, entry.shape, is_float=entry.dtype is not None and entry.dtype.value in FLOATS)


def _constant(name: str, stored: ir.TensorProtocol) -> Value:
    if holds_sizes(stored) or (stored.dtype == ir.DataType.BOOL and stored.nbytes < LARGE_BYTES):
        return Known(np.asarray(stored.numpy()).astype(object))
    is_small = stored.dtype != ir.DataType.STRING and stored.nbytes < LARGE_BYTES
    text = number_text(np.asarray(stored.numpy())) if is_small else name
    return stored_tensor(text, stored.shape.numpy(), is_float=stored.dtype.value in FLOATS)
