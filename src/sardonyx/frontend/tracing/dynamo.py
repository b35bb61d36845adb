"""Exports with torch.export, which records the module stack of every operation."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any, cast

import onnx_ir as ir
import torch
from torch import _decomp
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from sardonyx import provenance as p
from sardonyx.errors import ModelError
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.adapter import INNER, Adapter, Call
from sardonyx.frontend.tracing.decompositions import decompose_locally
from sardonyx.frontend.tracing.graph_names import Axes, FixedDim, name_interface, settle
from sardonyx.frontend.tracing.module_tree import LiveTree, path_of, quoted_names
from sardonyx.frontend.tracing.shortcuts import quick_mismatches
from sardonyx.frontend.tracing.translations import TRANSLATIONS, Translations
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import scopes
from sardonyx.provenance.codec import NAME_SCOPES
from sardonyx.records.run import How

_OLDEST_OPSET = 18
_CONV3D_DEFAULTS: Any = (None, None, None, [1], [0], [1], 1)  # input, weight, bias, stride, padding, dilation, groups
BFLOAT16_OPSET = 22  # the first whose convolutions, poolings and recurrences accept bfloat16


def export(call: Call, tree: LiveTree, axes: Axes, opset: int | None) -> tuple[ir.Model, list[str]]:
    """Return the module as an ONNX graph with origins on the nodes whose module torch recorded, and notes on sizes."""
    if opset is not None and opset < _OLDEST_OPSET:  # torch would convert the graph and lose the module stacks
        raise ModelError(
            f"torch.export writes opset {_OLDEST_OPSET} and later, not {opset}", hint=f"use `opset={_OLDEST_OPSET}`"
        )
    dynamic = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.AUTO) for name in call.inputs)
    shapes = (dynamic,) if dynamic else None
    # attention kernels for training have another memory layout
    with (
        quietly(),
        quoted_names(),
        torch.no_grad(),
        _without_fake_tensor_cache(any(dynamic)),
        _recurrences_of_any_length(),
    ):
        captured: Any = torch.export.export(Adapter(call), call.tensors, dynamic_shapes=shapes, strict=False)
        _check_dynamic(captured, call.inputs, axes)
        _replace_conv3d_without_bias(captured.graph_module)
        decompose_locally(captured)
        program: Any = torch.onnx.export(  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps
            captured,
            (),
            dynamo=True,
            optimize=False,
            verbose=False,
            opset_version=opset or (BFLOAT16_OPSET if torch.bfloat16 in call.dtypes else None),
        )
    model: ir.Model = program.model
    model.meta[TRANSLATIONS] = Translations(program.exported_program, model)
    _set_origins(model, program.exported_program, tree)
    _rename_parameters(model, tree.root)
    name_interface(model, call)
    ranges = {str(symbol): (limits.lower, limits.upper) for symbol, limits in captured.range_constraints.items()}
    return model, settle(model, axes, ranges, getattr(captured, "_guards_code", ()))  # it has no public name


def _check_dynamic(captured: Any, names: Sequence[str], axes: Axes) -> None:
    """Raise FixedDim if torch fixed the size of a requested dimension: translating the graph takes most of the time."""
    placeholders = captured.graph.find_nodes(op="placeholder")[-len(names) :] if names else ()
    for name, node in zip(names, placeholders, strict=True):
        for axis, dim in axes.get(name, {}).items():
            if is_concrete_int(size := node.meta["val"].shape[axis]):
                raise FixedDim(f"{name}:{axis}", dim, int(size))


def _without_fake_tensor_cache(is_dynamic: bool) -> contextlib.AbstractContextManager[object]:
    """Compute the shapes of every operation anew: with symbolic sizes, making and checking entries takes longer."""
    config: Any = torch._dynamo.config  # pyright: ignore[reportPrivateUsage]  # no public name
    return config.patch(fake_tensor_cache_enabled=False) if is_dynamic else contextlib.nullcontext()


@contextlib.contextmanager
def _recurrences_of_any_length() -> Generator[None]:
    """Compute the shapes of an LSTM or GRU without its steps: torch runs them one by one, which fixes the length."""
    untyped: Any = _decomp  # torch's own types have gaps
    lstm: Any = torch.ops.aten.lstm.input
    gru: Any = torch.ops.aten.gru.input
    keys = torch._C.DispatchKey  # pyright: ignore[reportPrivateUsage]  # no public name
    with contextlib.ExitStack() as stack:
        for operator, shapes in ((lstm, _lstm_shapes), (gru, _gru_shapes)):
            stack.callback(operator._dispatch_cache.clear)
            stack.enter_context(_updated(untyped.decomposition_table, {operator: shapes}))
            kernels = {keys.CompositeImplicitAutograd: shapes, keys.Autograd: shapes}
            stack.enter_context(_updated(operator.py_kernels, kernels))
            operator._dispatch_cache.clear()
        yield


@contextlib.contextmanager
def _updated(table: dict[Any, Any], entries: dict[Any, Any]) -> Generator[None]:
    before = {key: table[key] for key in entries if key in table}
    table.update(entries)
    try:
        yield
    finally:
        for key in entries:
            del table[key]
        table.update(before)


def _lstm_shapes(x: Any, states: Any, *rest: Any) -> tuple[Any, ...]:
    return _recurrent_output(x, states[0], *rest[-2:]), *map(torch.empty_like, states)


def _gru_shapes(x: Any, state: Any, *rest: Any) -> tuple[Any, ...]:
    return _recurrent_output(x, state, *rest[-2:]), torch.empty_like(state)


def _recurrent_output(x: Any, state: Any, bidirectional: bool, batch_first: bool) -> Any:
    """Return the states of all steps, which are first in memory."""
    x = x.transpose(0, 1) if batch_first else x
    output = x.new_empty((*x.shape[:2], (1 + bidirectional) * state.shape[2]))
    return output.transpose(0, 1) if batch_first else output


def optimized_by_torch(model: ir.Model) -> ir.Model | None:
    """Return a copy of the graph as `torch.onnx.export` writes it by default, or None if that fails.

    It runs its own optimizer at the end, which this module leaves out: it keeps no module for the nodes that it makes.
    """
    from onnxscript import optimizer  # pyright: ignore[reportMissingTypeStubs]

    copy = model.clone()
    try:
        with quietly(), quick_mismatches():
            optimizer.optimize(copy)  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # only a figure to compare with depends on it
        return None
    return copy


def _replace_conv3d_without_bias(module: Any) -> None:
    """Call the general convolution instead: torch's translation of a 3D one adds a bias of shape (channels, 2)."""
    for graph in (child.graph for child in module.modules() if isinstance(child, torch.fx.GraphModule)):
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.conv3d.default):
            tensor, weight, bias, stride, padding, dilation, groups = (*node.args, *_CONV3D_DEFAULTS[len(node.args) :])
            if bias is None and not node.kwargs:
                node.target = torch.ops.aten.convolution.default
                node.args = (tensor, weight, None, stride, padding, dilation, False, [0], groups)


def _set_origins(model: ir.Model, program: Any, tree: LiveTree) -> None:
    """Give every node the module of the operation it was exported from."""
    stacks = {node.name: node.meta.get("nn_module_stack") for node in program.graph.nodes}
    for scope in scopes(model):
        for node in scope.graph:
            stack = stacks.get(_operation(node)) if scope.holder is None else None
            path = path_of(stack, tree) if stack else None
            if path is not None:
                set_origins(node, frozenset({path}))
            else:
                set_origins(node, p.UNKNOWN, How.ROOT)


def _operation(node: ir.Node) -> str:
    """Return the name of the fx node an ONNX node was exported from: the last of its scopes."""
    return node.metadata_props.get(NAME_SCOPES, "").rpartition("'")[0].rpartition("'")[2]


def _rename_parameters(model: ir.Model, root: torch.nn.Module) -> None:
    """Rename initializers to their parameter names in the module; a shared parameter gets its first name."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    everything: Any = (*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False))
    for name, tensor in everything:
        names[f"{INNER}.{name}"] = first.setdefault(id(tensor), name)
    for value in list(model.graph.initializers.values()):
        name = cast(str, value.name)
        plain = names.get(name, name.removeprefix(f"{INNER}."))
        if plain not in model.graph.initializers:
            value.name = plain
