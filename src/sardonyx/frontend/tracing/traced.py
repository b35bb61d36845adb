"""A module becomes a tagged graph: prepared, exported by either of torch's exporters, every node told its module."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from sardonyx import provenance as p
from sardonyx.errors import ModelError, OutputError, SardonyxError, reason
from sardonyx.frontend.installed import missing
from sardonyx.frontend.tracing import dynamo, torchscript
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.frontend.tracing.symbols import Axes
from sardonyx.frontend.tracing.transformers_settings import traceable_experts, without_checks
from sardonyx.ir import attribute_tags, origins
from sardonyx.ir.scopes import scopes

Exporter = Literal["dynamo", "torchscript"]
_EXPORTERS = {"dynamo": dynamo.export, "torchscript": torchscript.export}
OTHER: dict[str, Exporter] = {"dynamo": "torchscript", "torchscript": "dynamo"}
_TORCH_PREFIX = "pkg.torch."
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(p.__file__).parents[1]))  # torch's code and our own


class NotExportable(ModelError):
    """Torch's exporter cannot export the model on these inputs and dimensions."""

    def __init__(self, message: str, *, hint: str, why: str) -> None:
        super().__init__(message, hint=hint)
        self.why = why


@dataclass(frozen=True, slots=True)
class TagStyle:
    """How tags are written into a file."""

    include_torch_nn: bool = False  # tags go down to torch's own modules
    attributes: bool = False  # also as node attributes
    keep_stack_traces: bool = False  # keep all that torch wrote, which names files of this machine


def export(
    call: Call, exporter: Exporter, axes: Axes, opset: int | None, style: TagStyle
) -> tuple[ir.Model, tuple[str, ...]]:
    """The graph of a call, tagged, and what is worth knowing about its dims.

    Raises:
        NotExportable: with torch's reason where it cannot export the module.
    """
    tree = LiveTree(call.module)
    with traceable_experts(call.module) as chosen, without_checks():
        try:
            model, notes = _EXPORTERS[exporter](call, tree, axes, opset)
        except SardonyxError:
            raise
        except Exception as error:  # torch, its exporters and the module's own code fail in any way they like
            raise _refused(error, exporter, lambda other: _EXPORTERS[other](call, tree, axes, opset)) from error
    made = model.opset_imports.get("")
    if opset not in (None, made):
        raise ModelError(
            f"torch gives this model opset {made}, not {opset}",
            hint=f'leave `opset` out, or try `exporter="{OTHER[exporter]}"`',
        )
    if call.left_out:
        notes = [*notes, f"outputs that are no tensors are not in the graph: {', '.join(call.left_out)}"]
    _tag(model, tree.hierarchy(include_torch_nn=style.include_torch_nn), style)
    return model, (*notes, *chosen)


def _tag(model: ir.Model, hierarchy: p.Hierarchy, style: TagStyle) -> None:
    origins.inherit(model)
    for scope in scopes(model):
        for node in scope.graph:
            leaf = node.metadata_props.get(p.NAMESPACE, "").rpartition("/")[2] or origins.leaf(node)
            if not style.keep_stack_traces:
                _strip(node.metadata_props)
            node.metadata_props[p.NAMESPACE] = hierarchy.namespace(origins.origins(node), leaf)
            if style.attributes:
                attribute_tags.order(node)
            for value in node.outputs:
                _strip(value.metadata_props)
        for value in (*scope.graph.initializers.values(), *scope.graph.inputs):
            _strip(value.metadata_props)
    for props in (model.graph.metadata_props, model.metadata_props):
        _strip(props)
    origins.write(model, hierarchy)


def _strip(props: dict[str, str]) -> None:
    """Drop what torch says of a graph at length: the tags say it in short, and without the paths of this machine."""
    for key in [key for key in props if key.startswith(_TORCH_PREFIX)]:
        del props[key]


def _refused(error: BaseException, exporter: Exporter, attempt: Callable[[Exporter], object]) -> SardonyxError:
    """Why torch cannot export the model, and whether its other exporter can: a hint that was tried."""
    first = _cause(error)
    if isinstance(first, SardonyxError):
        return first
    if isinstance(first, OSError) and first.errno == errno.ENOSPC:
        return OutputError("no space is left for temporary files", hint="free some, or name another folder in TMPDIR")
    if isinstance(first, ModuleNotFoundError) and first.name == "onnxscript":
        return missing("onnxscript", "torch's exporters need")
    other = OTHER[exporter]
    try:
        attempt(other)
    except Exception as second:  # as above
        return NotExportable(
            f"torch cannot export the model: {exporter}: {_why(first)}; {other}: {_why(_cause(second))}",
            hint="give other `inputs`, or write data-dependent code with torch.where or torch.cond",
            why=_why(first),
        )
    why = _why(first)
    return NotExportable(f"torch cannot export the model: {why}", hint=f'`exporter="{other}"` can', why=why)


def _why(error: BaseException) -> str:
    """A reason in one line; where control flow depends on values, the line of the model that decides on them."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_LIBRARIES)]
    if not isinstance(error, GuardOnDataDependentSymNode) or not frames:
        return reason(error)
    place, line = frames[-1], (frames[-1].line or "").rstrip(":")
    return f"control flow depends on values: {Path(place.filename).name}:{place.lineno}: {line}"


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:  # torch wraps its reasons in advice
        error = error.__cause__
    return error
