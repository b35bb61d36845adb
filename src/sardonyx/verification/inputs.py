"""Generates the inputs that two models are compared on: by type, by use, from explicit seeds, at several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.errors import RuntimeFailure
from sardonyx.ir.facts import Facts
from sardonyx.runtime import Value
from sardonyx.verification.coverage import size_notes, value_notes
from sardonyx.verification.input_roles import Role, Use, find_use, has_norms
from sardonyx.verification.input_sizes import DynamicDims, Sizes, symbolic
from sardonyx.verification.interface import dims
from sardonyx.verification.size_limits import Bounds, find_bounds
from sardonyx.verification.size_requirements import Requirements
from sardonyx.verification.state_inputs import State, find_state
from sardonyx.verification.values import Brush, Style, make, regions

__all__ = ["EMPTY", "Draw", "Inputs", "Plan", "Run", "Style"]

_FIRST_OVERRIDABLE_IR = 4  # before it every initializer had to be listed as an input
_MOST_OVERRIDDEN_BYTES = 1 << 26
_MOST_EMPTY = 4  # dims that are empty in a trial of their own
_MOST_REGIONS = 6
_MOST_EXACT = 3  # sizes that are tried because the graph asks whether a dim is just that
_HEAVY = 100_000  # elements of a trial's inputs, above which the trials are few
_MOST_ELEMENTS = 1_000_000  # of a trial's inputs
_MOST_WORK = 5e9  # multiplications with weights that a long trial may take, about
_LONGEST_USUAL = 16  # among the sizes of the usual rounds

_BIG_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.BFLOAT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
)

Run: TypeAlias = Callable[[Mapping[str, Value]], Sequence[Value]]
EMPTY = "empty"  # how the record names a trial in which some dim is 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One trial before its sizes are settled."""

    seed: int
    round: int  # which sizes
    style: Style
    hides_row: bool = False  # masks hide some rows whole
    overrides: bool = False  # feed the initializers that are also inputs
    sizes: tuple[tuple[str, int], ...] = ()  # of the dims that this trial is about
    region: int | None = None  # COMPARED: all elements lie in this one of the regions between the thresholds

    @property
    def empty(self) -> bool:
        """Whether some dim is 0."""
        return any(size == 0 for _, size in self.sizes)

    @property
    def optional(self) -> bool:
        """Whether the model may reject it: the sizes or values are at the edge of what it takes."""
        return bool(self.sizes) or self.style in (Style.TINY, Style.BIG, Style.COMPARED) or self.hides_row

    @property
    def attending(self) -> Plan:
        """The same with masks that hide no row whole."""
        return replace(self, hides_row=False)

    @property
    def label(self) -> str:
        """How the record names the style."""
        if self.empty:
            return EMPTY
        words = [str(self.style)]
        if self.hides_row:
            words.append("rows hidden whole")
        if self.overrides:
            words.append("overridden defaults")
        return ", ".join(words + [f"{name} = {size}" for name, size in self.sizes])


@dataclass(frozen=True, slots=True)
class Draw:
    """Feeds, and the size every dynamic dim has in them."""

    feeds: dict[str, Value]
    dims: dict[str, int]


class Inputs:
    """The inputs of one model and how to generate them."""

    def __init__(self, model: ir.Model) -> None:
        initializers = model.graph.initializers
        self._model = model
        self._required = [v for v in model.graph.inputs if v.name not in initializers]
        listed = [v for v in model.graph.inputs if v.name in initializers]
        self._overridable = listed if model.ir_version >= _FIRST_OVERRIDABLE_IR else []
        self._uses = {v.name or "": find_use(model, v) for v in self._required}
        self._dims = DynamicDims(self._required)
        self._ways = [(rule, tame) for rule in self._dims.rules() for tame in (False, True)]
        self._state = find_state(model, self._required)
        self._bounds: dict[str, Bounds] = {}
        if self._dims.names:
            self._read_sizes(model)

    def _read_sizes(self, model: ir.Model) -> None:
        """What the graph requires of the dynamic dims, and what it holds them against."""
        facts = Facts(model)
        for value in self._required:
            declared = self._dims.declared(value.name or "")
            if declared is not None and isinstance(value.type, ir.TensorType):
                facts.learn(value, value.dtype, tuple(symbolic(dim) for dim in declared))
        self._dims.meet(Requirements.of(facts, self._dims.names))
        self._bounds = find_bounds(facts, self._dims.names)

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
        """How many ways there are to generate one plan, the first the most telling."""
        return len(self._ways)

    @property
    def has_state(self) -> bool:
        """Whether some inputs are what an earlier run of the model answered."""
        return bool(self._state)

    def use(self, name: str) -> Use:
        """What an input is for."""
        return self._uses[name]

    # Plans

    def plans(self, seeds: Sequence[int]) -> list[Plan]:
        """The default trials, the most telling first: the usual styles, then what only some models have."""

        def seed(place: int) -> int:
            return seeds[place % len(seeds)]

        if not self._required:
            return [Plan(seed(0), 0, Style.NORMAL)]
        plans = [
            Plan(seed(0), 0, Style.NORMAL),
            Plan(seed(1), 1, Style.LARGE),
            Plan(seed(2), 2, Style.WIDE),
            Plan(seed(3), 3, Style.POSITIVE),
        ]
        if self.masks:
            plans.append(Plan(seed(0), 3, Style.NORMAL, hides_row=True))
        plans += self._compared_plans(seed(1))
        plans += [Plan(seed(0), 0, Style.NORMAL, sizes=sizes) for sizes in self._edges()]
        if not self._dims.names and self._has_floats and self.cost(plans[0]) <= _HEAVY:
            plans.append(Plan(seed(2), 0, Style.NORMAL))  # often a batch of one, where a resting unit is never awake
            plans.append(Plan(seed(3), 0, Style.LARGE))
        if any(use.normalized for use in self._uses.values()):
            plans.append(Plan(seed(2), 3, Style.TINY))
        if self._takes_big:
            plans.append(Plan(seed(3), 1, Style.BIG))
        if self._overridable:
            plans.append(replace(plans[0], overrides=True))
        longest = self._longest()
        return [*plans, Plan(seed(1), 1, Style.NORMAL, sizes=longest)] if longest else plans

    def exact_plans(self, seeds: Sequence[int]) -> list[Plan]:
        """Trials only bit-exact rewrites must pass: infinities and NaN go other ways when roundings do."""
        return [Plan(seeds[0], 0, Style.SPECIAL)] if self._has_floats else []

    def cost(self, plan: Plan) -> int:
        """The elements of all inputs of a trial, as a measure of the time that it takes."""
        sizes = self._sizes(plan, 0)
        return sum(math.prod(self._dims.shape(name, sizes)) for name in self.required)

    @property
    def _has_floats(self) -> bool:
        return any(v.dtype is not None and v.dtype.is_floating_point() for v in self._required)

    @property
    def masked(self) -> bool:
        """Whether some input is a mask."""
        return bool(self.masks)

    @property
    def masks(self) -> list[str]:
        """The names of the inputs that are masks."""
        return [name for name, use in self._uses.items() if use.role in (Role.MASK, Role.ADDED_MASK)]

    @property
    def _takes_big(self) -> bool:
        """Half floats overflow in the first product of two such numbers, one way in the source and another after."""
        data = [v for v in self._required if self._uses[v.name or ""].role is Role.DATA and not self._is_state(v)]
        return any(v.dtype in _BIG_TYPES and not self._uses[v.name or ""].slot for v in data)

    def _is_state(self, value: ir.Value) -> bool:
        return any(state.name == value.name for state in self._state)

    def _compared_plans(self, seed: int) -> Iterator[Plan]:
        """Values on both sides of the numbers that the graph compares inputs with."""
        compared = {v: self._uses[v.name or ""].thresholds for v in self._required}
        if any(abs(one.number) > 1.5 and not one.whole for found in compared.values() for one in found):
            yield Plan(seed, 0, Style.COMPARED)
        counts = [
            len(regions(found, whole_numbers=not _is_real(value)))
            for value, found in compared.items()
            if any(one.whole for one in found) or (found and self._is_one_number(value))
        ]
        for region in range(min(max(counts, default=0), _MOST_REGIONS)):
            yield Plan(seed, 0, Style.COMPARED, region=region)

    def _is_one_number(self, value: ir.Value) -> bool:
        declared = self._dims.declared(value.name or "")
        return declared is not None and all(dim == 1 for dim in declared)

    def _edges(self) -> Iterator[tuple[tuple[str, int], ...]]:
        """Each dim at 0 alone, all of them at 0, all of them at 1."""
        names = self._dims.names
        yield from (((name, 0),) for name in names[:_MOST_EMPTY])
        if len(names) > 1:
            yield tuple((name, 0) for name in names)
        if names:
            yield tuple((name, 1) for name in names)
        exact = [((name, size),) for name in names for size in self._bounds.get(name, Bounds()).exact]
        yield from [pins for pins in exact if self._affordable(pins)][:_MOST_EXACT]

    def _affordable(self, pins: tuple[tuple[str, int], ...]) -> bool:
        return self.cost(Plan(0, 0, Style.NORMAL, sizes=pins)) <= _MOST_ELEMENTS

    def _longest(self) -> tuple[tuple[str, int], ...]:
        """Lengths beyond the numbers that the graph holds them against, as far as that can be afforded."""
        weights = sum(
            value.const_value.size
            for value in self._model.graph.initializers.values()
            if value.const_value is not None and value.const_value.dtype.is_floating_point() and not _is_table(value)
        )
        most = min(_MOST_ELEMENTS, int(_MOST_WORK / max(weights, 1)))
        pins: dict[str, int] = {}
        for name, bounds in self._bounds.items():  # a length short of the next number tells no more than a usual one
            telling = [size for size in bounds.telling if _LONGEST_USUAL < size <= most]
            if telling:
                pins[name] = telling[-1]
        if not pins:
            return ()
        pins |= {name: 1 for name in self._dims.batch if name not in pins}
        while not self._affordable(tuple(pins.items())):
            pins = {name: max(size // 2, 1) for name, size in pins.items()}
        return tuple(pins.items())

    def coverage(self, draws: Sequence[Draw]) -> list[str]:
        """What the trials with these feeds did not cover, a line for each thing."""
        sizes = {name: {draw.dims[name] for draw in draws if name in draw.dims} for name in self.dynamic}
        notes = size_notes(sizes, self._bounds)
        for name, use in self._uses.items():
            arrays = [value for draw in draws if isinstance(value := draw.feeds.get(name), np.ndarray)]
            notes += value_notes(name, use, arrays)
        if has_norms(self._model) and not any(use.normalized for use in self._uses.values()):
            notes.append("no rows of small variance reached the norms: their epsilon was not tested")
        return notes

    # Values

    def draw(self, plan: Plan, way: int = 0, run: Run | None = None) -> Draw:
        """The feeds of a plan; another `way` sizes the dims by another rule or keeps integers small.

        Where the model has state and `run` runs it, the state is what the model answers to a step before this one.
        """
        sizes = self._sizes(plan, way)
        before = self._step_before(plan, way, sizes, run) if run is not None and self._state else None
        if before is not None:
            sizes = self._sizes(replace(plan, sizes=(*plan.sizes, *before.lengths)), way)
        feeds = self._fill(plan, way, sizes, sum({length for _, length in before.lengths}) if before else 0)
        for name, value in (before.values if before is not None else {}).items():
            if _shape(value) == _shape(feeds[name]):
                feeds[name] = value
        if plan.overrides:
            feeds.update(self._overridden(np.random.default_rng(plan.seed)))
        return Draw(feeds, sizes)

    def given(self, feeds: Mapping[str, Value]) -> Draw:
        """Inputs that are the caller's."""
        return Draw(dict(feeds), self._dims.sizes_in({name: _shape(value) for name, value in feeds.items()}))

    def contradicts(self, draw: Draw, outputs: Sequence[Value]) -> bool:
        """Whether outputs have other sizes than the model declares for those of the inputs.

        A Reshape to computed sizes copies a dim where such a size is 0, so that many a model answers empty inputs with
        shapes that are not its own.
        """
        for value, output in zip(self._model.graph.outputs, outputs, strict=False):
            for dim, size in zip(dims(value) or (), _shape(output), strict=False):
                known = draw.dims.get(dim) if isinstance(dim, str) else dim
                if known is not None and 0 <= known != size:
                    return True
        return False

    def _sizes(self, plan: Plan, way: int) -> dict[str, int]:
        return self._ways[way][0](plan.round, dict(plan.sizes))

    def _fill(self, plan: Plan, way: int, sizes: Sizes, offset: int = 0) -> dict[str, Value]:
        rng = np.random.default_rng(plan.seed)
        feeds: dict[str, Value] = {}
        for value in self._required:
            name = value.name or ""
            shape = self._dims.shape(name, sizes, way // 2)
            tame = self._ways[way][1]
            brush = Brush(rng, plan.style, self._uses[name], sizes, tame, plan.hides_row, plan.region, offset)
            feeds[name] = make(value.type, shape, brush)
        return feeds

    def _step_before(self, plan: Plan, way: int, sizes: Sizes, run: Run) -> _Before | None:
        """What the model answers, from no state or a state of zeros, to a step of another length."""
        pinned = dict(plan.sizes)
        growing = {name for state in self._state if (name := self._growing(state)) is not None}
        if any(pinned.get(name) is not None for name in growing):
            return None
        batch = {name: size for name, size in sizes.items() if name in self._dims.batch}
        for length in (0, 1) if growing else (0,):
            pins = pinned | batch | dict.fromkeys(growing, length)
            first = replace(plan, round=plan.round + 2 if growing else plan.round, sizes=tuple(pins.items()))
            feeds = self._fill(first, way, self._sizes(first, way))
            for state in self._state:
                feeds[state.name] = np.zeros_like(np.asarray(feeds[state.name]))
            try:
                answers = run(feeds)
            except RuntimeFailure:
                continue
            kinds = {state.name: np.asarray(feeds[state.name]).dtype for state in self._state}
            values: dict[str, Value] = {
                each.name: np.asarray(answers[each.output]).astype(kinds[each.name]) for each in self._state
            }
            lengths = {
                name: _shape(values[state.name])[state.axis]
                for state in self._state
                if (name := self._growing(state)) is not None and state.axis is not None
            }
            if all(lengths.values()):
                return _Before(values, tuple(lengths.items()))
        return None

    def _growing(self, state: State) -> str | None:
        """The dim that says how long the state is."""
        declared = self._dims.declared(state.name)
        dim = declared[state.axis] if declared is not None and state.axis is not None else None
        return dim if isinstance(dim, str) and dim in self._dims.others else None

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
class _Before:
    """State that the model answered, and the lengths of the dims that grow with it."""

    values: dict[str, Value]
    lengths: tuple[tuple[str, int], ...]


def _shape(value: Value) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else ()


def _is_real(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _is_table(value: ir.Value) -> bool:
    """Whether rows of it are only looked up."""
    return all(node.op_type == "Gather" for node, _ in value.uses())
