"""Exports through torch's tracer, with every running module written into the names the exporter gives its nodes.

The tracer keeps a stack of scopes and spells it into each node's name. Its own entries are attribute names, which do
not tell `a.conv` from `b.conv` nor a first call from a second, so hooks push an entry of ours in front of each.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import weakref
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

import onnx_ir as ir
import torch

from sardonyx import provenance as p
from sardonyx.graph import io
from sardonyx.graph.origins import set_origins
from sardonyx.graph.scopes import scopes
from sardonyx.record import How
from sardonyx.source.quiet import quietly
from sardonyx.source.tracing.adapter import INNER, Adapter, Call
from sardonyx.source.tracing.engine import to_array
from sardonyx.source.tracing.interface import name_interface
from sardonyx.source.tracing.live import LiveTree, Step
from sardonyx.source.tracing.symbols import Axes

_ENTRY = "sardonyx"  # what our entries begin with, where no module is called so
_DEFAULT_OPSET = 18


def export(call: Call, tree: LiveTree, axes: Axes, opset: int | None) -> tuple[ir.Model, list[str]]:
    """The module as an ONNX graph whose nodes have origins where the tracer saw a module run them."""
    modules = list(tree.root.modules())
    adapter = Adapter(call)
    folder = tempfile.TemporaryDirectory(prefix="sardonyx-")
    path = Path(folder.name) / "traced.onnx"
    entry = _entry(tree.root)
    with quietly(), _scoped(modules, entry):
        torch.onnx.export(  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
            adapter,
            call.tensors,
            str(path),
            dynamo=False,
            do_constant_folding=False,
            opset_version=opset or _DEFAULT_OPSET,
            input_names=call.inputs,
            dynamic_axes={name: dict(spec) for name, spec in axes.items()} or None,
        )
    model = io.load(path)
    _correct_bfloat16(model)
    weakref.finalize(model, folder.cleanup)  # the weights stay in the file, which lives as long as the model does
    _place(model, modules, tree, entry)
    _rename(model, entry)
    _restore_inputs(model, call, axes)
    name_interface(model, call)
    return model, []


def _correct_bfloat16(model: ir.Model) -> None:
    """Cast to bfloat16 where torch means it: its tracer writes the number that is complex128 in ONNX, where no cast is.

    The number is in scalar_type_analysis.cpp of torch 2.13.
    """
    for scope in scopes(model):
        for node in scope.graph:
            if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.COMPLEX128:
                node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.BFLOAT16))


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

    def enter(module: torch.nn.Module, _args: object) -> None:
        if (state := _tracing()) is not None:
            state.push_scope(f"Module::{entry}{places[module]}x{calls[module]}")
            calls[module] += 1

    def leave(_module: torch.nn.Module, _args: object, _result: object) -> None:
        if (state := _tracing()) is not None:
            state.pop_scope()

    handles = [module.register_forward_pre_hook(enter, prepend=True) for module in modules]
    handles += [module.register_forward_hook(leave, always_call=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tracing() -> Any:
    return torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage]  # the tracer has no public face


def _place(model: ir.Model, modules: list[torch.nn.Module], tree: LiveTree, entry: str) -> None:
    pattern = re.compile(rf"/{entry}(\d+)x(\d+)")
    for scope in scopes(model):
        for node in scope.graph:
            entries = pattern.findall(node.name or "")
            steps = [Step(modules[int(place)], int(call)) for place, call in entries]
            if steps:
                set_origins(node, frozenset({tree.path(steps)}))
            else:
                set_origins(node, p.UNKNOWN, How.ROOT)


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


def _free(name: str, taken: Counter[str]) -> str:
    """The name, or the name with the first number that makes it new."""
    taken[name] += 1
    if taken[name] == 1:
        return name
    return _free(f"{name}_{taken[name] - 1}", taken)
