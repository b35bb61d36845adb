"""Record the program of a torch model by running it once, on fake tensors if possible.

The model runs in its current mode, without gradients. The fast paths of torch's attention modules are disabled, as in
torch.export: they hide their operations, so the model could not be compared with its decomposed form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import prod
from typing import Any, cast

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._mode_utils import no_dispatch

from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.module_state import fast_paths, unchanged, uncompiled
from sardonyx.frontend.running import quietly
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.ir.shapes.expr import (
    Size,
    add,
    floor_quotient,
    larger,
    multiply,
    product,
    remainder,
    smaller,
    subtract,
    symbol,
    total,
    unknown,
)
from sardonyx.verbs.analyze.costs.aten_operators import describe
from sardonyx.verbs.analyze.costs.program import ITEM_BYTES, Operation, Program, Store, Value
from sardonyx.verbs.analyze.dispatch_mode import ModuleTracker, NeedsData, RecordingMode, TraceLog

Convert = Callable[[Any], Size]  # converts sizes of torch


def _to_program(log: TraceLog, convert: Convert, symbols: dict[str, int], notes: Iterable[str]) -> Program:
    values = [replace(value, shape=tuple(map(convert, value.shape))) for value in log.values]
    buffers = [
        replace(buffer, bytes=convert(buffer.bytes), died=log.died.get(index))
        for index, buffer in enumerate(log.buffers)
    ]
    machine, unknown_operators = Machine.here(log.device.type), dict[str, None]()
    operations: list[Operation] = []
    for step in log.steps:
        reads, writes = ([values[index] for index in indices] for indices in (step.reads, step.writes))
        scalars = {name: _plain(value, convert) for name, value in step.scalars.items()}
        strides = log.strides[step.reads[0]] if step.reads else ()  # is it a batch of images in channels-last order?
        last = len(strides) == 4 and strides[1] == 1 and log.values[step.reads[0]].shape[1] != 1
        cost = describe(step.operator, reads, writes, scalars)
        if not cost.known:
            unknown_operators[step.operator] = None
        extra, once = workspace(step.operator, reads, writes, scalars, last, machine), tuple(dict.fromkeys(step.reads))
        costs = (cost.macs, cost.other_flops, extra)
        operations.append(Operation(step.name, step.operator, cost.kind, step.module, once, step.writes, *costs))
    if unknown_operators:
        notes = (*notes, f"operators of unknown cost, counted as 0: {', '.join(unknown_operators)}")
    ends = tuple(log.inputs), tuple(log.outputs)
    return Program(tuple(operations), tuple(values), tuple(buffers), *ends, symbols, tuple(notes))


def _plain(value: Any, convert: Convert) -> object:
    """Return an argument that is not a tensor, with its sizes converted."""
    if isinstance(value, torch.SymInt):
        return convert(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, convert) for item in cast("Iterable[Any]", value)]
    return value


_NEEDS_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NeedsData,
)
_SYMBOLIC = "symbolic sizes"  # part of torch's message if an operator does not support symbols
_SHORTCUTS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def record(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: Axes | None = None,
    real: bool = False,
) -> Program:
    """Return the operations that a call of the module executes, and the memory they use.

    Args:
        module: The model.
        args: Positional inputs.
        kwargs: Keyword inputs.
        axes: Dynamic dimensions, input -> axis -> name; axes with one name have one size.
        real: Run on the data itself. By default that happens only if the model depends on its data, and is noted.

    Raises:
        UsageError: If `axes` names an input or axis that does not exist.
        ModelError: If the model must run on its data and has none (it is on the meta device).
    """
    call = _Call(module, args, kwargs or {})
    if real:
        return call.on_data(["run on real data, at the sizes of the example only"] if axes else [])
    try:
        return call.without_data(axes)
    except _NEEDS_DATA as error:
        return call.on_data(
            [f"run on real data, at the sizes of the example only: the model depends on its data ({_line(error)})"]
        )
    except RuntimeError as error:
        if not axes or _SYMBOLIC not in str(error):
            raise
        program = record(module, args, kwargs)
        why = f"recorded at the sizes of the example only: torch does not support dynamic ones here ({_line(error)})"
        return replace(program, notes=(why, *program.notes))


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class _Call:
    """A call of a module, which can be recorded on fake tensors or on data."""

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._module, self._device = module, _device_of(module, args, kwargs)
        self._positional = len(args)
        self._flat = Flat(named_arguments(module, args, kwargs))

    def without_data(self, axes: Axes | None) -> Program:
        dims = DynamicDims(axes, {leaf.name: leaf.tensor for leaf in self._flat.leaves}) if axes else None
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=dims.env if dims else None)
        stand_ins = _StandIns(mode, self._device)
        tensors = [
            stand_ins.with_sizes(tensor, dims.shape_of(name, tensor)) if dims else stand_ins(tensor)
            for name, tensor in ((leaf.name, leaf.tensor) for leaf in self._flat.leaves)
        ]
        log = self._run(tensors, stand_ins, mode)
        if dims is None:
            return _to_program(log, int, {}, self._notes())
        symbols, notes = dims.settled()
        program = _to_program(log, dims.convert, symbols, [*notes, *self._notes()])
        if dims.unknowns:
            program = self.without_data(None)
            why = "recorded at the sizes of the example only: some size is no formula of the dynamic dimensions"
            program = replace(program, notes=(why, *program.notes))
        return program

    def on_data(self, notes: list[str]) -> Program:
        if any(tensor.is_meta for tensor in (*self._module.parameters(), *self._module.buffers())):
            raise ModelError(
                "the model depends on its data, and its weights have none: they are on the meta device",
                hint="give a model with weights",
            )
        log = self._run(self._flat.tensors, lambda tensor: tensor, contextlib.nullcontext())
        return _to_program(log, int, {}, [*notes, *self._notes()])

    def _run(
        self,
        tensors: Sequence[torch.Tensor],
        stand_in: Callable[[torch.Tensor], torch.Tensor],
        mode: contextlib.AbstractContextManager[Any],
    ) -> TraceLog:
        log, tracker = TraceLog(self._device), ModuleTracker(self._module)
        for name, tensor in _state(self._module):
            log.add(tensor, name, Store.WEIGHT, name.rpartition(".")[0])
            if (other := stand_in(tensor)) is not tensor:
                log.add_alias(tensor, other)
        inputs = zip(self._flat.leaves, tensors, strict=True)
        log.inputs = [log.add(tensor, leaf.name, Store.INPUT) for leaf, tensor in inputs]
        values = self._flat.rebuilt(tensors)
        args = [values.pop(name) for name in list(values)[: self._positional]]
        with (
            torch.no_grad(),
            quietly(),
            uncompiled(),
            fast_paths(enabled=False),
            unchanged(self._module),
            mode,
            tracker.tracking(),
            RecordingMode(log, tracker, stand_in),
        ):
            result = self._module(*args, **values)
        outputs = [stand_in(tensor) for tensor in Flat(result).tensors]
        log.outputs = [
            log.value(tensor) if log.knows(tensor) else log.add(tensor, "constant", Store.WEIGHT) for tensor in outputs
        ]
        log.close()
        return log

    def _notes(self) -> Iterator[str]:
        if any(isinstance(module, _SHORTCUTS) and not module.training for module in self._module.modules()):
            yield "torch's fast paths for nn.MultiheadAttention and nn.TransformerEncoderLayer are disabled"
        if any(isinstance(module, nn.RNNBase) for module in self._module.modules()):
            yield "recurrent layers are recorded step by step; torch may run them as one kernel that needs more memory"


class _StandIns:
    """Fake tensors in place of those of the model and its caller, one for each tensor."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode, self._device = mode, device
        self._fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # with the tensor, so that its id is not reused

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._fakes:
            if tensor.is_meta:
                with no_dispatch():
                    fake = FakeTensor(self._mode, tensor.detach(), self._device)
            else:
                fake = self._mode.from_tensor(tensor, static_shapes=True)
            self._fakes[id(tensor)] = tensor, fake
        return self._fakes[id(tensor)][1]

    def with_sizes(self, tensor: torch.Tensor, shape: Sequence[int | torch.SymInt]) -> torch.Tensor:
        """Return a fake tensor of another shape, with its axes in the same memory order."""
        order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
        back = sorted(range(len(order)), key=order.__getitem__)
        with self._mode:
            return torch.empty([shape[axis] for axis in order], dtype=tensor.dtype, device=self._device).permute(back)


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _device_of(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device of the inputs or weights, or the CPU if all of them are on the meta device."""
    inputs = Flat([*args, *kwargs.values()]).tensors
    devices = [tensor.device for tensor in (*inputs, *(tensor for _, tensor in _state(module))) if not tensor.is_meta]
    return devices[0] if devices else torch.device("cpu")


# Dynamic dimensions of a recording: tensors with symbolic sizes, and the conversion of torch's sizes to `Size`.

Axes = Mapping[str, Mapping[int, str]]  # input -> axis -> name of the dimension
_MIN_SIZE = 2  # torch specializes on sizes 0 and 1: an example of such a size cannot be traced as dynamic
_REPLACEMENT_SIZE = 5  # the size that such an example is recorded with
_OPERATORS: Mapping[str, Callable[[Size, Size], Size]] = {  # by their names in sympy and torch
    "Add": add,
    "Mul": multiply,
    "FloorDiv": floor_quotient,
    "CleanDiv": floor_quotient,
    "Mod": remainder,
    "PythonMod": remainder,
    "Max": larger,
    "Min": smaller,
}


class DynamicDims:
    """The requested dynamic dimensions as symbols of torch."""

    def __init__(self, axes: Axes, tensors: Mapping[str, torch.Tensor]) -> None:
        """Create one symbol for each name: axes with the same name have the same size.

        Raises:
            UsageError: If an axis does not exist, or two axes with one name have different sizes.
        """
        self.env = ShapeEnv(duck_shape=False)
        self.examples: dict[str, int] = {}
        self._sizes: dict[str, Any] = {}  # torch.SymInt, whose node is untyped
        self._axes = axes
        self.unknowns: dict[str, Size] = {}  # sizes that are no formula of the dynamic dimensions
        self._converted: dict[Any, Size] = {}
        for name, names in axes.items():
            if name not in tensors:
                raise UsageError(f"there is no input {name!r}", hint=f"inputs: {', '.join(tensors)}")
            for axis, dim in names.items():
                self._add(name, tensors[name].shape, axis, dim)

    def _add(self, name: str, shape: torch.Size, axis: int, dim: str) -> None:
        if not -len(shape) <= axis < len(shape):
            raise UsageError(f"{name} has no axis {axis}", hint=f"its rank is {len(shape)}")
        size = shape[axis]
        if self.examples.setdefault(dim, size) != size:
            raise UsageError(
                f"{dim} is {self.examples[dim]} in one input and {size} in {name}", hint="give them different names"
            )
        if dim not in self._sizes:
            hint = size if size >= _MIN_SIZE else _REPLACEMENT_SIZE
            source = ConstantSource(dim)
            created = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, None)
            self._sizes[dim] = self.env.create_symintnode(created, hint=hint, source=source)

    def shape_of(self, name: str, tensor: torch.Tensor) -> list[int | torch.SymInt]:
        """Return the shape of a tensor with its dynamic dimensions as symbols."""
        shape: list[int | torch.SymInt] = list(tensor.shape)
        for axis, dim in self._axes.get(name, {}).items():
            shape[axis] = self._sizes[dim]
        return shape

    def settled(self) -> tuple[dict[str, int], list[str]]:
        """Return the dimensions that are dynamic after the run with their example sizes, and notes on the others."""
        notes: list[str] = []
        names: dict[Any, str] = {}
        dynamic: dict[str, int] = {}
        for name, size in self._sizes.items():
            expression = self.env.simplify(size.node.expr)
            if expression.is_number:
                notes.append(f"{name} is not dynamic: the model requires {expression}")
            elif expression in names:
                notes.append(f"{name} is always equal to {names[expression]}, and is replaced by it")
            else:
                names[expression] = name
                dynamic[name] = self.examples[name]
        return dynamic, notes

    def convert(self, size: Any) -> Size:
        """Convert a size of torch."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._converted:
            self._converted[expression] = self._translated(self.env.simplify(expression))
        return self._converted[expression]

    def _translated(self, expression: Any) -> Size:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            settled = ((name, self.env.simplify(size.node.expr)) for name, size in self._sizes.items())
            named = next((name for name, one in settled if one == expression), None)
            return self._unknown(expression) if named is None else symbol(named)
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return reduce(multiply, [self._translated(expression.base)] * int(expression.exp))
        operator = _OPERATORS.get(expression.func.__name__)
        if operator is None:
            return self._unknown(expression)
        return reduce(operator, [self._translated(argument) for argument in expression.args])

    def _unknown(self, expression: Any) -> Size:
        return self.unknowns.setdefault(str(expression), unknown(len(self.unknowns)))


# The workspaces of kernels: memory that is allocated only while they run. Operators not listed here need almost none.
#
# The rules were measured with torch's allocators around single operators (`benchmarks/allocations.py`):
#
# - A softmax that returns zeros for fully masked rows computes which elements and which rows are masked.
# - Fused attention on the CPU allocates for each thread a tile of scores, two numbers per row and a tile of the result.
# - A convolution on the CPU (oneDNN) copies its input and weight into blocks of channels as wide as the vectors of the
#   machine, and computes the result in such blocks, which is copied at the end. An input with few channels is not
#   copied, and nothing is copied if the padding is wide. With channels last, only weights are copied. For one small
#   image the windows are unrolled instead; a pointwise convolution of one needs nothing. On a single thread pointwise
#   convolutions of several images need nothing either; the rule for more threads is used there too.
# - A convolution on CUDA (cuDNN) copies input and weight into channels-last order with channels padded to 16 bytes, and
#   copies the result back; in float32 only if the channels need no padding, otherwise it needs nothing. Grouped
#   convolutions follow no known rule and are left out.

_KEY_TILE = 512  # keys in a tile of scores of torch's fused attention on the CPU
_ALIGNED_BYTES = 16  # to which cuDNN pads channels
_MAX_PADDING = 8  # measured: with wider padding no blocks are used
_MAX_UNROLLED = 20480  # elements of a single image up to which torch unrolls the windows (`use_mkldnn`)
_MAX_SMALL_WINDOW = 3  # above it torch uses oneDNN for any image (`use_mkldnn`)


class Machine(Struct, frozen=True):
    """The properties of a machine that workspaces depend on."""

    device: str  # "cpu", "cuda"
    threads: int
    block: int  # channels in a block of oneDNN

    @classmethod
    def here(cls, device: str) -> Machine:
        """Return the properties of this machine."""
        wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        return cls(device, torch.get_num_threads(), 16 if wide else 8)


def workspace(
    operator: str,
    reads: Sequence[Value],
    writes: Sequence[Value],
    scalars: Mapping[str, object],
    last: bool,
    on: Machine,
) -> Size:
    """Return the bytes that an operation allocates while it runs, in addition to its outputs.

    `last` tells whether its first input is in channels-last order.
    """
    if operator == "aten._safe_softmax":
        rows = list(reads[0].shape)
        rows[cast(int, scalars["dim"])] = 1
        return add(reads[0].elements, product(rows))  # one byte for each element and one for each row
    if operator == "aten._scaled_dot_product_flash_attention_for_cpu":
        return multiply(on.threads, _tiles(reads[0], reads[1], reads[2]))
    if operator != "aten.convolution" or scalars.get("transposed"):
        return 0
    if on.device == "cpu":
        return _convolution(reads[0], reads[1], writes[0], scalars, last, on.block)
    return _copies(reads[0], reads[1], writes[0], cast(int, scalars["groups"]), last) if on.device == "cuda" else 0


def _tiles(query: Value, key: Value, value: Value) -> Size:
    length = query.shape[-2]
    long, longer = (smaller(1, floor_quotient(length, threshold)) for threshold in (192, 768))
    rows = smaller(total((32, multiply(32, long), multiply(192, longer))), length)  # of a tile: 32, 64, or 256
    columns = smaller(_KEY_TILE, key.shape[-2])
    numbers = total((multiply(rows, columns), multiply(2, rows), multiply(rows, value.shape[-1])))
    return multiply(ITEM_BYTES["float32"], numbers)


def _copies(source: Value, weight: Value, result: Value, groups: int, last: bool) -> Size:
    block = _ALIGNED_BYTES // ITEM_BYTES[source.dtype]
    unaligned = source.dtype == "float32" and source.shape[1] != _padded(source.shape[1], block)
    if groups > 1 or last or unaligned:
        return 0
    return total(_blocked(value, (1,), block) for value in (source, weight, result))


def _convolution(
    source: Value, weight: Value, result: Value, scalars: Mapping[str, object], last: bool, lanes: int
) -> Size:
    window, groups = cast("tuple[int, ...]", weight.shape[2:]), cast(int, scalars["groups"])
    pointwise = prod(window) == 1
    if not _in_blocks(source, window, groups):
        unrolled = product((*result.shape[2:], weight.shape[1], *window, ITEM_BYTES[source.dtype]))
        return 0 if pointwise else unrolled
    depthwise = groups > 1 and weight.shape[1] == 1
    if last:
        return weight.bytes if depthwise or pointwise else multiply(2, weight.bytes)
    if max(cast("Sequence[int]", scalars["padding"])) > _MAX_PADDING:
        return result.bytes
    block = lanes if groups == 1 or depthwise else 1
    few = groups == 1 and not pointwise and isinstance(source.shape[1], int) and source.shape[1] < lanes
    output = _blocked(result, (1,), block)
    copies = _blocked(weight, (0,), block) if few or depthwise else _blocked(weight, (0, 1), block)
    copies = copies if few else add(copies, _blocked(source, (1,), block))
    return larger(subtract(add(copies, output), result.bytes), output)


def _in_blocks(source: Value, window: Sequence[int], groups: int) -> bool:
    """Return whether torch uses oneDNN; dynamic sizes are assumed to be large enough."""
    if groups > 1 or (min(window) > _MAX_SMALL_WINDOW and len(window) > 1) or len(window) > 2:
        return True
    several = source.shape[0] != 1
    return several or not isinstance(source.elements, int) or source.elements > _MAX_UNROLLED


def _blocked(value: Value, axes: Sequence[int], block: int) -> Size:
    """Return the bytes of a tensor with these axes padded to whole blocks."""
    shape = list(value.shape)
    for axis in axes:
        shape[axis] = _padded(shape[axis], block)
    return product((*shape, ITEM_BYTES[value.dtype]))


def _padded(size: Size, block: int) -> Size:
    return multiply(block, floor_quotient(add(size, block - 1), block))
