"""Generate the inputs of a model by type and role, from explicit seeds: for a comparison, or a run at chosen sizes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import replace

from sardonyx.errors import RuntimeFailure, UsageError
from sardonyx.inputs.requirements import (
    Bounds,
    Requirements,
    find_bounds,
    find_windows,
    fitting_length,
    window_notes,
)
from sardonyx.inputs.roles import Role, Use, find_use, has_norms, with_thresholds
from sardonyx.inputs.sizes import DynamicDims, Footprint, Sizes
from sardonyx.inputs.state import find_state
from sardonyx.inputs.values import (
    Style,
    ValueSpec,
    fresh_rows,
    make_value,
    reduced_note,
    regions,
    size_notes,
    table_notes,
    value_notes,
)
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import declared_shape
from sardonyx.records.input_specs import read_arrays
from sardonyx.runtime import Engine, Feeds, Value

_FIRST_OVERRIDABLE_IR = 4  # earlier versions required every initializer to be listed as an input
_MOST_OVERRIDDEN_BYTES = 1 << 26  # of a default that is fed with other values
_MAX_EMPTY_DIMS = 4  # dimensions that are empty in a trial of their own
_MAX_REGIONS = 6  # between thresholds, that get a trial of their own
_MAX_EXACT_SIZES = 3  # sizes tried because the graph compares a dimension with them for equality
_HEAVY_TRIAL_ELEMENTS = 100_000  # input elements of a trial, above which fewer trials are run
_MOST_LONG_ELEMENTS = 1_000_000  # input elements of a trial of the longest sizes
_MAX_LONG_WORK = 5e9  # approximate number of operations with weights in a long trial
_MAX_USUAL_SIZE = 16  # the largest size in the usual rounds

_BIG_TYPES = (
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.BFLOAT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
)

ExampleInputs: TypeAlias = "str | Path | Mapping[str, Value] | Sequence[Mapping[str, Value]] | None"
Opened: TypeAlias = Callable[[], AbstractContextManager[Engine]]
Run: TypeAlias = Callable[[Mapping[str, Value]], Sequence[Value]]
BATCH, LENGTH = 1, 128  # default sizes of dynamic dimensions: of the first one of an input, and of all others
EMPTY = "empty"  # the style of a trial in which some dimension is 0, as recorded


def read_examples(inputs: ExampleInputs) -> list[Mapping[str, Value]]:
    """Return the user's inputs, which may be in an .npz file."""
    if inputs is None:
        return []
    if isinstance(inputs, (str, Path)):
        return [dict(read_arrays(Path(inputs)))]
    return [inputs] if isinstance(inputs, Mapping) else list(inputs)


class TrialPlan(Struct, frozen=True):
    """One trial before its sizes are chosen."""

    seed: int
    round: int  # selects the sizes
    style: Style
    hides_row: bool = False  # masks hide every position of some rows
    overrides: bool = False  # feed the initializers that are also inputs
    sizes: tuple[tuple[str, int], ...] = ()  # pinned sizes of the dimensions that this trial is about
    region: int | None = None  # COMPARED: all elements lie in this one of the regions between the thresholds
    looked_up: tuple[tuple[str, int], ...] = ()  # per index input, how many rows the trials before looked up
    one_step: bool = False  # one new position after a state that has grown, as when a decoder generates

    @property
    def empty(self) -> bool:
        """Whether some dimension is 0."""
        return any(size == 0 for _, size in self.sizes)

    @property
    def optional(self) -> bool:
        """Whether the model may reject the trial, because its sizes or values are at the edge of what it accepts."""
        edge = bool(self.sizes) or self.one_step or self.hides_row
        return edge or self.style in (Style.TINY, Style.BIG, Style.COMPARED)

    @property
    def label(self) -> str:
        """The style as recorded."""
        if self.empty:
            return EMPTY
        words = [str(self.style)]
        if self.hides_row:
            words.append("fully masked rows")
        if self.overrides:
            words.append("overridden defaults")
        if self.one_step:
            words.append("one new position")
        return ", ".join(words + [f"{name} = {size}" for name, size in self.sizes])


class TrialInputs(Struct, frozen=True):
    """The feeds of one trial, and the size of every dynamic dimension in them."""

    feeds: dict[str, Value]
    dims: dict[str, int]


class Inputs:
    """Generates the inputs of one model."""

    def __init__(self, model: ir.Model) -> None:
        initializers = model.graph.initializers
        self._model = model
        self._required = [v for v in model.graph.inputs if v.name not in initializers]
        self.required = [v.name or "" for v in self._required]
        listed = [v for v in model.graph.inputs if v.name in initializers]
        self._overridable = listed if model.ir_version >= _FIRST_OVERRIDABLE_IR else []
        self._uses = {v.name or "": find_use(model, v) for v in self._required}
        self._dims = DynamicDims(self._required)
        plain = [DynamicDims(self._required, formulas=False)] if self._dims.formulas else []  # if no formula holds
        self._ways = [
            (rule, small) for dims in (self._dims, *plain) for rule in dims.rules() for small in (False, True)
        ]
        self.ways = len(self._ways)  # to generate one plan; the first is the most informative
        self.dynamic = self._dims.names
        self.masks = [name for name, use in self._uses.items() if use.role in (Role.MASK, Role.ADDED_MASK)]
        self._state = find_state(model, self._required)
        self.has_state = bool(self._state)  # some inputs are outputs of an earlier run of the model
        facts = Facts(model)
        for dims in (*plain, self._dims):
            facts = Facts(model)
            for value in self._required:
                shape = dims.symbolic(value.name or "")
                if shape is not None and isinstance(value.type, ir.TensorType):
                    facts.learn(value, value.dtype, shape)
            dims.meet(Requirements.of(facts, dims.names), Footprint.of(facts, self._required, dims.names))
        self._windows = find_windows(facts, self.dynamic) if self.dynamic else []
        self._bounds = {
            name: replace(bounds, window=fitting_length(self._windows, self.dynamic, name, _MAX_USUAL_SIZE))
            for name, bounds in (find_bounds(facts, self.dynamic) if self.dynamic else {}).items()
        }

    @functools.cached_property
    def new_positions(self) -> list[str]:
        """The dimensions of token ids that follow a growing state: 1 when a decoder generates."""
        growing = set(self._lengths.values())
        ids = [name for name, use in self._uses.items() if use.role is Role.INDEX and growing]
        dims = {dim for name in ids for dim in self._dims.declared(name) or ()} - growing
        return [name for name in self._dims.others if name in dims]

    @functools.cached_property
    def _lengths(self) -> dict[str, str]:
        """The dimension that is the length of a state, by its name; those whose length is not dynamic have none."""
        growing = [(state.name, self._dims.declared(state.name), state.axis) for state in self._state]
        dims = {name: shape[axis] for name, shape, axis in growing if shape is not None and axis is not None}
        return {name: dim for name, dim in dims.items() if isinstance(dim, str) and dim in self._dims.others}

    @property
    def continued(self) -> set[int]:
        """The places of the outputs that are declared to be inputs of the next run."""
        return {state.output for state in self._state if state.declared is not None}

    @functools.cached_property
    def _compared(self) -> dict[str, Use]:
        """How the inputs are used, with the numbers that they are compared with."""
        return {v.name or "": with_thresholds(self._model, v, self._uses[v.name or ""]) for v in self._required}

    def use(self, name: str) -> Use:
        """Return how an input is used."""
        return self._compared[name]

    # Plans

    def plans(self, seeds: Sequence[int], *, values: bool = True) -> list[TrialPlan]:
        """Return the default trials: the usual sizes and styles first, then those that only some models need.

        Without `values`, these are one trial of each kind that tells kernels apart.
        """

        def seed(place: int) -> int:
            return seeds[place % len(seeds)]

        if not self._required:
            return [TrialPlan(seed(0), 0, Style.NORMAL)]
        plans = [
            TrialPlan(seed(0), 0, Style.NORMAL),
            *([TrialPlan(seed(1), 0, Style.NORMAL, one_step=True)] if self.new_positions else []),
            TrialPlan(seed(1), 1, Style.LARGE),
            TrialPlan(seed(2), 2, Style.WIDE),
            TrialPlan(seed(3), 3, Style.POSITIVE),
        ]
        if self.masks:
            plans.append(TrialPlan(seed(0), 3, Style.NORMAL, hides_row=True))
        plans += self._compared_plans(seed(1)) if values else ()
        plans += [TrialPlan(seed(0), 0, Style.NORMAL, sizes=sizes) for sizes in self._edges()]
        broken = self._dims.broken_formulas(self._sizes(plans[0], 0))
        plans += [TrialPlan(seed(0), 0, Style.NORMAL, sizes=(pin,)) for pin in broken]
        if not self._dims.names and self._has_floats and self.cost(plans[0]) <= _HEAVY_TRIAL_ELEMENTS:
            plans.append(
                TrialPlan(seed(2), 0, Style.NORMAL)
            )  # a batch of one leaves many units inactive in a single trial
            plans.append(TrialPlan(seed(3), 0, Style.LARGE))
        if any(use.normalized for use in self._uses.values()):
            plans.append(TrialPlan(seed(2), 3, Style.TINY))
        if self._takes_big:
            plans.append(TrialPlan(seed(3), 2, Style.BIG))
        if self._overridable:
            plans.append(replace(plans[0], overrides=True))
        longest = self._longest()
        plans += [TrialPlan(seed(1), 1, Style.NORMAL, sizes=longest)] if longest else []
        if not values:
            kinds: dict[str, TrialPlan] = {}
            for plan in plans:
                if plan.style in (Style.NORMAL, Style.WIDE):
                    kinds.setdefault(plan.label, plan)
            plans = list(kinds.values())
        return list(self._looking_up(plans, int(np.random.default_rng(seed(0)).integers(1 << 31))))

    def _looking_up(self, plans: Sequence[TrialPlan], first: int) -> Iterator[TrialPlan]:
        """Yield the plans such that each looks up other rows of the tables than those before it."""
        looked_up = dict.fromkeys((name for name, use in self._uses.items() if use.rows is not None), first)
        for plan in plans:
            yield replace(plan, looked_up=tuple(looked_up.items()))
            sizes = self._sizes(plan, 0)
            for name in looked_up:
                looked_up[name] += fresh_rows(self._dims.shape(name, sizes))

    def exact_plans(self, seeds: Sequence[int]) -> list[TrialPlan]:
        """Return the trials for bit-exact rewrites only: other roundings may turn an infinity into NaN."""
        return [TrialPlan(seeds[0], 0, Style.SPECIAL)] if self._has_floats else []

    def cost(self, plan: TrialPlan, way: int = 0) -> int:
        """Return the number of elements of all inputs of a trial, as a measure of its time."""
        return sum(map(math.prod, self.shapes(plan, way)))

    @property
    def _has_floats(self) -> bool:
        return any(map(_is_real, self._required))

    @property
    def _takes_big(self) -> bool:
        """Whether large numbers can be fed; in float16 their first product overflows, depending on the rounding."""
        states = {state.name for state in self._state}
        data = [v for v in self._required if self._uses[v.name or ""].role is Role.DATA and v.name not in states]
        return any(v.dtype in _BIG_TYPES and not self._uses[v.name or ""].slot for v in data)

    def _compared_plans(self, seed: int) -> Iterator[TrialPlan]:
        """Yield trials with values on both sides of the numbers that the graph compares inputs with."""
        compared = {v: self._compared[v.name or ""].thresholds for v in self._required}
        if any(abs(t.number) > 1.5 and not t.whole for thresholds in compared.values() for t in thresholds):
            yield TrialPlan(seed, 0, Style.COMPARED)
        counts = [
            len(regions(thresholds, whole_numbers=not _is_real(value)))
            for value, thresholds in compared.items()
            if any(t.whole for t in thresholds) or (thresholds and self._is_one_number(value))
        ]
        for region in range(min(max(counts, default=0), _MAX_REGIONS)):
            yield TrialPlan(seed, 0, Style.COMPARED, region=region)

    def _is_one_number(self, value: ir.Value) -> bool:
        declared = self._dims.declared(value.name or "")
        return declared is not None and all(dim == 1 for dim in declared)

    def _edges(self) -> Iterator[tuple[tuple[str, int], ...]]:
        """Yield each dimension alone at 0, all at 0, all at 1, and each at the sizes the graph tests for equality."""
        names = self._dims.names
        yield from (((name, 0),) for name in names[:_MAX_EMPTY_DIMS])
        if len(names) > 1:
            yield tuple((name, 0) for name in names)
        if names:
            yield tuple((name, 1) for name in names)
        exact = [((name, size),) for name in names for size in self._bounds.get(name, Bounds()).exact]
        yield from [pins for pins in exact if self._affordable(pins)][:_MAX_EXACT_SIZES]

    def _affordable(self, pins: tuple[tuple[str, int], ...]) -> bool:
        plan = TrialPlan(0, 0, Style.NORMAL, sizes=pins)
        return self.cost(plan) <= _MOST_LONG_ELEMENTS and self.fits(plan)

    def _longest(self) -> tuple[tuple[str, int], ...]:
        """Return lengths beyond the numbers that the graph compares them with, as far as the budget allows."""
        weights = sum(
            value.const_value.size
            for value in self._model.graph.initializers.values()
            if value.const_value is not None and value.const_value.dtype.is_floating_point() and not _is_table(value)
        )
        most = min(_MOST_LONG_ELEMENTS, int(_MAX_LONG_WORK / max(weights, 1)))
        pins: dict[str, int] = {}
        for name, bounds in self._bounds.items():  # a length below the next such number shows nothing new
            sizes = [size for size in bounds.test_lengths if _MAX_USUAL_SIZE < size <= most]
            if sizes:
                pins[name] = sizes[-1]
        if not pins:
            return ()
        pins |= {name: 1 for name in self._dims.batch if name not in pins}
        while not self._affordable(tuple(pins.items())):
            if max(pins.values()) == 1:
                return ()
            pins = {name: max(size // 2, 1) for name, size in pins.items()}
        return tuple(pins.items())

    def coverage(self, trials: Sequence[TrialInputs], *, values: bool = True) -> list[str]:
        """Return what these trials did not cover of sizes and, if they count, of values, one line each."""
        sizes = {name: {trial.dims[name] for trial in trials if name in trial.dims} for name in self.dynamic}
        reduced = self._dims.reduced
        notes = [reduced_note([trial.dims for trial in trials])] if reduced else []
        notes += size_notes(sizes, self._bounds, reduced=reduced)
        notes += window_notes(self._windows, [trial.dims for trial in trials])
        arrays = {
            name: [value for trial in trials if isinstance(value := trial.feeds.get(name), np.ndarray)]
            for name in self._uses
        }
        for name, use in self._compared.items() if values else ():
            notes += value_notes(name, use, arrays[name])
        if values and has_norms(self._model) and not any(use.normalized for use in self._uses.values()):
            notes.append("no rows of small variance reached the norms: their epsilon was not tested")
        return notes + table_notes(self._uses, arrays)

    # Values

    def generate(
        self, plan: TrialPlan, way: int = 0, run: Run | None = None, sizes: Sizes | None = None
    ) -> TrialInputs:
        """Return the inputs of a plan.

        Args:
            plan: The trial.
            way: Selects the rule that sizes the dimensions, and whether integers stay small.
            run: Runs the model. If it has state inputs, they are then the outputs of an earlier step instead of random.
            sizes: The sizes of all dynamic dimensions, in place of those that the rule chooses.
        """
        sizes = self._sizes(plan, way) if sizes is None else dict(sizes)
        before = self._step_before(plan, way, sizes, run) if run is not None and self.has_state else None
        values, lengths = before or ({}, {})
        if before is not None:
            sizes = self._sizes(replace(plan, sizes=(*plan.sizes, *lengths.items())), way)
        feeds = self._fill(plan, way, sizes, sum(set(lengths.values())))
        for state in self._state if before is None else ():
            if state.declared is not None:
                feeds[state.name] = state.first(np.asarray(feeds[state.name]))
        for name, value in values.items():
            if _shape(value) == _shape(feeds[name]):
                feeds[name] = value
        if plan.overrides:
            feeds.update(self._overridden(np.random.default_rng(plan.seed)))
        return TrialInputs(feeds, sizes)

    def sized(self, given: Sizes | None = None, opened: Opened | None = None) -> dict[str, int]:
        """Return the dynamic dimensions by name, with the given sizes, and sizes for the others.

        These are 1 and 128, or the next ones found if the graph shows that the model rejects them, such as a window of
        512 samples. If they exceed the limits on elements, or a model that can be `opened` and run rejects them, they
        are those of the first trial of a verification that it accepts. A dimension without a name is called by its
        position: "input_ids[1]". Formulas ("past + seq") are not listed.

        Raises:
            UsageError: A size is given for a dimension that no input has.
        """
        given = given or {}
        recurrent = {state.name for state in self._state if not state.is_appended}
        batches = {*self._dims.batch, *self._dims.batches_of(recurrent)}
        usual = {name: BATCH if name in batches else LENGTH for name in self.dynamic}
        for name in given:
            if name not in usual:
                hint = f"the dynamic dimensions are {', '.join(usual)}" if usual else "all its sizes are static"
                raise UsageError(f"no input has a dynamic dimension {name!r}", hint=hint)
        if usual.keys() == given.keys():
            return dict(given)
        near = self._dims.near(usual | dict(given), given)
        rules = dict.fromkeys(rule for rule, _ in self._ways)
        with contextlib.suppress(RuntimeFailure), opened() if opened else contextlib.nullcontext() as engine:
            for sizes in itertools.chain([near], (rule(0, given) | dict(given) for rule in rules)):
                if self._dims.footprint.excess(sizes) is not None:
                    continue
                with contextlib.suppress(RuntimeFailure):
                    if engine is not None:
                        engine.run(self.generate(TrialPlan(0, 0, Style.NORMAL), sizes=sizes).feeds)
                    return sizes
        return near

    def from_user(self, feeds: Mapping[str, Value]) -> TrialInputs:
        """Return the user's feeds with the sizes of their dynamic dimensions."""
        return TrialInputs(dict(feeds), self._dims.sizes_in({name: _shape(value) for name, value in feeds.items()}))

    def contradicts(self, trial: TrialInputs, outputs: Sequence[Value]) -> bool:
        """Return whether the outputs have other sizes than the model declares for the sizes of the inputs.

        A Reshape copies a dimension whose computed size is 0, so that many models return wrong shapes for empty inputs.
        """
        for value, output in zip(self._model.graph.outputs, outputs, strict=False):
            for dim, size in zip(declared_shape(value) or (), _shape(output), strict=False):
                declared = dim if isinstance(dim, int) else trial.dims.get(dim or "") if dim in self.dynamic else None
                if declared is not None and 0 <= declared != size:
                    return True
        return False

    def fits(self, plan: TrialPlan, way: int = 0) -> bool:
        """Return whether a trial is within the limits on elements."""
        return self._dims.footprint.fits(self._sizes(plan, way))

    def excess(self, plan: TrialPlan, way: int = 0) -> str | None:
        """Return what is too large in a trial that would need gigabytes or hours, or None."""
        return self._dims.footprint.excess(self._sizes(plan, way))

    def work(self, plan: TrialPlan, way: int = 0) -> int:
        """Return the number of operations in a trial."""
        return self.work_at(self._sizes(plan, way))

    def work_at(self, sizes: Mapping[str, int]) -> int:
        """Return the number of operations at these sizes of the dynamic dimensions; 0 if one is missing."""
        return self._dims.footprint.work(sizes) if sizes.keys() >= set(self.dynamic) else 0

    def shapes(self, plan: TrialPlan, way: int = 0) -> list[tuple[int, ...]]:
        """Return the shapes of all inputs of a trial, in order."""
        sizes = self._sizes(plan, way)
        return [self._dims.shape(name, sizes, way // 2) for name in self.required]

    def _sizes(self, plan: TrialPlan, way: int) -> dict[str, int]:
        pins = dict.fromkeys(self.new_positions, 1) if plan.one_step else {}
        return self._ways[way][0](plan.round, pins | dict(plan.sizes))

    def _fill(self, plan: TrialPlan, way: int, sizes: Sizes, offset: int = 0) -> dict[str, Value]:
        rng = np.random.default_rng(plan.seed)
        feeds: dict[str, Value] = {}
        small, looked_up = self._ways[way][1], dict(plan.looked_up)
        uses = self._compared if plan.style is Style.COMPARED else self._uses
        for value in self._required:
            name = value.name or ""
            first = looked_up.get(name, plan.seed)
            spec = ValueSpec(rng, plan.style, uses[name], sizes, small, plan.hides_row, plan.region, offset, first)
            feeds[name] = make_value(value.type, self._dims.shape(name, sizes, way // 2), spec)
        return feeds

    def _step_before(
        self, plan: TrialPlan, way: int, sizes: Sizes, run: Run
    ) -> tuple[dict[str, Value], dict[str, int]] | None:
        """Run one step from an empty state or a state of zeros.

        Returns:
            The state after it, and the sizes of the dimensions that grow with it; None if the model fails.
        """
        pinned, growing = dict(plan.sizes), set(self._lengths.values())
        if growing & pinned.keys():
            return None
        batch = {name: size for name, size in sizes.items() if name in self._dims.batch}
        for length in (0, 1) if growing else (0,):
            pins = pinned | batch | dict.fromkeys(growing, length)
            round_ = plan.round + 2 if growing else plan.round
            first = replace(plan, round=round_, sizes=tuple(pins.items()), one_step=False)
            feeds = self._fill(first, way, self._sizes(first, way))
            for state in self._state:
                feeds[state.name] = state.first(np.asarray(feeds[state.name]))
            try:
                outputs = run(feeds)
            except RuntimeFailure:
                continue
            values: dict[str, Value] = {
                state.name: np.asarray(outputs[state.output]).astype(np.asarray(feeds[state.name]).dtype)
                for state in self._state
            }
            lengths = {
                self._lengths[state.name]: _shape(values[state.name])[state.axis or 0]
                for state in self._state
                if state.name in self._lengths
            }
            if all(lengths.values()):
                return values, lengths
        return None

    def _overridden(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return other values for overridable inputs: floats changed by about a tenth, all others unchanged."""
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


def dynamic_dims(model: ir.Model, given: Sizes | None = None, opened: Opened | None = None) -> dict[str, int]:
    """Return `Inputs.sized` of a model."""
    return Inputs(model).sized(given, opened)


def at_size(model: ir.Model, sizes: Sizes | None = None, *, seed: int = 0) -> Feeds:
    """Return feeds for a model whose dynamic dimensions have these sizes, as for a verification.

    Raises:
        UsageError: A size is given for a dimension that no input has.
    """
    inputs = Inputs(model)
    return inputs.generate(TrialPlan(seed, 0, Style.NORMAL), sizes=inputs.sized(sizes)).feeds


def sizes_of(model: ir.Model, feeds: Feeds) -> dict[str, int]:
    """Return the sizes that the dynamic dimensions have in these feeds."""
    required = [value for value in model.graph.inputs if value.name in feeds and not value.is_initializer()]
    return DynamicDims(required).sizes_in({value.name or "": _shape(feeds[value.name or ""]) for value in required})


def _shape(value: Value) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else ()


def _is_real(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _is_table(value: ir.Value) -> bool:
    """Return whether the only use of a value is to look up rows."""
    return all(node.op_type == "Gather" for node, _ in value.uses())
