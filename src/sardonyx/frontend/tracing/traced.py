"""Export a module with either exporter, or a program of torch.export, and tag each node with its module."""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal, cast

import onnx_ir as ir
import torch
from msgspec import Struct
from torch import nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from sardonyx.errors import ModelError, OutputError, SardonyxError, UsageError, reason
from sardonyx.frontend.installed import missing
from sardonyx.frontend.module_state import nothing, replaced, restoring_state
from sardonyx.frontend.running import quietly
from sardonyx.frontend.tracing import dynamo, torchscript
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.dynamo import shortcuts
from sardonyx.frontend.tracing.graph_names import Axes, settle
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.ir import metadata, origins
from sardonyx.ir.scopes import scopes
from sardonyx.records import provenance as p

Exporter = Literal["dynamo", "torchscript"]
_EXPORTERS = {"dynamo": dynamo.export, "torchscript": torchscript.export}
_TORCH_PREFIX = "pkg.torch."
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<frozen")


class NotExportable(ModelError):
    """Torch's exporter cannot export the model on these inputs and dimensions."""

    def __init__(self, message: str, *, hint: str, why: str) -> None:
        super().__init__(message, hint=hint)
        self.why = why


class TagStyle(Struct, frozen=True):
    """How tags are written into a file."""

    include_torch_nn: bool = False  # tags include torch's own modules
    attributes: bool = False  # also as node attributes
    keep_stack_traces: bool = False  # keep torch's metadata, which has file names of this machine


def export(
    call: ModuleCall, exporter: Exporter, axes: Axes, opset: int | None, style: TagStyle
) -> tuple[ir.Model, tuple[str, ...]]:
    """Return the tagged graph of a call, and notes on its dimensions and outputs.

    Raises:
        NotExportable: If torch cannot export the module, with torch's reason.
    """
    tree = LiveTree(call.module)

    def traced_once() -> tuple[ir.Model, list[str]]:
        faster = shortcuts(stack_traces=style.keep_stack_traces)
        with restoring_state(call.module), written_batch_norm(), faster:  # a forward may store a tensor of the trace
            return _EXPORTERS[exporter](call, tree, axes, opset)

    with traceable_experts(call.module) as expert_notes:
        try:
            model, notes = _with_fewest_checks(traced_once)
        except SardonyxError:
            raise
        except Exception as error:  # torch, its exporters and the module's code may raise anything
            raise _export_error(error) from error
    if expert_notes:
        call.read = None  # of experts that read all weights
    actual = model.opset_imports.get("")
    if opset not in (None, actual):
        raise ModelError(f"torch exports this model at opset {actual}, not {opset}", hint="leave out `opset`")
    if call.left_out:
        notes = [*notes, f"outputs that are not tensors are left out of the graph: {', '.join(call.left_out)}"]
    tag(model, tree.hierarchy(include_torch_nn=style.include_torch_nn), style)
    return model, (*notes, *expert_notes)


def _with_fewest_checks(export: Callable[[], tuple[ir.Model, list[str]]]) -> tuple[ir.Model, list[str]]:
    """Return the result of an export without transformers' checks, or with those of sizes if torch needs them."""
    try:
        with without_checks():
            return export()
    except Exception as error:
        if not isinstance(_cause(error), GuardOnDataDependentSymNode):
            raise
        with replaced(torch, "_check_tensor_all", nothing), contextlib.suppress(Exception):
            return export()
        raise


def tag(model: ir.Model, hierarchy: p.Hierarchy, style: TagStyle) -> None:
    """Write the origins of all nodes as tags in place of torch's metadata."""
    origins.inherit(model)
    for scope in scopes(model):
        for node in scope.graph:
            leaf = node.metadata_props.get(p.NAMESPACE, "").rpartition("/")[2] or origins.leaf(node)
            if not style.keep_stack_traces:
                _strip(node.metadata_props)
            node.metadata_props[p.NAMESPACE] = hierarchy.namespace(origins.origins(node), leaf)
            if style.attributes:
                origins.request(node)
            for value in node.outputs:
                _strip(value.metadata_props)
        for value in (*scope.graph.initializers.values(), *scope.graph.inputs):
            _strip(value.metadata_props)
    for props in (model.graph.metadata_props, model.metadata_props):
        _strip(props)
    origins.write(model, hierarchy)


def _strip(props: dict[str, str]) -> None:
    """Drop torch's metadata: the tags replace it, and it contains paths of this machine."""
    for key in [key for key in props if key.startswith(_TORCH_PREFIX)]:
        del props[key]


def _export_error(error: BaseException) -> SardonyxError:
    first = _cause(error)
    if isinstance(first, SardonyxError):
        return first
    if isinstance(first, OSError) and first.errno == errno.ENOSPC:
        return OutputError("no space is left for temporary files", hint="free some, or set TMPDIR to another folder")
    if isinstance(first, ModuleNotFoundError) and first.name == "onnxscript":
        return missing("onnxscript", "torch's exporters need")
    why = reason(first)
    frames = [frame for frame in traceback.extract_tb(first.__traceback__) if not is_library(frame.filename)]
    if isinstance(first, GuardOnDataDependentSymNode) and frames:  # with the model's line of code
        frame, line = frames[-1], (frames[-1].line or "").rstrip(":")
        why = f"control flow depends on values: {Path(frame.filename).name}:{frame.lineno}: {line}"
    return NotExportable(
        f"torch cannot export the model: {why}",
        hint="give other `inputs`, or write data-dependent code with torch.where or torch.cond",
        why=why,
    )


def is_library(file: str) -> bool:
    """Return whether a file is torch's code or our own, as opposed to the model's."""
    return file.startswith(_LIBRARIES)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:  # torch wraps its reasons in advice
        error = error.__cause__
    return error


# Settings of transformers that make its models exportable, applied during an export.
#
# The library has several implementations of experts, selected by the config (`experts_implementation`). The default
# sorts the tokens by expert and runs a kernel that has no ONNX operator; the plain one loops over the experts that this
# input selects. `batched_mm` gathers the weights of each token's experts and multiplies by them: the same operations
# for every routing.
#
# Its checks of values (as many image tokens as image features) can be disabled. Those of whole tensors have no ONNX
# operator. Those of single numbers tell torch what it may assume of a size that depends on values.

TRACEABLE = "batched_mm"
_CHOICE = "_experts_implementation_internal"  # the config's attribute; the public name also sets it in nested configs

_CHECKS_OFF = "TRANSFORMERS_DISABLE_TORCH_CHECK"  # documented at transformers.utils.torch_compilable_check


@contextlib.contextmanager
def traceable_experts(module: nn.Module) -> Generator[list[str]]:
    """Use `batched_mm` experts in every model inside `module`; yield a note for each implementation it replaces."""
    configs: list[Any] = [getattr(child, "config", None) for child in module.modules()]
    own = [config for config in configs if _CHOICE in getattr(config, "__dict__", {})]
    before = {id(config): (config, config.__dict__[_CHOICE]) for config in own}
    try:
        for child in module.modules():
            set_implementation: Any = getattr(child, "set_experts_implementation", None)
            if callable(set_implementation):
                set_implementation(TRACEABLE)
        changed = [was for config, was in before.values() if config.__dict__[_CHOICE] != was]
        yield [f"experts exported as {TRACEABLE} (the model runs {was})" for was in dict.fromkeys(changed)]
    finally:
        for config, was in before.values():
            config.__dict__[_CHOICE] = was


@contextlib.contextmanager
def without_checks() -> Generator[None]:
    """Disable transformers' checks of values, which do not affect results."""
    before = os.environ.get(_CHECKS_OFF)
    os.environ[_CHECKS_OFF] = "1"
    try:
        yield
    finally:
        os.environ.pop(_CHECKS_OFF)
        if before is not None:
            os.environ[_CHECKS_OFF] = before


def written_batch_norm() -> contextlib.AbstractContextManager[None]:
    """Compute batch norms that update their statistics in single operations: the exporters of torch 2.13 lose that."""
    functional: Any = nn.functional
    plain = functional.batch_norm

    def batch_norm(
        x: Any,
        mean: Any,
        var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if training and mean is not None:
            axes = [axis for axis in range(x.dim()) if axis != 1]
            count = x.numel() // x.shape[1]
            mean.mul_(1 - momentum).add_(momentum * x.mean(axes))
            var.mul_(1 - momentum).add_(momentum * x.var(axes, correction=0) * (count / (count - 1)))
        return plain(x, None if training else mean, None if training else var, weight, bias, training, momentum, eps)

    return replaced(functional, "batch_norm", batch_norm)


_HINT = "export the module with `sardonyx.export(module, inputs)`"


class Program(Struct, frozen=True):
    """The tagged graph of a program."""

    model: ir.Model
    label: str
    axes: Axes  # names of the dynamic dimensions of the inputs
    notes: tuple[str, ...]  # on their limits
    call: ProgramCall | None  # None: an ONNXProgram without the program that it was made from


class ProgramCall(ModuleCall):
    """A call of an exported program on its example inputs, under the names of a graph."""

    def __init__(self, program: Any, inputs: list[str], outputs: list[str]) -> None:
        """Take the program's module and example; the module is not run."""
        args, kwargs = program.example_inputs
        super().__init__(program.module(), args, kwargs)
        self._graph_inputs = inputs
        if len(self._flat.names) != len(inputs):
            what = f"the graph has {len(inputs)} inputs and the program's example {len(self._flat.names)} tensors"
            raise ModelError(what, hint=_HINT)
        self.outputs = outputs

    @property
    def arguments(self) -> list[str]:
        """The names of the inputs of the graph, which are in the order of the program's."""
        return self._graph_inputs

    def forward(self, tensors: Any) -> tuple[torch.Tensor, ...]:
        """Return the program's flat result; outputs keep the names of the graph."""
        names = list(self.outputs)
        result = super().forward(tensors)
        if len(result) != len(names):
            raise ModelError(f"the graph has {len(names)} outputs and the program {len(result)}", hint=_HINT)
        self.outputs[:] = names
        return result


def read(source: Any, opset: int | None = None, style: TagStyle | None = None) -> Program:
    """Return the graph of a program, which is not changed, with tags on its nodes.

    Args:
        source: An `ExportedProgram`, which torch translates to ONNX, or an `ONNXProgram`.
        opset: The opset of the translation; the exporter's default if None.
        style: How tags are written.

    Raises:
        UsageError: If an `ONNXProgram` has another opset.
        ModelError: If the program and the graph have different numbers of inputs.
    """
    translated = source
    if isinstance(source, torch.export.ExportedProgram):
        with quietly(), torch.no_grad(), dynamo.without_repetition():
            translated: Any = torch.onnx.export(  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
                source, (), dynamo=True, optimize=False, opset_version=opset
            )
    model: ir.Model = translated.model.clone()
    actual = model.opset_imports.get("")
    if opset not in (None, actual):
        raise UsageError(f"the program is at opset {actual}, not {opset}", hint="leave out `opset`")
    tag(model, origins.attach(model), style or TagStyle())
    program: Any = source if isinstance(source, torch.export.ExportedProgram) else translated.exported_program
    axes = {
        cast("str", value.name): {
            axis: dim.value
            for axis, dim in enumerate(value.shape or ())
            if isinstance(dim, ir.SymbolicDim) and dim.value
        }
        for value in model.graph.inputs
    }
    notes: list[str] = []
    if program is not None:
        ranges = {str(symbol): (limits.lower, limits.upper) for symbol, limits in program.range_constraints.items()}
        notes = settle(model, axes, ranges, getattr(program, "_guards_code", ()))
        metadata.write_limits(model, notes)
    call = None
    if program is not None and program.example_inputs is not None:
        inputs, outputs = ([value.name or "" for value in each] for each in (model.graph.inputs, model.graph.outputs))
        call = ProgramCall(program, inputs, outputs)
    return Program(model, type(source).__name__, axes, tuple(notes), call)
