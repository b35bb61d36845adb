"""Exports with torch's tracer, which writes the running modules into the names of the nodes.

The tracer keeps a stack of scopes and writes it into each node's name. Its own entries are attribute names, which do
not distinguish `a.conv` from `b.conv` or a first call from a second, so an entry of ours is pushed before each.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
import torch
from torch.onnx._internal.torchscript_exporter import (
    registration,
    symbolic_helper,
    symbolic_opset9,
    symbolic_opset12,
    symbolic_opset14,
)
from torch.onnx.errors import OnnxExporterError

from sardonyx.common.temporary import temporary_folder
from sardonyx.errors import ModelError, reason
from sardonyx.frontend.module_state import WriteUndo, nothing, replaced, switched, uncompiled
from sardonyx.frontend.running import HALF_TYPES, quietly
from sardonyx.frontend.tracing.adapter import INNER, Adapter, ModuleCall
from sardonyx.frontend.tracing.dynamo import BFLOAT16_OPSET
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.frontend.tracing.graph_names import Axes, name_interface
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.opset_raising import CannotRaise, plan
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import Names, operator, scopes
from sardonyx.ir.transaction import Transactions
from sardonyx.records import provenance as p
from sardonyx.records.run import How

# Corrects symbolic functions, which write the ONNX nodes of an operator for torch's tracer.
#
# The faults are in torch 2.13.

_helper: Any = symbolic_helper  # torch leaves it untyped


@contextlib.contextmanager
def corrected_symbolics() -> Generator[None]:
    """Correct the symbolic functions while a module is traced."""
    scalar_of = _helper._maybe_get_scalar

    def copied(value: Any) -> Any:
        """Return a copy of a constant, which may be shared: `repeat_interleave` adds the rank to a negative axis."""
        scalar = scalar_of(value)
        return scalar.clone() if isinstance(scalar, torch.Tensor) else scalar

    with (
        replaced(_helper, "_maybe_get_scalar", copied),
        _corrected("scaled_dot_product_attention", 14, symbolic_opset14, _with_typed_masks),
        _corrected("unfold", 12, symbolic_opset12, _with_positive_axis),
        _corrected("expand", 9, symbolic_opset9, _with_empty_results),
    ):
        yield


@contextlib.contextmanager
def _corrected(operator: str, opset: int, module: Any, correct: Callable[[Any], Any]) -> Generator[None]:
    """Replace a symbolic function from an opset on; one that the user registered for a later opset is used."""
    functions: Any = registration.registry.get_function_group(f"aten::{operator}")
    before = functions._functions._overrides.get(opset)
    functions.add_custom(correct(before or getattr(module, operator)), opset)
    try:
        yield
    finally:
        functions.remove_custom(opset)
        if before is not None:
            functions.add_custom(before, opset)


def _with_typed_masks(plain: Any) -> Any:
    """Convert boolean attention masks to the query's type: torch writes float32.

    In a half-precision model everything after it would become float32, until an operator refuses mixed types.
    """

    def typed(context: Any, query: Any, *others: Any) -> Any:
        kind = query.type().dtype()
        return plain(_TypedConstants(context, kind) if kind in HALF_TYPES else context, query, *others)

    return typed


class _TypedConstants:
    """A graph context that converts float32 constants to another type if the conversion is exact."""

    def __init__(self, context: Any, kind: torch.dtype) -> None:
        self._context, self._kind = context, kind

    def op(self, name: str, *inputs: Any, **attributes: Any) -> Any:
        value = attributes.get("value_t")
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            converted = value.to(self._kind)
            attributes["value_t"] = converted if torch.equal(converted.to(value.dtype), value) else value
        return self._context.op(name, *inputs, **attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _with_positive_axis(plain: Any) -> Any:
    """Count the axis of `unfold` from the front: torch inserts the new axis before it, one off if it is negative."""

    def positive(context: Any, tensor: Any, axis: Any, *others: Any) -> Any:
        number, rank = _helper._maybe_get_const(axis, "i"), _helper._get_tensor_rank(tensor)
        if isinstance(number, int) and number < 0 and rank is not None:
            axis = context.op("Constant", value_t=torch.tensor(number + rank))
        return plain(context, tensor, axis, *others)

    return positive


def _with_empty_results(plain: Any) -> Any:
    """Write an empty tensor for `expand` of one: torch infers a size of 1 for an axis of 0, and computes with it."""

    def emptied(context: Any, tensor: Any, size: Any, implicit: Any) -> Any:
        own: Any = _helper._get_tensor_sizes(tensor)
        wanted: list[Any] = []  # the numbers, and the values that compute those that are not constant
        if own is not None and 0 in own and _helper._is_packed_list(size):
            wanted = [_helper._maybe_get_const(value, "i") for value in _helper._unpack_list(size)]
        elif own is not None and 0 in own and not _helper._is_value(constant := _helper._maybe_get_const(size, "is")):
            wanted = list(constant)
        present = [1] * (len(wanted) - len(own or ())) + (own or [])
        shape = [have if number == -1 else number for number, have in zip(wanted, present, strict=False)]
        if not shape or not all(isinstance(number, int) for number in shape):  # some are known only at run time
            return plain(context, tensor, size, implicit)
        return context.op("Constant", value_t=torch.zeros(shape, dtype=tensor.type().dtype()))

    return emptied


_ENTRY = "sardonyx"  # prefix of our entries; extended if a module has this name
_DEFAULT_OPSET = 18
_NEWEST_OPSET = 20  # that torch's tracer writes


def export(call: ModuleCall, tree: LiveTree, axes: Axes, opset: int | None) -> tuple[ir.Model, list[str]]:
    """Return the module as an ONNX graph with origins on the nodes whose module the tracer recorded, and notes.

    Raises:
        ModelError: If torch needs a newer opset than the requested one.
    """
    modules, entry = list(tree.root.modules()), _ENTRY
    names = "".join(name for name, _ in cast("Iterable[tuple[str, torch.nn.Module]]", tree.root.named_modules()))
    while entry in names:
        entry += "y"
    written = call.rehearse()
    folder = temporary_folder()
    path = Path(folder.name) / "traced.onnx"
    is_packed = any(hasattr(module, "_packed_params") for module in modules)  # torch then refuses our entries
    scoped = _scoped([] if is_packed else modules, entry)
    with quietly(), _without_log(), corrected_symbolics(), uncompiled(), scoped:
        used, refusal = _lowest_opset(call, axes, path, opset or _DEFAULT_OPSET, written)
    if refusal is not None and opset is not None:
        raise ModelError(
            f"torch cannot export the model at opset {opset}: {refusal}", hint=f"use `opset={used}`, which works"
        )
    model = io.load(path)
    for node in (node for scope in scopes(model) for node in scope.graph):
        # the tracer (scalar_type_analysis.cpp of torch 2.13) writes complex128 for bfloat16; ONNX has no such cast
        if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.COMPLEX128:
            node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.BFLOAT16))
    weakref.finalize(model, folder.cleanup)  # the weights stay in the file, which is deleted with the model
    _set_origins(model, modules, tree, entry)
    _rename(model, entry)
    state = cast("Iterable[tuple[str, torch.Tensor]]", (*tree.root.named_parameters(), *tree.root.named_buffers()))
    for name, tensor in state:  # the contents from before the traced run: the graph writes to them itself
        value = model.graph.initializers.get(name)
        if value is not None and written.covers(tensor):
            value.const_value = ir.tensor(to_array(tensor.clone()), name=name)
    _restore_inputs(model, call, axes)
    name_interface(model, call)
    notes = [] if refusal is None else [f"opset {used}, because at {_DEFAULT_OPSET}: {refusal}"]
    if opset is None and torch.bfloat16 in call.dtypes:
        _raise_opset(model, BFLOAT16_OPSET)
    return model, notes


def _lowest_opset(call: ModuleCall, axes: Axes, path: Path, lowest: int, written: WriteUndo) -> tuple[int, str | None]:
    """Write the file in the first opset that torch supports; return the opset, and why not the lowest."""
    refusal: OnnxExporterError | None = None
    for opset in range(lowest, max(lowest, _NEWEST_OPSET) + 1):
        try:
            torch.onnx.export(  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
                Adapter(call),
                call.tensors,
                str(path),
                dynamo=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                opset_version=opset,
                input_names=call.inputs,
                dynamic_axes={name: dict(spec) for name, spec in axes.items()} or None,
            )
        except OnnxExporterError as error:
            refusal = refusal or error
        else:
            return opset, None if refusal is None else reason(refusal)
        finally:
            written.close()
    assert refusal is not None
    raise refusal


@contextlib.contextmanager
def _without_log() -> Generator[None]:
    """Keep torch from printing the graph that it fails on, which bypasses Python's streams."""
    core: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # the log has no public switch
    with (
        switched(core._jit_is_onnx_log_enabled, core._jit_set_onnx_log_enabled, False),
        replaced(core, "_jit_set_onnx_log_enabled", nothing),  # every export turns it on
    ):
        yield


def _raise_opset(model: ir.Model, opset: int) -> None:
    """Raise the model to a newer opset if that does not change its meaning."""
    facts = Facts(model)
    facts.infer()
    nodes: defaultdict[str, list[ir.Node]] = defaultdict(list)
    for scope in facts.scopes.values():
        for node in scope.graph:
            nodes[operator(node)].append(node)
    standard = {name: same for name, same in nodes.items() if "::" not in name}
    with contextlib.suppress(CannotRaise):
        Transactions(facts, Names.of(model), Borders()).raise_opset(plan(facts, standard, opset))


def _restore_inputs(model: ir.Model, call: ModuleCall, axes: Axes) -> None:
    """Add inputs that nothing in the graph reads: the tracer drops some of them, and callers feed all."""
    present = {value.name for value in model.graph.inputs}
    for index, (name, tensor) in enumerate(zip(call.inputs, call.tensors, strict=True)):
        if name not in present:
            dims = [axes.get(name, {}).get(axis, size) for axis, size in enumerate(tensor.shape)]
            kind = ir.TensorType(ir.DataType.from_numpy(to_array(tensor).dtype))
            model.graph.inputs.insert(index, ir.Value(name=name, type=kind, shape=ir.Shape(dims)))


def _scoped(modules: list[torch.nn.Module], entry: str) -> contextlib.AbstractContextManager[None]:
    """Push an entry with the index of the running module and its call number while tracing."""
    indices = {module: index for index, module in enumerate(modules)}
    calls: Counter[torch.nn.Module] = Counter()
    plain = torch.nn.Module.__call__

    def scoped(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = torch._C._get_tracing_state() if module in indices else None  # pyright: ignore  # no public name
        if state is None:
            return plain(module, *args, **kwargs)
        state.push_scope(f"Module::{entry}{indices[module]}x{calls[module]}")
        calls[module] += 1
        try:
            return plain(module, *args, **kwargs)
        finally:
            state.pop_scope()

    return replaced(torch.nn.Module, "__call__", scoped)  # hooks would be compiled along if torch scripts a module


def _set_origins(model: ir.Model, modules: list[torch.nn.Module], tree: LiveTree, entry: str) -> None:
    pattern = re.compile(rf"/{entry}(\d+)x(\d+)")
    known = {name for name, _ in cast("Iterable[tuple[str, torch.nn.Module]]", tree.root.named_modules())}
    for scope in scopes(model):
        for node in scope.graph:
            entries = pattern.findall(node.name or "")
            steps = [ModuleStep(modules[int(index)], int(call)) for index, call in entries]
            named = p.owner_of(p.read_scoped_name(node.name or "") or p.UNKNOWN)  # torch's own name of the module
            inner = named.removeprefix(f"{INNER}.")
            if steps or (inner != named and inner in known):
                set_origins(node, frozenset({tree.path(steps) if steps else inner}))
            else:
                set_origins(node, p.UNKNOWN, How.ROOT)


def _rename(model: ir.Model, entry: str) -> None:
    """Remove our entries and the adapter's module from all names; a name that is taken gets a number."""
    ours = re.compile(rf"/{entry}0x\d+/{INNER}(?=/)|/{entry}\d+x\d+")
    taken: Counter[str] = Counter()

    def plain(name: str) -> str:
        name = ours.sub("", name)
        while taken[name]:
            taken[name] += 1
            name = f"{name}_{taken[name] - 1}"
        taken[name] = 1
        return name

    for scope in scopes(model):
        for node in scope.graph:
            node.name = plain(node.name or node.op_type)
            for value in node.outputs:
                if value.name and not value.is_graph_output():
                    value.name = plain(value.name)
    for value in list(model.graph.initializers.values()):
        value.name = (value.name or "").removeprefix(f"{INNER}.")
