"""Records the Python values that torch's tracer fixes: results of `if x.max() > 1`, `int(mask.sum())`, `x.tolist()`.

The tracer runs the module once and writes only tensor operations. A tensor that the module's code converts to a number
is a constant for it, and a branch on that number is decided for all inputs. Torch only warns. The same run under a
function mode shows where that happens, which numbers were compared, and whether inputs decide it. Sizes are tensors
while the tracer runs, so that branches on sizes are seen too.
"""

from __future__ import annotations

import itertools
import linecache
import math
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor
from torch.onnx._internal.torchscript_exporter._globals import GLOBALS
from torch.overrides import TorchFunctionMode

from sardonyx.frontend.module_state import replaced, unchanged, uncompiled
from sardonyx.frontend.running import quietly
from sardonyx.frontend.tracing import prepare
from sardonyx.frontend.tracing.adapter import Adapter, Call

_CORE: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # the tracer has no public face
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
_TO_NUMBER = frozenset(("__bool__", "__int__", "__float__", "__complex__", "__index__", "item", "is_nonzero"))
_TO_PYTHON = _TO_NUMBER | {"tolist", "numpy", "__array__", "__contains__", "equal", "allclose"}
_CONSTRUCTORS = frozenset(("tensor", "as_tensor", "new_tensor"))  # of constants
_COPIES = frozenset(("aten::detach", "aten::to", "aten::lift_fresh", "aten::clone"))
_COMPARISONS = frozenset(op for name in ("gt", "ge", "lt", "le", "eq", "ne") for op in (name, f"__{name}__"))
_SHAPE_ONLY = frozenset(("aten::size", "aten::dim", "aten::numel", "aten::len", "prim::dtype", "prim::device"))
_NEW = re.compile(r"aten::(\w+_like|new_\w+)")  # of the shape of their first operand
_MOST_NUMBERS = 6
_SCRIPTED_LINE = re.compile(r'File "([^"]+)", line (\d+)')


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
            if after is None or not _is_flag(value) or not _is_flag(after) or after.step <= value.step
        )

    def results(self, place: Place) -> list[object]:
        """Return the results at a place."""
        return [each.result for each in self.decisions(place)]

    def refuses_at(self, place: Place) -> bool:
        """Return whether the module's code at this place, or the function around it, raised the error."""
        frames = traceback.extract_tb(self.error.__traceback__ if self.error is not None else None)
        own = [frame for frame in frames if not is_library(frame.filename)]
        return bool(own) and (own[-1].filename, own[-1].name) == (place.file, place.function)


def _is_flag(value: Fixed) -> bool:
    return isinstance(value.result, bool)


def trace(call: Call, tensors: Sequence[Tensor]) -> Traced:
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
        elif name in _CONSTRUCTORS and (sources := _tensors(args[-1])) and _is_constant(result):
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


def is_library(file: str) -> bool:
    """Return whether a file is torch's code or our own, as opposed to the model's."""
    return file.startswith((*_LIBRARIES, "<frozen"))


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
    return list(dict.fromkeys([0.0, *map(float, numbers)]))[:_MOST_NUMBERS]


def _number(operand: Any) -> float:
    """Return an operand as a number, NaN if it is not one."""
    try:
        return float(operand)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of several elements, a complex number
        return math.nan


def _plain(value: Any) -> object:
    """Return a value that can be compared and needs little memory: a number, or the text of anything else."""
    return (
        value if isinstance(value, (bool, int, float)) else repr(value.tolist() if hasattr(value, "tolist") else value)
    )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = cast("Sequence[Any]", value) if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _is_constant(tensor: Tensor) -> bool:
    """Return whether a tensor is a constant for the tracer, or a copy of one."""
    node = _CORE._get_value_trace(tensor).node()
    while node.kind() in _COPIES:
        node = next(node.inputs()).node()
    return node.kind() == "prim::Constant"
