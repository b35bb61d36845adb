"""Smaller sizes in place of fixed ones, such as the height of an image or the length of a sequence.

A rewrite that is equal with some fixed size is equal with any other, if its nodes do not depend on that size. Smaller
ones take less time, and decide rewrites whose values are too large otherwise. A size that constants name (the target of
a Reshape) is replaced there too, on both sides, if the values are large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.exact.call import FLOATS
from sardonyx.ir.ops import ARITHMETIC, ATTENTION_NAMES, MATRIX_PRODUCTS, REARRANGES, SOFTMAXES
from sardonyx.ir.shapes import Size
from sardonyx.verification.rewrite_models import LARGE, Excerpt, SmallModel

_LEAST = (8, 16)  # to which sizes are reduced, in the first and in the second choice
_PERIOD = 8  # sizes keep their remainders, for strides
_MOST_ITEMS = 64  # elements of a constant that may hold sizes
_MANY = 1 << 14  # elements of one tensor
_ENDLESS = 1 << 31  # a number from which on it stands for the end of an axis
_COUNTS = frozenset(("group", "hidden_size", "kv_num_heads", "num_heads", "q_num_heads"))  # attributes of channels
_POWERS, _NEAR = (-4, -2, -1, 1, 2, 4), 1e-5
# Sizes and indices that these read fit the tensors or are refused. Others (Slice) take a number beyond the end, so that
# what differs at one size may be equal at a smaller one.
_FITTING = ARITHMETIC | ATTENTION_NAMES | MATRIX_PRODUCTS | REARRANGES | SOFTMAXES | {"Concat", "Gather", "Split"}

Sizes = Mapping[Size | None, int]  # in place of fixed ones
AS_THEY_ARE: Sizes = MappingProxyType({})


def free_weights(excerpt: Excerpt) -> frozenset[str]:
    """Return the large constants that both sides read: they may as well be any others."""
    both = excerpt.before.constants.keys() & excerpt.exact.constants.keys()
    tensors = ((name, excerpt.before.constants[name]) for name in both)
    return frozenset(name for name, each in tensors if _is_float(each) and each.nbytes >= LARGE)


def _is_float(stored: ir.TensorProtocol) -> bool:
    return stored.dtype.value in FLOATS


def holds_sizes(stored: ir.TensorProtocol) -> bool:
    """Return whether a constant may hold sizes."""
    return stored.dtype.is_integer() and stored.size <= _MOST_ITEMS


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
        free, sides = free_weights(excerpt), (excerpt.before, excerpt.exact)
        stored = {**excerpt.before.constants, **excerpt.exact.constants}
        found, named, kept, places = set[Size | None](), set[int](), {0, 1}, set[int]()
        for name, each in stored.items():
            (found if name in free else kept).update(each.shape.numpy())
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
        shapes = [*(entry.shape or () for entry in excerpt.border), *(stored[name].shape.numpy() for name in free)]
        largest = max(map(_elements, shapes), default=0)
        sizes = frozenset(size for size in found if isinstance(size, int)) - kept - places
        is_fitting = excerpt.operators <= _FITTING
        compared = frozenset[int]() if is_fitting else frozenset(places | named)
        return cls(sizes, frozenset(named), frozenset(kept | places), compared, largest >= _MANY)

    def choices(self, is_accepted: Callable[[Sizes], bool]) -> list[Sizes]:
        """Return two choices of smaller sizes that the nodes accept, or none."""
        sizes = sorted(size for size in self.found if size > _LEAST[0] and (self.is_large or size not in self.named))
        sizes = sorted(size for size in self._smaller(sizes, _LEAST[0]) if isinstance(size, int))
        if sizes and not is_accepted(self._smaller(sizes, _LEAST[0])):
            accepted: list[int] = []
            for size in reversed(sizes) if self.is_large else ():
                tried = sorted([*accepted, size])
                accepted = tried if is_accepted(self._smaller(tried, _LEAST[0])) else accepted
            sizes = accepted
        return [smaller for least in _LEAST if (smaller := self._smaller(sizes, least))]

    def names(self, sizes: Sizes) -> bool:
        """Return whether constants name one of the sizes that are replaced."""
        return not self.named.isdisjoint(size for size in sizes if isinstance(size, int))

    def _smaller(self, sizes: Sequence[int], least: int) -> Sizes:
        """Return smaller sizes in the same order, with the same remainders; different sizes stay different."""
        others = {abs(number) for number in (self.kept | self.named) - set(sizes)}
        compared = [abs(number) for number in self.places - set(sizes) if abs(number) < _ENDLESS]
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
    floats = [attribute.f for node in side.proto.graph.node for attribute in node.attribute]
    floats += [float(each.numpy().item()) for each in side.constants.values() if each.size == 1 and _is_float(each)]
    with np.errstate(all="ignore"):
        made = np.abs(np.array(floats))[:, None] ** np.array(_POWERS, np.float64)
        whole = (made > 1) & (made < _ENDLESS) & (np.abs(made - np.round(made)) < _NEAR * made)
    yield from (round(number) for number in made[whole].tolist())


def _elements(shape: Iterable[Size | None]) -> int:
    return math.prod(size for size in shape if isinstance(size, int))
