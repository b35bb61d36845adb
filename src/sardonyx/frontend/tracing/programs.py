"""What torch's own exporters return, as sources: `torch.export.ExportedProgram` and `torch.onnx.ONNXProgram`.

The graph keeps the names and dynamic dimensions that torch gave it. The program runs in PyTorch under the same names,
so that a graph can be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import onnx_ir as ir
import torch
from msgspec import Struct

from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.adapter import Call
from sardonyx.frontend.tracing.graph_names import Axes, settle
from sardonyx.frontend.tracing.traced import TagStyle, tag
from sardonyx.ir import origins, size_limits

_HINT = "export the module with `sardonyx.export(module, inputs)`"


class Program(Struct, frozen=True):
    """The tagged graph of a program."""

    model: ir.Model
    label: str
    axes: Axes  # names of the dynamic dimensions of the inputs
    notes: tuple[str, ...]  # on their limits
    call: ProgramCall | None  # None: an ONNXProgram without the program that it was made from


class ProgramCall(Call):
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
    translated = _translated(source, opset)
    model: ir.Model = translated.model.clone()
    actual = model.opset_imports.get("")
    if opset not in (None, actual):
        raise UsageError(f"the program is at opset {actual}, not {opset}", hint="leave out `opset`")
    tag(model, origins.attach(model), style or TagStyle())
    program: Any = source if isinstance(source, torch.export.ExportedProgram) else translated.exported_program
    axes = _axes(model)
    notes: list[str] = []
    if program is not None:
        ranges = {str(symbol): (limits.lower, limits.upper) for symbol, limits in program.range_constraints.items()}
        notes = settle(model, axes, ranges, getattr(program, "_guards_code", ()))
        size_limits.write(model, notes)
    call = None
    if program is not None and program.example_inputs is not None:
        inputs, outputs = map(_names, (model.graph.inputs, model.graph.outputs))
        call = ProgramCall(program, inputs, outputs)
    return Program(model, type(source).__name__, axes, tuple(notes), call)


def _names(values: Iterable[ir.Value]) -> list[str]:
    return [cast("str", value.name) for value in values]


def _translated(source: Any, opset: int | None) -> Any:
    if not isinstance(source, torch.export.ExportedProgram):
        return source
    with quietly(), torch.no_grad():
        return torch.onnx.export(  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
            source, (), dynamo=True, optimize=False, opset_version=opset
        )


def _axes(model: ir.Model) -> dict[str, dict[int, str]]:
    """Return the axes of the inputs whose size is a symbol, with its name."""
    axes: dict[str, dict[int, str]] = {}
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value:
                axes.setdefault(cast("str", value.name), {})[axis] = dim.value
    return axes
