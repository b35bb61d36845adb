"""What an export fixes: dimensions that cannot stay dynamic, and branches that other inputs take.

Torch's tracer runs the module once and writes only tensor operations. A tensor that the module's code converts to a
number (`if x.max() > 1`, `int(mask.sum())`, `x.tolist()`) is a constant for it, and a branch on that number is decided
for all inputs. Torch only warns. The same run under a function mode shows where that happens, which numbers were
compared, and whether inputs decide it. Sizes are tensors while the tracer runs, so branches on sizes are seen too.
"""

from __future__ import annotations

import itertools
import linecache
import math
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor
from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sardonyx.errors import SardonyxError, VerificationFailed
from sardonyx.frontend.inputs.dynamic import dim_terms, places_of, refusal, resized
from sardonyx.frontend.inputs.examples import DynamicDims
from sardonyx.frontend.module_state import replaced, unchanged, uncompiled
from sardonyx.frontend.running import quietly
from sardonyx.frontend.tracing import prepare
from sardonyx.frontend.tracing.adapter import Adapter, Feeds, ModuleCall
from sardonyx.frontend.tracing.graph_names import Axes, FixedDim
from sardonyx.frontend.tracing.traced import NotExportable, is_library, traceable_experts, without_checks

Result = TypeVar("Result")


def with_fewer_dims(
    call: ModuleCall, dims: DynamicDims, attempt: Callable[[DynamicDims], Result]
) -> tuple[Result, DynamicDims]:
    """Return the result of an attempt with as many dynamic dimensions as possible, and those dimensions.

    Raises:
        SardonyxError: If the attempt fails even without the dimensions that `auto` found.
    """
    while True:
        try:
            return attempt(dims), dims
        except FixedDim as error:
            fixed = dim_terms(error.dim)
            if not _detected(dims) >= set(fixed):
                raise
            dims = _without(call, dims, fixed, error.why)
        except NotExportable as error:
            return _with_one_fewer(call, dims, attempt, error, f"torch cannot export it dynamic: {error.why}")
        except VerificationFailed as error:
            return _with_one_fewer(call, dims, attempt, error, "exported dynamic, the graph fails at other sizes")


def _with_one_fewer(
    call: ModuleCall, dims: DynamicDims, attempt: Callable[[DynamicDims], Result], error: SardonyxError, why: str
) -> tuple[Result, DynamicDims]:
    """Drop the first dimension without which the attempt succeeds, otherwise all; raise `error` if that fails too."""
    candidates = [dim for dim in _sizes(call, dims.axes) if dim in _detected(dims)]
    if not candidates:
        raise error
    static = _without(call, dims, candidates, why)
    try:
        result = attempt(static)
    except (NotExportable, VerificationFailed):
        raise error from None
    for dim in candidates if len(candidates) > 1 else ():
        fewer = _without(call, dims, [dim], why)
        try:
            return attempt(fewer), fewer
        except (FixedDim, NotExportable, VerificationFailed):
            continue
    return result, static


def _detected(dims: DynamicDims) -> set[str]:
    """Return the dimensions that only `auto` found."""
    return _names(dims.axes) - _names(dims.named)


def _names(axes: Axes) -> set[str]:
    return {term for _, dim in places_of(axes) for term in dim_terms(dim)}


def _sizes(call: ModuleCall, axes: Axes) -> dict[str, int]:
    leaves = call.feeds
    return {dim: leaves[name].shape[axis] for (name, axis), dim in places_of(axes) if dim_terms(dim) == [dim]}


def _without(call: ModuleCall, dims: DynamicDims, fixed: Collection[str], why: str) -> DynamicDims:
    """Make some dimensions static; in a sum their sizes are substituted."""
    sizes = {dim: size for dim, size in _sizes(call, dims.axes).items() if dim in fixed}
    axes: dict[str, dict[int, str]] = {name: {} for name in dims.axes}
    for (name, axis), dim in places_of(dims.axes):
        if not _names({name: {axis: dim}}) <= set(fixed):
            axes[name][axis] = " + ".join(str(sizes.get(term, term)) for term in dim_terms(dim))
    notes = [f"{dim} stays {size}: {why}" for dim, size in sizes.items()]
    return replace(dims, axes=axes, notes=(*dims.notes, *notes))


_CORE: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # the tracer has no public face
_TO_NUMBER = frozenset(("__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "is_nonzero"))
_TO_PYTHON = _TO_NUMBER | {"tolist", "numpy", "__array__", "__contains__", "equal", "allclose"}
_CONSTRUCTORS = frozenset(("tensor", "as_tensor", "new_tensor"))  # of constants
_COPIES = frozenset(("aten::detach", "aten::to", "aten::lift_fresh", "aten::clone"))
_COMPARISONS = frozenset(op for name in ("gt", "ge", "lt", "le", "eq", "ne") for op in (name, f"__{name}__"))
_SHAPE_ONLY = frozenset(("aten::size", "aten::dim", "aten::numel", "aten::len", "prim::dtype", "prim::device"))
_NEW = re.compile(r"aten::(\w+_like|new_\w+)")  # of the shape of their first operand
_MAX_NUMBERS = 6
_SCRIPTED_LINE = re.compile(r'File "([^"]+)", line (\d+)')


_MOST_TRIES = 40  # runs of the tracer
_OVERSHOOTS = (0.01, 0.05, 0.25, 1.0)  # of the way to where the compared numbers are equal, one step after the other
_MAX_DIM_SIZE = 2100  # of a dimension
_MOST_WORK = 1e11  # input elements times parameters
_FREE_GROWTH = 4  # input elements that are always tried, as a multiple of the example's
_MAX_TEXT = 40  # of a result


class Branch(Struct, frozen=True):
    """A Python value that the tracer fixed although inputs decide it."""

    place: Place
    result: str  # that the graph keeps
    trial: Feeds | None  # inputs with another result; None if none were found

    @property
    def other_side(self) -> str:
        """The condition under which the trial differs from the example."""
        if self.place.number is not None:
            return f"{self.place} is on the other side of {self.place.number:g} than while tracing"
        return f"{self.place} is not {self.result}, as it was while tracing"

    def __str__(self) -> str:
        tried = "no input was found that changes it: not" if self.trial is None else "inputs that change it were"
        return f"{self.place} is always {self.result} in the file; {tried} compared"


class _Line(Struct, frozen=True):
    """Inputs along one parameter: the size of a dimension, a factor or an offset of values."""

    start: float  # of the example
    probe: float
    at: Callable[[float], Feeds | None]
    whole: bool = False


def find_branches(call: ModuleCall, axes: Axes, first: Iterable[Feeds] = (), *, search: bool = True) -> list[Branch]:
    """Return the Python values that the tracer fixes and that inputs of these dynamic dimensions decide.

    Args:
        first: Inputs to try before any others.
        search: Search for inputs on the other side; otherwise only values that depend on more than sizes are found.
    """
    with traceable_experts(call.module), without_checks():
        found = _Search(call, axes)
        if search:
            found.run(first)
    refused = {id(feeds) for feeds in found.trials.values() if refusal(call.run, feeds) is not None}  # by its checks
    return [replace(each, trial=None) if id(each.trial) in refused else each for each in found.branches()]


class _Search:
    """A search from the example to the other sides of all branches."""

    def __init__(self, call: ModuleCall, axes: Axes) -> None:
        self._call, self._axes = call, axes
        self._example = call.feeds
        self._traced = _trace(call, list(self._example.values()))
        self._first = dict.fromkeys(self._traced.fixed, self._traced)  # the first run that reached a place
        self._pending = list(self._first)
        self._varying: set[Place] = set()  # places whose compared numbers depend on sizes
        self.trials: dict[Place, Feeds] = {}
        self._tries = 0

    def run(self, first: Iterable[Feeds]) -> None:
        """Try other sizes and, for branches that read values of inputs, other values."""
        for feeds in first:
            self._try(feeds)
        for line in self._sizes():
            self._follow(line, lambda place: not self._read(place))
        for feeds in self._fills():
            self._try(feeds)
        for line in (*self._values(), *self._sizes()):
            self._follow(line, lambda place: bool(self._read(place)))

    def branches(self) -> list[Branch]:
        """Return what was found, in the order of the run."""
        left = {place for place in self._pending if place.number is None}
        known = {place for place in left if place in self._varying or self._read(place)} | self.trials.keys()
        found = [place for place in self._first if place in known]
        branches: list[Branch] = []
        for place in found:
            texts = list(dict.fromkeys(map(str, self._first[place].results(place))))
            text = texts[0] if len(texts) == 1 else "several values"
            shown = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
            branches.append(Branch(place, shown, self.trials.get(place)))
        return branches

    def _read(self, place: Place) -> frozenset[int]:
        return frozenset[int]().union(*(each.inputs for each in self._first[place].fixed[place]))

    def _try(self, feeds: Feeds | None) -> Traced | None:
        """Trace the module on other inputs and keep them for the branches that they change; None if it refuses them."""
        if feeds is None or not self._pending or self._tries >= _MOST_TRIES:
            return None
        self._tries += 1
        traced = _trace(self._call, list(feeds.values()))
        for place in list(self._pending):
            before, now = self._first[place].decisions(place), traced.decisions(place)
            # two names of one size are always equally far apart
            if traced.error is None and any(abs(_gap(a) - _gap(b)) > 0 for a, b in zip(before, now, strict=False)):
                self._varying.add(place)
            changed = bool(now) and self._first[place].results(place)[: len(now)] != traced.results(place)
            if changed and traced.error is None:
                self.trials[place] = feeds
            if changed and (traced.error is None or traced.refuses_at(place)):  # a check raises on the other side
                self._pending.remove(place)
        if traced.error is not None:
            return None
        reached = [place for place in traced.fixed if place not in self._first]
        self._pending += reached
        self._first |= dict.fromkeys(reached, traced)
        return traced

    def _follow(self, line: _Line, chosen: Callable[[Place], bool]) -> None:
        """Try inputs along a line, beyond the places where the compared numbers of some branches are equal."""
        if not any(map(chosen, self._pending)) or (probed := self._try(line.at(line.probe))) is None:
            return
        points, done = [(line.start, self._traced), (line.probe, probed)], set[Place]()
        while place := next((each for each in self._pending if each not in done and chosen(each)), None):
            done.add(place)
            for overshoot in _OVERSHOOTS:
                reached = [point for point in points if place in point[1].fixed]
                for parameter in _beyond(_crossing(place, line.start, reached), line, overshoot):
                    traced = self._try(line.at(parameter)) if place in self._pending else None
                    if traced is not None:
                        points.append((parameter, traced))

    def _sizes(self) -> Iterator[_Line]:
        named = [(place, dim_terms(dim)) for place, dim in places_of(self._axes)]
        for dim in dict.fromkeys(term for _, terms in named for term in terms):
            places = [place for place, terms in named if dim in terms]
            alone = [place for place, terms in named if terms == [dim]]
            size = self._example[alone[0][0]].shape[alone[0][1]] if alone else 0
            if size == 0 or not self._pending:
                continue

            def at(other: float, places: list[tuple[str, int]] = places, size: int = size) -> Feeds | None:
                return resized(self._example, places, int(other) - size) if self._fits(other / size) else None

            yield _Line(size, size + 1, at, whole=True)

    def _fits(self, growth: float) -> bool:
        """Return whether inputs that are this many times as large take little enough work."""
        elements = sum(tensor.numel() for tensor in self._example.values())
        parameters = sum(parameter.numel() for parameter in self._call.module.parameters())
        longest = max((size for tensor in self._example.values() for size in tensor.shape), default=1)
        most = max(_FREE_GROWTH * elements, _MOST_WORK / max(parameters, 1))
        return (
            growth > 0 and growth * elements <= most and (growth <= _FREE_GROWTH or growth * longest <= _MAX_DIM_SIZE)
        )

    def _inputs_read(self) -> list[str]:
        """Return the inputs whose values decide the branches that are left."""
        return [self._call.inputs[index] for index in sorted({i for place in self._pending for i in self._read(place)})]

    def _fills(self) -> Iterator[Feeds]:
        """Yield the example with ones, or ones and a last zero in every row, in one input of integers or flags."""
        for name in self._inputs_read():
            if not self._example[name].is_floating_point():
                ones = torch.ones_like(self._example[name])
                padded = ones.clone()
                (padded if padded.dim() else padded.view(1))[..., -1:] = 0
                yield from ({**self._example, name: filled} for filled in (ones, padded))

    def _values(self) -> Iterator[_Line]:
        """Yield factors and offsets of the floats together, and offsets of every input of integers."""

        def changed(names: list[str], change: Callable[[Tensor], Tensor]) -> Feeds:
            values = self._example.items()
            return {name: change(value).to(value.dtype) if name in names else value for name, value in values}

        floats = [name for name in self._inputs_read() if self._example[name].is_floating_point()]
        if floats:
            yield _Line(1.0, 0.0, lambda factor: changed(floats, lambda value: value * factor))
            yield _Line(0.0, 1.0, lambda offset: changed(floats, lambda value: value + offset))
        for name in self._inputs_read():
            tensor = self._example[name]
            is_mask = bool(((tensor == 0) | (tensor == 1)).all())
            if not tensor.is_floating_point() and tensor.dtype is not torch.bool and not is_mask:

                def at(offset: float, name: str = name) -> Feeds | None:
                    fits = abs(offset) < torch.iinfo(torch.int32).max
                    return changed([name], lambda value: value + int(offset)) if fits else None

                yield _Line(0, 1, at, whole=True)
                yield _Line(0, -1, at, whole=True)


def _gap(value: Fixed) -> float:
    return value.compared[0] - value.compared[1] if value.compared is not None else math.nan


def _crossing(place: Place, start: float, points: Sequence[tuple[float, Traced]]) -> float | None:
    """Return the parameter nearest to the start at which the compared numbers would be equal, on a straight line."""
    *_, (a, before), (b, after) = (points[0], *points) if points else ((start, None), (start, None))
    if before is None or after is None:
        return None
    found: list[float] = []
    for one, other in zip(before.decisions(place), after.decisions(place), strict=False):
        if a == b or one.step != other.step:  # one more point shows where a comparison goes that was reached just now
            return b + 0.1 * (b - start) if b != start else None
        low, high = _gap(one), _gap(other)
        target = b - high * (b - a) / (high - low) if high != low else math.nan
        found += [target] if math.isfinite(target) else []
    return min(found, key=lambda target: abs(target - start), default=None)


def _beyond(target: float | None, line: _Line, overshoot: float) -> list[float]:
    if target is None:
        return []
    if line.whole:
        return [float(round(target) + step) for step in (0, 1, -1)]
    return [target + overshoot * ((target - line.start) or 1.0)]


# One run of the tracer


class Place(Struct, frozen=True):
    """A line of the model's code."""

    file: str
    line: int
    function: str
    number: float | None = None  # that a result is compared with: the function names it

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip().rstrip(":")
        return f"{Path(self.file).name}:{self.line}" + (f" ({code})" if code else "")


class Fixed(Struct, frozen=True):
    """A Python value made from a tensor: the result, the two numbers that were compared, and the inputs it reads."""

    step: int  # its position in the bytecode of the function
    result: object
    compared: tuple[float, float] | None
    inputs: frozenset[int]  # whose values, not only sizes, decide it


class Traced(Struct, frozen=True):
    """The values that one run of the tracer fixed, by place in the order of the run, and why it failed if it did."""

    fixed: Mapping[Place, tuple[Fixed, ...]]
    error: Exception | None = None

    def decisions(self, place: Place) -> tuple[Fixed, ...]:
        """Return the values at a place; of `a and b`, `a < b < c`, only the last that was evaluated."""
        values = self.fixed.get(place, ())
        return tuple(
            value
            for value, after in itertools.zip_longest(values, values[1:])
            if after is None
            or not (isinstance(value.result, bool) and isinstance(after.result, bool))
            or after.step <= value.step
        )

    def results(self, place: Place) -> list[object]:
        """Return the results at a place."""
        return [each.result for each in self.decisions(place)]

    def refuses_at(self, place: Place) -> bool:
        """Return whether the module's code at this place, or the function around it, raised the error."""
        frames = traceback.extract_tb(self.error.__traceback__ if self.error is not None else None)
        own = [frame for frame in frames if not is_library(frame.filename)]
        return bool(own) and (own[-1].filename, own[-1].name) == (place.file, place.function)


def _trace(call: ModuleCall, tensors: Sequence[Tensor]) -> Traced:
    """Run torch's tracer on these inputs and return the Python values that it fixes."""
    recorder, module = _Recorder(len(call.inputs)), call.module
    adapter, copies = Adapter(call.with_module(module)), tuple(tensor.clone() for tensor in tensors)
    exporting = replaced(GLOBALS, "in_onnx_export", True)  # the answer of `torch.onnx.is_in_onnx_export()`
    with unchanged(module), uncompiled(), torch.no_grad(), quietly(), exporting:
        try:
            with recorder:
                torch.jit._get_trace_graph(adapter, copies)  # pyright: ignore  # as the exporter does; no public name
        except Exception as error:  # a forward may raise anything
            return Traced(recorder.fixed(), error)
    return Traced(recorder.fixed())


class _Recorder(TorchFunctionMode):
    """Records conversions of tensors to Python values while the tracer runs."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self._inputs = inputs
        self._fixed: dict[Place, list[Fixed]] = {}
        self._compared: dict[int, tuple[Tensor, tuple[float, float]]] = {}  # by id of the result, which is kept
        self._reads: dict[int, frozenset[int]] = {}  # by value of the traced graph

    def fixed(self) -> dict[Place, tuple[Fixed, ...]]:
        return {place: tuple(values) for place, values in self._fixed.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").partition(".")[0]  # an overload is named `gt.Scalar`
        if not args or _CORE._get_tracing_state() is None:
            return result
        if name in _COMPARISONS and isinstance(result, Tensor) and result.numel() == 1:
            left, right = (_number(operand) for operand in args[:2])
            self._compared[id(result)] = result, (left, right)
        elif name in _TO_PYTHON and isinstance(args[0], Tensor):
            self._record(_plain(result), args[: 2 if name in ("equal", "allclose") else 1])
        elif (
            name in _CONSTRUCTORS
            and (sources := list(filter(torch.is_tensor, tree_leaves(args[-1]))))
            and _is_constant(result)
        ):
            self._record(_plain(result), sources)
        return result

    def _record(self, result: object, sources: Sequence[Tensor]) -> None:
        frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # inspect.stack() reads files
        while frame is not None and is_library(frame.f_code.co_filename) and not _is_script(frame):
            frame = frame.f_back  # to the innermost frame of the model's code, or of the interpreter of scripts
        place = _place(frame) if frame is not None else None
        if frame is None or place is None:
            return
        compared = self._compared[id(sources[0])][1] if id(sources[0]) in self._compared else None
        if compared is None and isinstance(result, (bool, int, float)):
            compared = _number(sources[0]), 0.0
        inputs = frozenset[int]().union(*map(self._inputs_read, sources))
        self._fixed.setdefault(place, []).append(Fixed(frame.f_lasti, result, compared, inputs))
        if inputs and isinstance(result, (int, float)) and not isinstance(result, bool):
            for number in _named_numbers(frame):  # code after the conversion may compare with any of them
                sign = (result > number) - (result < number)
                there = replace(place, number=number)
                self._fixed.setdefault(there, []).append(Fixed(frame.f_lasti, sign, (result, number), inputs))

    def _inputs_read(self, tensor: Tensor) -> frozenset[int]:
        """Return the inputs whose values a tensor is computed from, in the graph so far."""
        first = _CORE._get_value_trace(tensor)
        waiting = [first]
        while waiting:
            value = waiting[-1]
            key, node = value.unique(), value.node()
            if key in self._reads:
                waiting.pop()
            elif node.kind() == "prim::Param":
                index = value.offset()
                self._reads[key] = frozenset([index] if index < self._inputs else [])  # weights follow the inputs
            else:
                operands = [] if node.kind() in _SHAPE_ONLY else list(node.inputs())
                operands = operands[1:] if _NEW.fullmatch(node.kind()) else operands
                unknown = [operand for operand in operands if operand.unique() not in self._reads]
                waiting += unknown
                if not unknown:
                    self._reads[key] = frozenset[int]().union(*(self._reads[each.unique()] for each in operands))
        return self._reads[first.unique()]


def _is_script(frame: FrameType) -> bool:
    return frame.f_code.co_filename == prepare.__file__ and "node" in frame.f_locals


def _place(frame: FrameType) -> Place | None:
    """Return the line of the model's code, also if it is a script that is interpreted."""
    if not _is_script(frame):
        return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    written = _SCRIPTED_LINE.search(frame.f_locals["node"].sourceRange())
    return Place(written[1], int(written[2]), "") if written else None


def _named_numbers(frame: FrameType) -> list[float]:
    """Return the first numbers among the constants of a method and the attributes of its module that it names."""
    own = getattr(frame.f_locals.get(frame.f_code.co_varnames[0]), "__dict__", {}) if frame.f_code.co_argcount else {}
    named: list[Any] = [*frame.f_code.co_consts, *(own.get(name) for name in frame.f_code.co_names)]
    numbers = [value for value in named if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return list(dict.fromkeys([0.0, *map(float, numbers)]))[:_MAX_NUMBERS]


def _number(operand: Any) -> float:
    """Return an operand as a number, NaN if it is not one."""
    try:
        return float(operand)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of several elements, a complex number
        return math.nan


def _plain(value: Any) -> object:
    """Return a value that can be compared and needs little memory: a number, or the text of anything else."""
    if isinstance(value, (bool, int, float)):
        return value
    return repr(value.tolist() if hasattr(value, "tolist") else value)


def _is_constant(tensor: Tensor) -> bool:
    """Return whether a tensor is a constant for the tracer, or a copy of one."""
    node = _CORE._get_value_trace(tensor).node()
    while node.kind() in _COPIES:
        node = next(node.inputs()).node()
    return node.kind() == "prim::Constant"
