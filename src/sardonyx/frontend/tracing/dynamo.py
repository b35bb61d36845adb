"""Export with torch.export: translations of operators that the exporter lacks or gets wrong, and names of nodes."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast

import onnx
import onnx_ir as ir
import torch
from msgspec import Struct
from onnx_ir import serde
from onnx_ir.tensor_adapters import from_torch_dtype
from torch import _decomp
from torch._export import utils as _export_utils
from torch.fx import Interpreter, Node
from torch.fx.experimental import proxy_tensor
from torch.onnx._internal import _lazy_import
from torch.onnx._internal.exporter import _schemas
from torch.utils import _pytree as pytree

from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import nothing, replaced
from sardonyx.frontend.running import quietly
from sardonyx.frontend.tracing.adapter import INNER, Adapter, Axes, ModuleCall, check_dynamic
from sardonyx.frontend.tracing.decompositions import decompose_locally, is_overload
from sardonyx.frontend.tracing.graph_names import name_interface, settle
from sardonyx.frontend.tracing.module_tree import LiveTree, path_of, quoted_names
from sardonyx.ir.origins import set_origins
from sardonyx.ir.scopes import has_bodies, scopes
from sardonyx.ir.support import MAX_IR_VERSION
from sardonyx.ir.tensors import tensor_proto
from sardonyx.records import provenance as p
from sardonyx.records.provenance import NAME_SCOPES
from sardonyx.records.run import How

_PROMOTES = "_TypePromotionInterpreter"  # torch's pass that inserts casts


@contextlib.contextmanager
def shortcuts(*, stack_traces: bool) -> Generator[None]:
    """Export without strides in the metadata of every node, and without computing its shape a second time.

    A forward may call `.to(dtype)` on a module that has this type already. That is left out as well: in a trace, torch
    cannot exchange the parameters of a module.

    Args:
        stack_traces: Record the line of code of every node.
    """
    untyped: Any = torch.fx
    with (
        replaced(proxy_tensor, "_extract_tensor_metadata", nothing),
        replaced(Interpreter, "run_node", _recorded(Interpreter.run_node)),
        replaced(torch.nn.Module, "to", _unless_converted(torch.nn.Module.to)),
        contextlib.nullcontext() if stack_traces else replaced(untyped.config, "do_not_emit_stack_traces", True),
    ):
        yield


def _unless_converted(to: Any) -> Any:
    """Return `Module.to` that leaves a module alone which has the type and device already."""

    def run(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        untyped: Any = torch._C  # pyright: ignore[reportPrivateUsage]  # what torch's own method parses with
        device, dtype, *_ = untyped._nn._parse_to(*args, **kwargs)
        is_kept = all(
            device in (None, tensor.device) and (dtype in (None, tensor.dtype) or not tensor.is_floating_point())
            for tensor in (*self.parameters(), *self.buffers())
        )
        return self if is_kept else to(self, *args, **kwargs)

    return run


def _recorded(run_node: Any) -> Any:
    """Return a method that reuses the value that was recorded for a node, if its operands are the recorded ones.

    The pass that inserts casts runs the whole program with symbolic sizes, although it changes few of its nodes.
    """

    def run(self: Any, node: Any) -> Any:
        value = node.meta.get("val")
        if type(self).__name__ != _PROMOTES or node.op != "call_function" or value is None:
            return run_node(self, node)
        is_recorded = all(self.env.get(operand) is operand.meta.get("val") for operand in node.all_input_nodes)
        return value if is_recorded else run_node(self, node)

    return run


@contextlib.contextmanager
def quick_mismatches() -> Generator[None]:
    """Compare the operator of a node with that of a pattern of onnxscript before anything else.

    Its matcher lists the whole graph for each node and each pattern with several results, even if the node differs.
    """
    from onnxscript.rewriter import (  # pyright: ignore[reportMissingTypeStubs]
        _basics,  # pyright: ignore[reportPrivateUsage]  # no public name
        _matcher,  # pyright: ignore[reportPrivateUsage]
    )

    matcher: Any = _matcher.SimplePatternMatcher
    match = matcher.match

    def run(self: Any, model: Any, graph: Any, node: Any, **options: Any) -> Any:
        wanted = self.pattern.output_nodes[0].op_identifier()
        if wanted in (None, node.op_identifier()):
            return match(self, model, graph, node, **options)
        return _basics.MatchResult().fail("another operator")

    with replaced(matcher, "match", run):
        yield


TRANSLATIONS = "sardonyx.translations"  # the key in `ir.Model.meta`
_KEPT_CONSTANT_BYTES = 1 << 20  # of a constant that is not cut out
_MOST_VALUES = 300  # of an excerpt
_NUMBERS: dict[type, torch.dtype] = {
    torch.SymInt: torch.int64,
    torch.SymFloat: torch.float32,
    torch.SymBool: torch.bool,
}


class Operand(Struct, frozen=True):
    """A tensor that an operation reads, or a number that is computed from sizes."""

    name: str  # of the input of the excerpt
    dtype: int  # in ONNX
    shape: tuple[Any, ...] = ()  # integers, and expressions of sizes
    number: Any = None  # an expression of sizes, if it is one


class Operation(Struct, frozen=True):
    """An operation of the exported program, and the ONNX nodes it became."""

    name: str  # such as "aten.add.Tensor"
    args: tuple[Any, ...]  # constants, operands, and lists of them
    kwargs: Mapping[str, Any]
    results: tuple[int | None, ...]  # positions of the results that are read; None if it has one result
    excerpt: onnx.ModelProto | None  # None if the nodes are not known
    example: Mapping[str, int]  # sizes of the example, by symbol
    modules: list[str]  # one for each place where the operation occurs

    @property
    def operands(self) -> list[Operand]:
        """The operands, in the order of the arguments."""
        return list({each.name: each for each in _flat((self.args, tuple(self.kwargs.values())))}.values())


def _flat(value: Any) -> Iterator[Operand]:
    if isinstance(value, Operand):
        yield value
    elif isinstance(value, tuple):
        for each in cast("tuple[Any, ...]", value):
            yield from _flat(each)


def recorded(model: ir.Model) -> list[Operation] | None:
    """Return the operations of a graph that torch.export gave, once; None for other graphs."""
    meta: Any = model.meta
    translations: Translations | None = meta.pop(TRANSLATIONS, None)
    return None if translations is None else translations.operations()


class _NotCut(Exception):
    """The nodes read what is neither an operand nor a constant, or a type is written in another way."""


def _type(dtype: torch.dtype) -> int:
    """Return a type in ONNX; complex numbers are pairs there."""
    if dtype.is_complex:
        raise _NotCut
    try:
        return int(from_torch_dtype(dtype))
    except TypeError:
        raise _NotCut from None


class Translations:
    """The operations of an exported program with the nodes of its ONNX graph."""

    def __init__(self, program: Any, model: ir.Model) -> None:
        """Note which value is which, before any is renamed."""
        self._program, self._opsets = program, dict(model.opset_imports)
        graph, signature = model.graph, program.graph_signature
        named = (*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs))
        self._values: dict[Any, ir.Value] = {value.name: value for value in named}
        stored: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._values.update((name, self._values[key]) for name, key in stored.items() if key in self._values)

    def operations(self) -> list[Operation]:
        """Return the different operations."""
        found: dict[Any, Operation] = {}
        for node in self._program.graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                operation = _Cut(self, node).operation(self._opsets)
                excerpt = operation.excerpt and operation.excerpt.SerializeToString(deterministic=True)
                key = (operation.name, repr((operation.args, operation.kwargs)), excerpt)
                stack = node.meta.get("nn_module_stack") or {"": ("", None)}
                name = [*stack.values()][-1][0].removeprefix(INNER).removeprefix(".")
                found.setdefault(key, operation).modules.append(name)
        return list(found.values())

    def value(self, node: Node) -> ir.Value | None:
        """Return the value of an operation; one that returned it unchanged has renamed it."""
        if node.name in self._values:
            return self._values[node.name]
        writers = (None, node, node.args[0] if node.target is operator.getitem else node)
        for value in filter(None, map(self.value, node.users)):
            producer: Any = value.producer()
            if (producer and producer.meta.get("node", producer)) in writers:
                return value
        return None

    def results(self, node: Node) -> dict[Any, ir.Value | None]:
        """Return the value of an operation, or those of its values that are read, by position."""
        if not isinstance(node.meta.get("val"), tuple | list) or node.name in self._values:  # or a sequence in ONNX
            return {None: self.value(node)}
        return {user.args[1]: self.value(user) for user in node.users if user.target is operator.getitem}


class _Cut:
    """Cuts out one operation: the nodes between its operands and its results."""

    def __init__(self, translations: Translations, node: Node) -> None:
        self._translations, self._node = translations, node
        self._names: dict[ir.Value | None, str] = {None: ""}
        self._example: dict[str, int] = {}
        self._model = onnx.ModelProto(ir_version=MAX_IR_VERSION)

    def operation(self, opsets: Mapping[str, int]) -> Operation:
        """Return the operation with its nodes."""
        model, results = self._model, self._translations.results(self._node)
        model.opset_import.extend(onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items())
        target: Any = self._node.target
        name = str(target) if is_overload(target) else f"builtin.{getattr(target, '__name__', target)}"
        try:
            args = self._converted(self._node.args)
            kwargs = {key: self._converted(each) for key, each in self._node.kwargs.items()}
            model.graph.input.extend(onnx.ValueInfoProto(name=each) for each in self._names.values() if each)
            for tensor in filter(torch.is_tensor, pytree.tree_leaves(self._node.meta.get("val"))):
                _type(tensor.dtype)
            for value in results.values():
                self._write(value)
                model.graph.output.append(onnx.ValueInfoProto(name=self._names[value]))
        except _NotCut:
            return Operation(name, (), {}, (), None, {}, [])
        return Operation(name, args, kwargs, tuple(results), model, self._example, [])

    def _write(self, value: ir.Value | None) -> None:
        if value is None or len(self._names) > _MOST_VALUES:
            raise _NotCut
        if value in self._names:
            return
        node, tensor = value.producer(), value.const_value
        if node is None:
            if tensor is None or tensor.nbytes > _KEPT_CONSTANT_BYTES:
                raise _NotCut
            self._names[value] = f"c{len(self._names)}"
            self._model.graph.initializer.append(tensor_proto(self._names[value], tensor))
            return
        if has_bodies(node):
            raise _NotCut
        for operand in filter(None, node.inputs):
            self._write(operand)
        self._names.update((result, f"v{len(self._names) + i}") for i, result in enumerate(node.outputs))
        proto = serde.serialize_node(node)
        written = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain, attribute=proto.attribute)
        written.input.extend(self._names[operand] for operand in node.inputs)
        written.output.extend(self._names[result] for result in node.outputs)
        self._model.graph.node.append(written)

    def _converted(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self._operand(value)
        if isinstance(value, tuple | list):
            return tuple(map(self._converted, cast("tuple[Any, ...]", value)))
        if isinstance(value, torch.dtype):
            return _type(value)
        return value if isinstance(value, bool | int | float | str) else None

    def _operand(self, node: Node) -> Any:
        recorded, value = node.meta.get("val"), self._translations.value(node)
        if isinstance(recorded, bool | int | float):
            return recorded
        if value is None or not isinstance(recorded, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _NotCut
        name = self._names.setdefault(value, f"x{len(self._names)}")
        if isinstance(recorded, torch.Tensor):
            return Operand(name, _type(recorded.dtype), tuple(map(self._size, recorded.shape)))
        return Operand(name, _type(_NUMBERS[type(recorded)]), (), self._size(recorded))

    def _size(self, size: Any) -> Any:
        if isinstance(size, int | float):
            return size
        expression = size.node.expr
        if size.node.has_hint() and expression.is_Symbol:
            self._example[str(expression)] = int(size.node.hint)
        return expression


_OLDEST_OPSET = 18
_CONV3D_DEFAULTS: Any = (None, None, None, [1], [0], [1], 1)  # input, weight, bias, stride, padding, dilation, groups
BFLOAT16_OPSET = 22  # the first whose convolutions, poolings and recurrences accept bfloat16


def export(call: ModuleCall, tree: LiveTree, axes: Axes, opset: int | None) -> tuple[ir.Model, list[str]]:
    """Return the module as an ONNX graph with origins on the nodes whose module torch recorded, and notes on sizes."""
    if opset is not None and opset < _OLDEST_OPSET:  # torch would convert the graph and lose the module stacks
        raise ModelError(
            f"torch.export writes opset {_OLDEST_OPSET} and later, not {opset}", hint=f"use `opset={_OLDEST_OPSET}`"
        )
    dynamic = tuple(dict.fromkeys(axes.get(name, {}), torch.export.Dim.AUTO) for name in call.inputs)
    shapes = (dynamic,) if dynamic else None
    config: Any = torch._dynamo.config  # pyright: ignore[reportPrivateUsage]  # no public name
    # With symbolic sizes, making and checking entries of the cache takes longer than computing all shapes anew.
    uncached = config.patch(fake_tensor_cache_enabled=False) if any(dynamic) else contextlib.nullcontext()
    # attention kernels for training have another memory layout
    with quietly(), quoted_names(), torch.no_grad(), uncached, _recurrences_of_any_length():
        captured: Any = torch.export.export(Adapter(call), call.tensors, dynamic_shapes=shapes, strict=False)
        check_dynamic(captured, call.inputs, axes)
        _replace_conv3d_without_bias(captured.graph_module)
        decompose_locally(captured)
        with without_repetition():
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


@contextlib.contextmanager
def without_repetition() -> Generator[None]:
    """Read torch's translations once a process, and list the operators of other libraries once an export.

    For each export torch parses the sources of its 500 translations, which takes most of the time for a small module.
    """
    lazy: Any = _lazy_import  # torch's own types have gaps
    with contextlib.ExitStack() as stack:
        for owner, name, once in (
            (lazy.onnxscript_apis, "get_torchlib_ops", _remembered),
            (_schemas, "op_signature_from_function", _remembered),
            (_export_utils, "_materialize_cpp_cia_ops", functools.cache),
        ):
            if hasattr(owner, name):  # another version of torch may not have it
                stack.enter_context(replaced(owner, name, once(getattr(owner, name))))
        yield


@functools.cache
def _remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a cache that lives as long as the process."""
    return functools.cache(function)


@contextlib.contextmanager
def _recurrences_of_any_length() -> Generator[None]:
    """Compute the shapes of an LSTM or GRU without its steps: torch runs them one by one, which fixes the length."""
    untyped: Any = _decomp  # torch's own types have gaps
    lstm: Any = torch.ops.aten.lstm.input
    gru: Any = torch.ops.aten.gru.input
    keys = torch._C.DispatchKey  # pyright: ignore[reportPrivateUsage]  # no public name

    def lstm_shapes(x: Any, states: Any, *rest: Any) -> tuple[Any, ...]:
        return _recurrent_output(x, states[0], *rest[-2:]), *map(torch.empty_like, states)

    def gru_shapes(x: Any, state: Any, *rest: Any) -> tuple[Any, ...]:
        return _recurrent_output(x, state, *rest[-2:]), torch.empty_like(state)

    with contextlib.ExitStack() as stack:
        for operator, shapes in ((lstm, lstm_shapes), (gru, gru_shapes)):
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
    stacks = {node.name: node.meta.get("nn_module_stack") for node in program.graph.nodes}
    for scope in scopes(model):
        for node in scope.graph:
            operation = node.metadata_props.get(NAME_SCOPES, "").rpartition("'")[0].rpartition("'")[2]
            stack = stacks.get(operation) if scope.holder is None else None
            path = path_of(stack, tree) if stack else None
            if path is not None:
                set_origins(node, frozenset({path}))
            else:
                set_origins(node, p.UNKNOWN, How.ROOT)


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
