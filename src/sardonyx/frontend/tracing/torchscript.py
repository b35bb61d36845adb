"""Exports through torch's tracer, with every running module written into the names the exporter gives its nodes.

The tracer keeps a stack of scopes and spells it into each node's name. Its own entries are attribute names, which do
not tell `a.conv` from `b.conv` nor a first call from a second, so an entry of ours is pushed in front of each.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
import torch
from torch.onnx.errors import OnnxExporterError

from sardonyx import provenance as p
from sardonyx.errors import ModelError, reason
from sardonyx.frontend.module_state import Written, uncompiled
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.adapter import INNER, Adapter, Call
from sardonyx.frontend.tracing.dynamo import BFLOAT16_OPSET
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.frontend.tracing.graph_names import name_interface
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep
from sardonyx.frontend.tracing.script_symbolics import corrected_symbolics
from sardonyx.frontend.tracing.symbols import Axes
from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.module_borders import Borders
from sardonyx.ir.naming import Names
from sardonyx.ir.opsets.adapter_base import CannotRaise
from sardonyx.ir.opsets.raising import plan
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import operator, scopes
from sardonyx.ir.transaction import Transactions
from sardonyx.records.run import How

_ENTRY = "sardonyx"  # what our entries begin with, where no module is called so
_DEFAULT_OPSET = 18
_NEWEST_OPSET = 20  # that torch's tracer writes


def export(call: Call, tree: LiveTree, axes: Axes, opset: int | None) -> tuple[ir.Model, list[str]]:
    """The module as an ONNX graph whose nodes have origins where the tracer saw a module run them, and notes on it.

    Raises:
        ModelError: torch needs a newer opset than the one that was asked for.
    """
    modules, entry = list(tree.root.modules()), _entry(tree.root)
    written = call.rehearse()
    folder = tempfile.TemporaryDirectory(prefix="sardonyx-")
    path = Path(folder.name) / "traced.onnx"
    scoped = _scoped([] if _is_quantized(modules) else modules, entry)
    with quietly(), _without_log(), corrected_symbolics(), uncompiled(), scoped:
        used, refusal = _lowest_opset(call, axes, path, opset or _DEFAULT_OPSET, written)
    if refusal is not None and opset is not None:
        raise ModelError(f"torch cannot export the model at opset {opset}: {refusal}", hint=f"`opset={used}` works")
    model = io.load(path)
    _correct_bfloat16(model)
    weakref.finalize(model, folder.cleanup)  # the weights stay in the file, which lives as long as the model does
    _place(model, modules, tree, entry)
    _rename(model, entry)
    _unwrite(model, tree.root, written)
    _restore_inputs(model, call, axes)
    name_interface(model, call)
    notes = [] if refusal is None else [f"opset {used}, because at {_DEFAULT_OPSET}: {refusal}"]
    if opset is None and torch.bfloat16 in call.dtypes:
        _raise_opset(model, BFLOAT16_OPSET)
    return model, notes


def _lowest_opset(call: Call, axes: Axes, path: Path, lowest: int, written: Written) -> tuple[int, str | None]:
    """Write the file in the first opset that torch has all operators for; which it is, and why not the lowest."""
    refusal: OnnxExporterError | None = None
    for opset in range(lowest, max(lowest, _NEWEST_OPSET) + 1):
        try:
            torch.onnx.export(  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
                Adapter(call),
                call.tensors,
                str(path),
                dynamo=False,
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


def _nothing(*_: object) -> None:
    """A log that keeps nothing."""


@contextlib.contextmanager
def _without_log() -> Generator[None]:
    """Keep torch from printing the graph that it fails on, which it does below Python's streams."""
    core: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # the log has no public switch that works
    log = core._jit_onnx_log
    core._jit_onnx_log = _nothing
    try:
        yield
    finally:
        core._jit_onnx_log = log


def _is_quantized(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether torch traces the model twice, because weights are in a form of its own; it would refuse our entries."""
    return any(hasattr(module, "_packed_params") for module in modules)


def _correct_bfloat16(model: ir.Model) -> None:
    """Cast to bfloat16 where torch means it: its tracer writes the number that is complex128 in ONNX, where no cast is.

    The number is in scalar_type_analysis.cpp of torch 2.13.
    """
    for scope in scopes(model):
        for node in scope.graph:
            if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.COMPLEX128:
                node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.BFLOAT16))


def _raise_opset(model: ir.Model, opset: int) -> None:
    """Write the model in a newer operator set, where it stays the same."""
    facts = Facts(model)
    facts.infer()
    nodes: defaultdict[str, list[ir.Node]] = defaultdict(list)
    for scope in facts.scopes.values():
        for node in scope.graph:
            nodes[operator(node)].append(node)
    standard = {name: found for name, found in nodes.items() if "::" not in name}
    with contextlib.suppress(CannotRaise):
        Transactions(facts, Names.of(model), Borders()).raise_opset(plan(facts, standard, opset))


def _restore_inputs(model: ir.Model, call: Call, axes: Axes) -> None:
    """Put inputs back that nothing in the graph reads: the tracer drops some of them, and callers feed all."""
    held = {value.name for value in model.graph.inputs}
    for place, (name, tensor) in enumerate(zip(call.inputs, call.tensors, strict=True)):
        if name not in held:
            dims = [axes.get(name, {}).get(axis, size) for axis, size in enumerate(tensor.shape)]
            kind = ir.TensorType(ir.DataType.from_numpy(to_array(tensor).dtype))
            model.graph.inputs.insert(place, ir.Value(name=name, type=kind, shape=ir.Shape(dims)))


def _entry(root: torch.nn.Module) -> str:
    """A word that is in no module's name."""
    names = "".join(name for name, _ in cast("Iterable[tuple[str, torch.nn.Module]]", root.named_modules()))
    word = _ENTRY
    while word in names:
        word += "y"
    return word


@contextlib.contextmanager
def _scoped(modules: list[torch.nn.Module], entry: str) -> Generator[None]:
    """While tracing, push which module runs and for which time."""
    places = {module: place for place, module in enumerate(modules)}
    calls: Counter[torch.nn.Module] = Counter()

    def scoped(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        state = _tracing() if module in places else None
        if state is None:
            return plain(module, *args, **kwargs)
        state.push_scope(f"Module::{entry}{places[module]}x{calls[module]}")
        calls[module] += 1
        try:
            return plain(module, *args, **kwargs)
        finally:
            state.pop_scope()

    plain = torch.nn.Module.__call__
    torch.nn.Module.__call__ = scoped  # hooks of ours would be compiled with a module that torch scripts on its way
    try:
        yield
    finally:
        torch.nn.Module.__call__ = plain


def _tracing() -> Any:
    return torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage]  # the tracer has no public face


def _place(model: ir.Model, modules: list[torch.nn.Module], tree: LiveTree, entry: str) -> None:
    pattern = re.compile(rf"/{entry}(\d+)x(\d+)")
    known = {name for name, _ in cast("Iterable[tuple[str, torch.nn.Module]]", tree.root.named_modules())}
    for scope in scopes(model):
        for node in scope.graph:
            entries = pattern.findall(node.name or "")
            steps = [ModuleStep(modules[int(place)], int(call)) for place, call in entries]
            named = _named(node) if not steps else None
            if steps:
                set_origins(node, frozenset({tree.path(steps)}))
            elif named in known:
                set_origins(node, frozenset({named}))
            else:
                set_origins(node, p.UNKNOWN, How.ROOT)


def _named(node: ir.Node) -> str | None:
    """The module that torch's own name for a node tells of, where it tells of one."""
    found = p.owner_of(p.read_scoped_name(node.name or "") or p.UNKNOWN)
    return found.removeprefix(f"{INNER}.") if found.startswith(f"{INNER}.") else None


def _rename(model: ir.Model, entry: str) -> None:
    """Take our entries out of all names again, and the module that held the model."""
    ours = re.compile(rf"/{entry}0x\d+/{INNER}(?=/)|/{entry}\d+x\d+")
    taken: Counter[str] = Counter()
    for scope in scopes(model):
        for node in scope.graph:
            node.name = _free(ours.sub("", node.name or node.op_type), taken)
            for value in node.outputs:
                if value.name and not value.is_graph_output():
                    value.name = _free(ours.sub("", value.name), taken)
    for value in list(model.graph.initializers.values()):
        value.name = (value.name or "").removeprefix(f"{INNER}.")


def _unwrite(model: ir.Model, root: torch.nn.Module, written: Written) -> None:
    """Give initializers the contents that a traced run wrote over: the graph writes over them once more."""
    state = cast("Iterable[tuple[str, torch.Tensor]]", (*root.named_parameters(), *root.named_buffers()))
    for name, tensor in state:
        value = model.graph.initializers.get(name)
        if value is not None and written.covers(tensor):
            value.const_value = ir.tensor(to_array(tensor.clone()), name=name)


def _free(name: str, taken: Counter[str]) -> str:
    """The name, or the name with the first number that makes it new."""
    taken[name] += 1
    if taken[name] == 1:
        return name
    return _free(f"{name}_{taken[name] - 1}", taken)
