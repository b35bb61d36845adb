"""Draws the inputs that two models are compared on: by type, by use, from explicit seeds, at several sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.proof.roles import Role, Use, find_use
from sardonyx.proof.sizes import DynamicDims
from sardonyx.runtime import Array, Value

_FIRST_OVERRIDABLE_IR = 4  # before it every initializer had to be listed as an input
_MOST_OVERRIDDEN_BYTES = 1 << 26


class Style(StrEnum):
    """What kind of numbers a trial draws."""

    NORMAL = "normal"  # signed, of size one
    LARGE = "large"  # signed, a few times larger and off centre: reaches units that rest at size one
    WIDE = "wide"  # signed, from thousandths to tens, with zeros and ones in between
    POSITIVE = "positive"  # for operators that are undefined below zero
    SPECIAL = "special"  # with infinities, NaN and subnormal numbers
    GIVEN = "given"  # the user's own


EMPTY = "empty"  # how the record names a trial on a batch of nothing


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial before its sizes are settled."""

    seed: int
    round: int  # which sizes
    style: Style
    left_padded: bool = False
    hides_row: bool = False  # one row of a mask keeps nothing
    empty: bool = False  # a batch of nothing
    overrides: bool = False  # feed the initializers that are also inputs

    @property
    def attending(self) -> Plan:
        """The same with masks under which every position attends to something, be the model causal or not."""
        return replace(self, left_padded=False, hides_row=False)

    @property
    def label(self) -> str:
        """How the record names the style."""
        return EMPTY if self.empty else f"{self.style}, overridden defaults" if self.overrides else str(self.style)


@dataclass(frozen=True, slots=True)
class Draw:
    """Feeds, and the size every dynamic dim has in them."""

    feeds: dict[str, Value]
    dims: dict[str, int]


class Inputs:
    """The inputs of one model and how to draw them."""

    def __init__(self, model: ir.Model) -> None:
        initializers = model.graph.initializers
        self._required = [v for v in model.graph.inputs if v.name not in initializers]
        listed = [v for v in model.graph.inputs if v.name in initializers]
        self._overridable = listed if model.ir_version >= _FIRST_OVERRIDABLE_IR else []
        self._uses = {v.name or "": find_use(model, v) for v in self._required}
        self._dims = DynamicDims(self._required)
        self._ways = [(rule, tame) for rule in self._dims.rules() for tame in (False, True)]

    @property
    def required(self) -> list[str]:
        """Names of the inputs that have no default."""
        return [v.name or "" for v in self._required]

    @property
    def dynamic(self) -> list[str]:
        """The names of the dynamic dims."""
        return self._dims.names

    @property
    def ways(self) -> int:
        """How many ways there are to draw one plan, the first the most telling."""
        return len(self._ways)

    def use(self, name: str) -> Use:
        """What an input is for."""
        return self._uses[name]

    def plans(self, seeds: Sequence[int]) -> list[Plan]:
        """The default trials: each style at sizes of its own, then what only some models have."""
        plans = [
            Plan(seeds[0], 0, Style.NORMAL),
            Plan(seeds[1 % len(seeds)], 1, Style.LARGE, left_padded=True),
            Plan(seeds[2 % len(seeds)], 2, Style.WIDE),
            Plan(seeds[3 % len(seeds)], 3, Style.POSITIVE, hides_row=True),
        ]
        if not self._required:
            plans = plans[:1]
        elif not self._dims.names and self._has_floats:  # often a batch of one, where a resting unit is never awake
            plans.append(Plan(seeds[2 % len(seeds)], 0, Style.NORMAL))
            plans.append(Plan(seeds[3 % len(seeds)], 0, Style.LARGE))
        if self._overridable:
            plans.append(replace(plans[0], overrides=True))
        if self._dims.empty() is not None:
            plans.append(Plan(seeds[0], 0, Style.NORMAL, empty=True))
        return plans

    def exact_plans(self, seeds: Sequence[int]) -> list[Plan]:
        """Trials only bit-exact rewrites must pass: infinities and NaN go other ways when roundings do."""
        return [Plan(seeds[0], 0, Style.SPECIAL)] if self._has_floats else []

    @property
    def _has_floats(self) -> bool:
        return any(v.dtype is not None and v.dtype.is_floating_point() for v in self._required)

    def draw(self, plan: Plan, way: int = 0) -> Draw:
        """The feeds of a plan; another `way` sizes the dims by another rule or keeps integers small."""
        rule, tame = self._ways[way]
        sizes = rule(plan.round)
        if plan.empty:
            sizes = self._dims.empty() or sizes
        rng = np.random.default_rng(plan.seed)
        feeds: dict[str, Value] = {}
        for value in self._required:
            name = value.name or ""
            shape = self._dims.shape(name, sizes, way // 2)
            feeds[name] = _draw(value.type, shape, _Brush(rng, plan, self._uses[name], sizes, tame))
        if plan.overrides:
            feeds.update(self._overridden(rng))
        return Draw(feeds, sizes)

    def _overridden(self, rng: np.random.Generator) -> dict[str, Value]:
        """Other values for the defaults: floats moved by a tenth, everything else as it is."""
        feeds: dict[str, Value] = {}
        for value in self._overridable:
            tensor = value.const_value
            if tensor is None or tensor.nbytes > _MOST_OVERRIDDEN_BYTES:
                continue
            array = tensor.numpy()
            if array.dtype.kind == "f":
                moved: Any = array * (1 + 0.1 * rng.standard_normal(array.shape))
                array = np.asarray(moved).astype(array.dtype)
            feeds[value.name or ""] = array
        return feeds


@dataclass(frozen=True, slots=True)
class _Brush:
    """All that decides one input's values besides its type and shape."""

    rng: np.random.Generator
    plan: Plan
    use: Use
    sizes: Mapping[str, int]
    tame: bool


def _draw(kind: ir.TypeProtocol | None, shape: tuple[int, ...], brush: _Brush) -> Value:
    if isinstance(kind, ir.SequenceType):
        return [_draw(kind.elem_type, shape, brush) for _ in range(3)]
    if isinstance(kind, ir.OptionalType):
        return _draw(kind.elem_type, shape, brush)
    if not isinstance(kind, ir.TensorType):
        raise RuntimeFailure(f"no inputs can be drawn for the type {kind}", hint="give them with --inputs x.npz")
    dtype = kind.dtype
    if dtype == ir.DataType.STRING:
        words = brush.rng.choice(np.array(["", "a", "B", "word", "two words", "ß∂", "42", "-1.5"], object), shape)
        return np.asarray(words, object)
    target = np.dtype(dtype.numpy())
    if brush.use.role is Role.MASK and shape:
        return np.asarray(_mask(shape, brush), target)
    if dtype == ir.DataType.BOOL:
        return np.asarray(brush.rng.random(shape) < 0.5)
    if brush.use.slot:
        return np.asarray(_operand(shape, brush, floating=dtype.is_floating_point()), target)
    if dtype.is_floating_point():
        return np.asarray(_real(shape, brush)).astype(target)
    if target.kind == "c":
        return (_real(shape, brush) + 1j * _real(shape, brush)).astype(target)
    return np.asarray(_integer(dtype, shape, brush)).astype(target)


def _real(shape: tuple[int, ...], brush: _Brush) -> Array:
    rng, style = brush.rng, brush.plan.style
    if brush.use.role is Role.ADDED_MASK and style in (Style.NORMAL, Style.LARGE) and shape:
        return np.where(_mask(shape, brush), 0.0, -1e4)
    numbers = np.asarray(rng.standard_normal(shape), np.float64)
    if style is Style.POSITIVE:
        return np.abs(numbers) + 0.01
    if style is Style.NORMAL:
        return numbers
    if style is Style.LARGE:
        return 3.0 * numbers + 1.0
    wide = numbers * 10.0 ** rng.uniform(-3.0, 1.5, shape)
    plain = rng.choice(np.array([0.0, -0.0, 1.0, -1.0]), shape)
    mixed = np.asarray(np.where(rng.random(shape) < 0.1, plain, wide))
    if style is Style.SPECIAL and numbers.size:
        places = rng.permutation(numbers.size)[: max(4, numbers.size // 20)]
        mixed.reshape(-1)[places] = np.resize([np.inf, -np.inf, np.nan, 1e-40], places.size)
    return mixed


def _integer(dtype: ir.DataType, shape: tuple[int, ...], brush: _Brush) -> Array:
    use, style, rng = brush.use, brush.plan.style, brush.rng
    if use.role in (Role.INDEX, Role.POSITION):
        return _index(shape, brush)
    if brush.tame:
        return np.asarray(rng.integers(1 if use.divides else 0, 2, shape))
    bits = dtype.bitwidth
    if bits <= 8:  # quantized data fills its range
        low, high = (-(1 << bits - 1), 1 << bits - 1) if dtype.is_signed() else (0, 1 << bits)
    else:
        low, high = {Style.WIDE: (-1000, 1001), Style.POSITIVE: (1, 10)}.get(style, (-8, 9))
    if use.divides:
        low, high = 1, max(high, 2)
    drawn = np.asarray(rng.integers(low if dtype.is_signed() else max(low, 0), high, shape))
    return _with_specials(drawn, brush)


def _index(shape: tuple[int, ...], brush: _Brush) -> Array:
    use, rng = brush.use, brush.rng
    rows = brush.sizes.get(use.rows, 2) if isinstance(use.rows, str) else use.rows
    rows = max(min(rows or 4, 2 if brush.tame else rows or 4), 1)
    if use.role is Role.POSITION and shape and brush.plan.style is not Style.WIDE:
        return np.broadcast_to(np.arange(shape[-1]) % max(rows, 1 if use.rows else shape[-1]), shape)
    drawn = np.asarray(rng.integers(0, rows, shape))
    if drawn.size > 1:  # both ends of the table
        drawn.reshape(-1)[-2:] = (rows - 1, 0)
    return np.minimum(_with_specials(drawn, brush), rows - 1)


def _with_specials(drawn: Array, brush: _Brush) -> Array:
    """Put the constants the model compares with (a padding token) where padding would be."""
    if not brush.use.specials or not drawn.shape or brush.tame:
        return drawn
    special = brush.rng.choice(np.array(brush.use.specials), drawn.shape)
    return np.where(_mask(drawn.shape, brush), drawn, special)


def _mask(shape: tuple[int, ...], brush: _Brush) -> Array:
    """True where kept: padded on one side and never everything kept; one row is empty where the plan says so."""
    rng, length = brush.rng, shape[-1]
    rows = shape[:-1]
    if brush.plan.style is Style.WIDE:  # holes anywhere
        kept = rng.random(shape) < 0.6
        if length:
            kept[..., int(rng.integers(0, length))] = True
        return np.asarray(kept)
    lengths = np.asarray(rng.integers(1, max(length, 1) + 1, rows))
    if lengths.size:
        lengths.reshape(-1)[0:1] = max(length // 2, 1)
    if lengths.size > 1 and brush.plan.hides_row:  # a row that attends to nothing has an answer too
        lengths.reshape(-1)[-1] = 0
    position = np.arange(length)
    if brush.plan.left_padded:
        position = position[::-1]
    return np.asarray(position < lengths[..., None])


def _operand(shape: tuple[int, ...], brush: _Brush, floating: bool) -> Array:
    """Sizes, axes and counts that the operator is sure to take."""
    op, _, operand = brush.use.slot.partition(":")
    count = int(np.prod(shape, dtype=np.int64))
    steps = np.arange(count).reshape(shape)
    ones = np.ones(shape, np.int64)
    if op in ("Bernoulli", "Dropout"):  # a probability
        return np.asarray(brush.rng.random(shape))
    if op == "Reshape":
        return np.where(steps == count - 1, -1, 1)
    if op in ("Unsqueeze", "Squeeze") or op.startswith("Reduce") or (op, operand) in (("Slice", "3"), ("Pad", "3")):
        return steps
    if (op, operand) == ("Slice", "2"):
        return ones * int(brush.rng.integers(2, 1000))
    if (op, operand) in (("Slice", "1"), ("Pad", "1"), ("Trilu", "1")):
        return np.asarray(brush.rng.integers(0, 2, shape))
    if (op, operand) in (
        ("Range", "0"),
        ("CumSum", "1"),
        ("SequenceAt", "1"),
        ("SequenceErase", "1"),
        ("DFT", "2"),
        ("RoiAlign", "2"),
    ):
        return ones * 0
    if (op, operand) in (("Range", "1"), ("OneHot", "1")):
        return ones * 5
    if op in ("ConstantOfShape", "Tile", "Loop", "Resize", "Upsample", "BitShift", "computed") and not brush.tame:
        return np.asarray(brush.rng.integers(1, 4, shape)) if not floating else ones * 2
    return ones
