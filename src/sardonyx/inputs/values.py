"""Generate the values of one input in one trial, by type, role and style; report what they left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from enum import StrEnum

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.inputs.requirements import Bounds
from sardonyx.inputs.roles import HIDING_SCORE, Role, Threshold, Use
from sardonyx.runtime import Array, Value

# Masks: the items of one batch are padded in different ways, so that one trial covers them all. A whole row is masked
# only if the plan asks for it: models return NaN, zeros or a mean for such rows, and only they distinguish masks of
# -1e4, the lowest number and -inf.


class Pattern(StrEnum):
    """How the rows of one item are masked."""

    FULL = "all kept"
    RIGHT = "padded on the right"
    LEFT = "padded on the left"
    HOLES = "holes anywhere"
    HIDDEN = "fully masked rows"


def kept(shape: tuple[int, ...], rng: np.random.Generator, patterns: Sequence[Pattern]) -> Array:
    """Return a mask that is True where a position is kept; each item follows the next pattern."""
    axis = _item_axis(shape)
    if axis is None:
        return _item(shape, rng, patterns[0])
    items = [_item(shape[axis + 1 :], rng, patterns[place % len(patterns)]) for place in range(shape[axis])]
    return np.stack(items).reshape(shape) if items else np.zeros(shape, bool)


def _item_axis(shape: tuple[int, ...]) -> int | None:
    """Return the batch axis: the first axis before the last whose size is not 1, or None."""
    return next((axis for axis, size in enumerate(shape[:-1]) if size != 1), None)


def _item(shape: tuple[int, ...], rng: np.random.Generator, pattern: Pattern) -> Array:
    length = shape[-1]
    if pattern is Pattern.FULL:
        return np.ones(shape, bool)
    if pattern is Pattern.HOLES:
        mask = rng.random(shape) < 0.6
        if length:
            mask[..., int(rng.integers(0, length))] = True
        return np.asarray(mask)
    lengths = np.asarray(rng.integers(1, max(length, 2), shape[:-1]))  # at least one position is kept and one padded
    if pattern is Pattern.HIDDEN:
        lengths.reshape(-1)[::2] = 0
    position = np.arange(length)[::-1] if pattern is Pattern.LEFT else np.arange(length)
    return np.asarray(position < lengths[..., None])


def added(mask: Array, rng: np.random.Generator, lowest: float, *, biased: bool) -> Array:
    """Return a mask as numbers to add to scores: the lowest number, -inf or -1e4 where masked, in turn by item."""
    fills, axis = np.array([lowest, -np.inf, -1e4]), _item_axis(mask.shape)
    items = np.arange(1 if axis is None else mask.shape[axis]) % fills.size
    fill = fills[items].reshape(-1, *[1] * (mask.ndim - 1 - (axis or 0)))
    bias = np.asarray(rng.standard_normal(mask.shape), np.float64) * float(biased)
    return np.where(mask, bias, fill)


def hides(array: Array, *, inverted: bool = False) -> Array:
    """Return where a mask, boolean or added, hides a position; an inverted one does where it is true."""
    real = array.dtype.kind not in "biu" and bool((array < 0).any())
    return np.asarray(array <= HIDING_SCORE if real else (array == 0) != inverted)


def hides_whole_row(array: Array, *, inverted: bool = False) -> bool:
    """Return whether a mask hides every position of some row."""
    return bool(array.ndim and array.size and hides(array, inverted=inverted).all(axis=-1).any())


def has_row_of_zeros(array: Array) -> bool:
    """Return whether all elements of some row are 0."""
    return bool(array.ndim and array.size and (array == 0).all(axis=-1).any())


class Style(StrEnum):
    """The kind of numbers in a trial."""

    NORMAL = "normal"  # standard normal
    LARGE = "large"  # normal with mean 1 and deviation 3: activates units that stay inactive on standard normal inputs
    WIDE = "wide"  # signed, from thousandths to tens, mixed with zeros and ones, and rows of zeros
    POSITIVE = "positive"  # for operators that are undefined below zero
    TINY = "tiny"  # constant rows and rows of small variance, where the epsilon of a norm matters
    BIG = "big"  # up to 1e4, of both signs or of one, and integers up to their type's range
    COMPARED = "compared"  # on both sides of the numbers that the graph compares with
    SPECIAL = "special"  # with infinities, NaN and subnormal numbers
    GIVEN = "given"  # the user's own


# A batch of one uses the first pattern. FULL allows every position of every output to be compared.
_PATTERNS: Mapping[Style, Sequence[Pattern]] = {
    Style.NORMAL: (Pattern.RIGHT, Pattern.FULL),
    Style.LARGE: (Pattern.LEFT, Pattern.RIGHT, Pattern.FULL),
    Style.WIDE: (Pattern.HOLES, Pattern.LEFT, Pattern.RIGHT),
    Style.POSITIVE: (Pattern.FULL,),
}
_MIXED = (Pattern.RIGHT, Pattern.LEFT, Pattern.HOLES)
_HIDDEN = (Pattern.HIDDEN, Pattern.HIDDEN, Pattern.HIDDEN, Pattern.LEFT)
_SPREADS = ((1e-3, 0.0), (1e-4, 0.0), (1e-6, 0.0), (0.0, 0.5), (1e-2, 0.5), (1e-5, 0.0))  # standard deviation, mean
_WORDS = ("", "a", "B", "word", "two words", "ß∂", "42", "-1.5")


class ValueSpec(Struct, frozen=True):
    """Everything that determines the values of one input besides its type and shape."""

    rng: np.random.Generator
    style: Style
    use: Use
    sizes: Mapping[str, int]
    small: bool = False  # integers are small
    hides_row: bool = False  # masks hide every position of some rows
    region: int | None = None  # all elements are in this one of the regions between the thresholds
    offset: int = 0  # number of earlier positions
    looked_up: int = 0  # number of rows of the table that were looked up before

    @property
    def patterns(self) -> Sequence[Pattern]:
        """The mask patterns."""
        return _HIDDEN if self.hides_row else _PATTERNS.get(self.style, _MIXED)


def make_value(kind: ir.TypeProtocol | None, shape: tuple[int, ...], spec: ValueSpec) -> Value:
    """Return a value of this type and shape."""
    if isinstance(kind, ir.SequenceType):
        return [make_value(kind.elem_type, shape, spec) for _ in range(3)]
    if isinstance(kind, ir.OptionalType):
        return make_value(kind.elem_type, shape, spec)
    if not isinstance(kind, ir.TensorType):
        raise RuntimeFailure(f"no inputs can be generated for the type {kind}", hint="give them as `inputs`")
    dtype = kind.dtype
    if dtype == ir.DataType.STRING:
        words = np.array([*_WORDS, *spec.use.words * (1 + len(_WORDS) // max(len(spec.use.words), 1))], object)
        return np.asarray(spec.rng.choice(words, shape), object)
    target = np.dtype(dtype.numpy())
    if spec.use.role is Role.MASK and shape:
        return _mask(dtype, shape, spec).astype(target)
    if dtype == ir.DataType.BOOL:
        return _flags(shape, spec)
    if spec.use.slot:
        return np.asarray(_operand(shape, spec, floating=dtype.is_floating_point()), target)
    if dtype.is_floating_point():
        low, high = float(dtype.min), float(dtype.max)
        numbers = _real(shape, spec, low)
        return np.where(np.isinf(numbers), numbers, np.clip(numbers, low, high)).astype(target)
    if target.kind == "c":
        return (_real(shape, spec, 0.0) + 1j * _real(shape, spec, 0.0)).astype(target)
    return np.asarray(_integer(dtype, shape, spec)).astype(target)


def _mask(dtype: ir.DataType, shape: tuple[int, ...], spec: ValueSpec) -> Array:
    """Return a mask of zeros and ones, in one trial also of the other numbers that the graph tells apart."""
    mask = kept(shape, spec.rng, spec.patterns) != spec.use.inverted
    if not spec.use.specials or spec.style is not Style.WIDE:
        return mask
    low, high = int(dtype.min), int(dtype.max)
    others = spec.rng.choice(np.array([0, *(number for number in spec.use.specials if low <= number <= high)]), shape)
    return np.where(mask, 1, others)


def _flags(shape: tuple[int, ...], spec: ValueSpec) -> Array:
    """Return random flags; a single flag, which may select a branch, is on in one trial and off in another."""
    if math.prod(shape) == 1 and spec.style in (Style.NORMAL, Style.LARGE):
        return np.full(shape, spec.style is Style.NORMAL)
    return np.asarray(np.asarray(spec.rng.random(shape), np.float64) < 0.5)


def _real(shape: tuple[int, ...], spec: ValueSpec, lowest: float) -> Array:
    if spec.use.role is Role.ADDED_MASK and shape:  # an additive mask, a bias such as a position encoding, or both
        if spec.style is Style.POSITIVE and not spec.hides_row:
            return 2.0 * spec.rng.standard_normal(shape)
        return added(kept(shape, spec.rng, spec.patterns), spec.rng, lowest, biased=spec.style is Style.WIDE)
    if spec.style is Style.COMPARED and spec.use.thresholds:
        return _compared(shape, spec, whole_numbers=False)
    numbers = np.asarray(spec.rng.standard_normal(shape), np.float64)
    return _REAL[spec.style](numbers, spec.rng)


def _wide(numbers: Array, rng: np.random.Generator) -> Array:
    wide = np.asarray(numbers * 10.0 ** rng.uniform(-3.0, 1.5, numbers.shape), np.float64)
    plain = np.asarray(rng.choice(np.array([0.0, -0.0, 1.0, -1.0]), numbers.shape), np.float64)
    return np.where(np.asarray(rng.random(numbers.shape), np.float64) < 0.1, plain, wide)


def _special(numbers: Array, rng: np.random.Generator) -> Array:
    mixed = _wide(numbers, rng)
    if numbers.size:
        places = rng.permutation(numbers.size)[: max(4, numbers.size // 20)]
        mixed.reshape(-1)[places] = np.resize([np.inf, -np.inf, np.nan, 1e-40], places.size)
    return mixed


def _tiny(numbers: Array, rng: np.random.Generator) -> Array:
    """Scale each item of the batch to one small spread, and each row of the first item to its own."""
    if numbers.ndim < 2:
        return 1e-3 * numbers
    spread, mean = (np.array(column) for column in zip(*_SPREADS, strict=True))
    count, *rows = (int(size) for size in numbers.shape[:-1])
    chosen = np.broadcast_to(np.arange(count).reshape(count, *[1] * len(rows)), (count, *rows)) % len(_SPREADS)
    if rows and count:
        chosen[0] = np.arange(math.prod(rows)).reshape(rows) % len(_SPREADS)
    return mean[chosen][..., None] + spread[chosen][..., None] * numbers


def _big(numbers: Array, rng: np.random.Generator) -> Array:
    """Return large numbers; in the second and third item of a batch all of one sign, so that sums saturate."""
    big = np.asarray(np.sign(numbers) * 10.0 ** rng.uniform(-1.0, 4.0, numbers.shape), np.float64)
    if numbers.ndim > 1:
        big[1:2], big[2:3] = 10.0 + np.abs(big[1:2]), -10.0 - np.abs(big[2:3])
    return big


def _wide_with_zeros(numbers: Array, rng: np.random.Generator) -> Array:
    """Return wide numbers with a row of zeros, for which a norm is 0; in the last item also a column of zeros.

    They are left out where they would be more than a third of the input: the usual size of an output would be another.
    """
    wide = _wide(numbers, rng)
    if wide.ndim > 1 and wide.size:
        zero = np.zeros(wide.shape, bool)
        item = zero[-1] if wide.ndim > 2 else zero
        item[..., -1, :] = True
        if wide.ndim > 2:
            item[..., -1] = True
        wide[zero & (3 * np.count_nonzero(zero) <= zero.size)] = 0.0
    return wide


_REAL: Mapping[Style, Callable[[Array, np.random.Generator], Array]] = {
    Style.NORMAL: lambda numbers, _: numbers,
    Style.LARGE: lambda numbers, _: 3.0 * numbers + 1.0,
    Style.WIDE: _wide_with_zeros,
    Style.POSITIVE: lambda numbers, _: np.abs(numbers) + 0.01,
    Style.TINY: _tiny,
    Style.BIG: _big,
    Style.COMPARED: lambda numbers, _: numbers,
    Style.SPECIAL: _special,
    Style.GIVEN: _wide,
}


def regions(thresholds: Sequence[Threshold], *, whole_numbers: bool) -> list[tuple[float, float]]:
    """Return regions between and beyond the thresholds, each as its centre and half width; equality tests first."""
    numbers = sorted({threshold.number for threshold in thresholds})
    if not numbers:
        return []
    exact = [(threshold.number, 0.0) for threshold in thresholds if threshold.exact]
    above, below = (max(abs(number) * 0.5, 2.0) for number in (numbers[-1], numbers[0]))
    ends = [(numbers[-1] + above, 0.5 * above), (numbers[0] - below, 0.5 * below)]
    pairs = [pair for pair in itertools.pairwise(numbers) if not whole_numbers or pair[1] - pair[0] > 1]
    return [*exact, *ends, *(((low + high) / 2, (high - low) / 4) for low, high in pairs)]


def _compared(shape: tuple[int, ...], spec: ValueSpec, *, whole_numbers: bool) -> Array:
    """Return elements around each threshold, never so close that rounding decides, or all in the region of the plan."""
    rng, thresholds = spec.rng, spec.use.thresholds
    if spec.region is not None:
        choices = regions(thresholds, whole_numbers=whole_numbers)
        middle, half_width = choices[spec.region % len(choices)]
        return middle + half_width * rng.uniform(-1.0, 1.0, shape)
    centres = np.array([threshold.number for threshold in thresholds])
    exact = np.array([threshold.exact for threshold in thresholds])
    chosen = rng.integers(0, centres.size, shape)
    centre = centres[chosen]
    near = np.maximum(np.abs(centre) * 0.02, 1.0 if whole_numbers else 0.02)
    reach = np.where(rng.random(shape) < 0.5, near, np.maximum(np.abs(centre), near) * rng.uniform(0.1, 1.0, shape))
    numbers = centre + np.where(rng.random(shape) < 0.5, 1.0, -1.0) * reach
    numbers = np.where(exact[chosen] & (rng.random(shape) < 0.5), centre, numbers)
    usual = (8.0 if whole_numbers else 1.0) * rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.25, usual, numbers)


def _integer(dtype: ir.DataType, shape: tuple[int, ...], spec: ValueSpec) -> Array:
    use, rng = spec.use, spec.rng
    if use.role in (Role.INDEX, Role.POSITION):
        return _index(shape, spec)
    if spec.small:
        return np.asarray(rng.integers(1 if use.divides else 0, 2, shape))
    least, most = int(dtype.min), int(dtype.max)
    if spec.style is Style.COMPARED and use.thresholds:
        numbers = np.rint(_compared(shape, spec, whole_numbers=True))
        return np.clip(numbers, max(least, 1) if use.divides else least, min(most, 1 << 62)).astype(np.int64)
    if dtype.bitwidth <= 8:  # quantized data fills its range
        low, high = least, most + 1
    else:
        ranges = {Style.WIDE: (-1000, 1001), Style.POSITIVE: (1, 10), Style.BIG: (least // 4, most // 4)}
        low, high = ranges.get(spec.style, (-8, 9))
    if use.divides:
        low, high = 1, max(high, 2)
    return _with_specials(np.asarray(rng.integers(max(low, least), high, shape)), spec)


def _index(shape: tuple[int, ...], spec: ValueSpec) -> Array:
    use, rng = spec.use, spec.rng
    rows = spec.sizes.get(use.rows, 2) if isinstance(use.rows, str) else use.rows
    rows = max(min(rows or 4, 2 if spec.small else rows or 4), 1)
    if use.role is Role.POSITION and shape and spec.style is not Style.WIDE:
        positions = spec.offset + np.arange(shape[-1])
        return np.broadcast_to(positions % rows if use.rows else positions, shape)
    count, fresh = math.prod(shape), fresh_rows(shape)
    # a factor whose multiples, modulo the number of rows, reach every row once, evenly spread
    by = next(step for step in range(max(int(0.618 * rows), 1), 2 * rows + 1) if math.gcd(step, rows) == 1)
    indices = np.asarray(rng.permutation((spec.looked_up + np.arange(fresh)) % rows * by % rows))
    indices = np.concatenate([indices, (rows - 1, 0)[: count - fresh]]).reshape(shape)  # both ends of the table
    return np.minimum(_with_specials(indices.astype(np.int64), spec), rows - 1)


def fresh_rows(shape: tuple[int, ...]) -> int:
    """Return how many rows of a table indices of this shape look up in turn; the others are both ends of the table."""
    count = math.prod(shape)
    return count - 2 if count > 2 else min(count, 1)


def _with_specials(integers: Array, spec: ValueSpec) -> Array:
    """Put constants that the model compares with (such as a padding token) where padding would be."""
    if not spec.use.specials or not integers.shape or spec.small:
        return integers
    special = spec.rng.choice(np.array(spec.use.specials), integers.shape)
    return np.where(kept(integers.shape, spec.rng, spec.patterns), integers, special)


_FIXED_OPERANDS = {
    "Range:0": 0, "CumSum:1": 0, "SequenceAt:1": 0, "SequenceErase:1": 0, "DFT:2": 0, "RoiAlign:2": 0,
    "Range:1": 5, "OneHot:1": 5,
}  # fmt: skip


def _operand(shape: tuple[int, ...], spec: ValueSpec, floating: bool) -> Array:
    """Return sizes, axes or counts that the operator accepts."""
    op, _, operand = spec.use.slot.partition(":")
    count = int(np.prod(shape, dtype=np.int64))
    steps = np.arange(count).reshape(shape)
    ones = np.ones(shape, np.int64)
    if op in ("Bernoulli", "Dropout"):  # a probability
        return np.asarray(spec.rng.random(shape))
    if op == "Reshape":
        return np.where(steps == count - 1, -1, 1)
    if op in ("Unsqueeze", "Squeeze") or op.startswith("Reduce") or (op, operand) in (("Slice", "3"), ("Pad", "3")):
        return steps
    if (op, operand) == ("Slice", "2"):
        return ones * int(spec.rng.integers(2, 1000))
    if (op, operand) in (("Slice", "1"), ("Pad", "1"), ("Trilu", "1")):
        return np.asarray(spec.rng.integers(0, 2, shape))
    if spec.use.slot in _FIXED_OPERANDS:
        return ones * _FIXED_OPERANDS[spec.use.slot]
    if op == "Loop" and spec.style is Style.WIDE:  # no iteration
        return ones * 0
    if op in ("ConstantOfShape", "Tile", "Loop", "Resize", "Upsample", "BitShift", "computed") and not spec.small:
        return np.asarray(spec.rng.integers(1, 4, shape)) if not floating else ones * 2
    return ones


_DIMS_NAMED = 6  # dimensions named in one note


def reduced_note(trials: Sequence[Mapping[str, int]]) -> str:
    """Return the note about sizes that were chosen smaller than usual, from the sizes of all trials."""
    filled = [dims for dims in trials if 0 not in dims.values()]
    names = list(dict.fromkeys(name for dims in filled for name in dims))
    largest = ", ".join(f"{name} ≤ {max(dims[name] for dims in filled)}" for name in names[:_DIMS_NAMED])
    more = f" and {len(names) - _DIMS_NAMED} more" if len(names) > _DIMS_NAMED else ""
    return f"only small sizes were tried ({largest}{more}): the usual ones exceed the limit on elements"


def size_notes(sizes: Mapping[str, Set[int]], bounds: Mapping[str, Bounds], *, reduced: bool = False) -> list[str]:
    """Return a note for each dimension tried at one size only, or never beyond a number the graph compares it with."""
    notes: list[str] = []
    for name, tried in sizes.items():
        if len(tried) < 2:
            why = "others exceed the limit on elements" if reduced else "the reference accepted no other"
            notes.append(f"the dimension '{name}' was tried at one size only: {why}")
        longest, bound = max(tried, default=0), bounds.get(name, Bounds())
        if bound.limit is not None and longest < bound.limit:
            notes.append(
                f"the dimension '{name}' was tried up to {longest}; the graph has a table of {bound.limit} rows for it"
            )
        beyond = [number for number in bound.compared if number >= longest and number < (bound.limit or number + 1)]
        if beyond:
            notes.append(f"the dimension '{name}' was tried up to {longest}; the graph compares it with {beyond[-1]}")
    return notes


def value_notes(name: str, use: Use, arrays: Sequence[Array]) -> list[str]:
    """Return notes about thresholds that no value of an input reached, and rows that were never zero or masked."""
    if use.role in (Role.MASK, Role.ADDED_MASK):
        hidden = any(hides_whole_row(array, inverted=use.inverted) for array in arrays)
        covered = hidden or all(array.ndim == 0 for array in arrays)
        return [] if covered else [f"no row of the mask '{name}' was masked entirely"]
    notes: list[str] = []
    if use.normalized and not any(has_row_of_zeros(array) for array in arrays):
        notes.append(f"no row of zeros was tried for '{name}', which the graph normalizes")
    finite = [array[np.isfinite(array)] for array in arrays if use.thresholds and array.dtype.kind in "fiu"]
    numbers = np.concatenate([array.astype(np.float64).reshape(-1) for array in finite]) if finite else np.zeros(0)
    least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    beyond = [threshold.number for threshold in use.thresholds if not least <= threshold.number <= most]
    if numbers.size and beyond:
        listed = ", ".join(f"{number:g}" for number in beyond[:3])
        notes.append(f"values from {least:g} to {most:g} were tried for '{name}'; the graph compares it with {listed}")
    return notes


def table_notes(uses: Mapping[str, Use], arrays: Mapping[str, Sequence[Array]]) -> list[str]:
    """Return a note about tables of which not all rows were looked up, the one with the most left out as an example."""
    gaps: list[tuple[int, str]] = []
    for name, use in uses.items():
        if use.table and isinstance(use.rows, int):
            looked_up = len(np.unique(np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays[name])])))
            text = f"'{name}' looked up {looked_up} of {use.rows} rows of '{use.table}'"
            gaps += [(use.rows - looked_up, text)] if looked_up < use.rows else []
    if not gaps:
        return []
    _, text = max(gaps)
    return [text + (f" (and {len(gaps) - 1} more of this kind)" if len(gaps) > 1 else "")]
