"""A torch module that answers like a session: outputs as arrays, and the values of every module on the way."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sardonyx.errors import RuntimeFailure, UsageError, reason
from sardonyx.frontend.module_state import OperationMode
from sardonyx.frontend.running import Widening, run, widen, widened_copy
from sardonyx.frontend.tracing.adapter import ModuleCall, stored_tensors
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.frontend.tracing.rehearsal import CallsInARow
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.runtime import Array, Choice, Feeds, Value

_TIE_WIDTH = 16.0  # multiples of the type's epsilon within which scores count as equal up to rounding
_ATEN: Any = torch.ops.aten
_SORTING = frozenset((_ATEN.topk.default, _ATEN.sort.default, _ATEN.sort.stable))
_SELECTING = frozenset((_ATEN.argmax.default, _ATEN.argmin.default, _ATEN.max.dim, _ATEN.min.dim))


def widened_in_turn(module: nn.Module) -> nn.Module:
    """Return a copy that shares the module's weights and has each submodule's in double precision only while it runs.

    This avoids a second copy of all weights. Weights that are read without calling their submodule stay single there,
    or the run fails.
    """
    everything: list[Tensor] = [*module.parameters(), *module.buffers()]
    shared = copy.deepcopy(module, {id(tensor): tensor for tensor in everything})
    for part in shared.modules():
        if type(part) is nn.Embedding and part.max_norm is None:  # only the rows that it returns
            part.register_forward_hook(lambda _part, _args, output: output.double())
        elif any(tensor.is_floating_point() for tensor in _own(part).values()):
            hooks = _DoubleWeights()
            part.register_forward_pre_hook(hooks.before)
            part.register_forward_hook(hooks.after, always_call=True)
    return shared


class _DoubleWeights:
    """Forward hooks that widen a submodule's weights; a stack, because a submodule may call itself."""

    def __init__(self) -> None:
        self._saved: list[dict[str, Tensor]] = []

    def before(self, part: nn.Module, _args: object) -> None:
        """Replace the weights by double-precision ones."""
        own = _own(part)
        self._saved.append(own)
        for name, tensor in own.items():
            if tensor.is_floating_point():
                _put(part, name, tensor.detach().double())

    def after(self, part: nn.Module, _args: object, _output: object) -> None:
        """Restore the weights."""
        for name, tensor in self._saved.pop().items():
            _put(part, name, tensor)


def _own(part: nn.Module) -> dict[str, Tensor]:
    tables: Any = (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]  # named_parameters() skips duplicates
    return {name: tensor for table in tables for name, tensor in table.items() if isinstance(tensor, torch.Tensor)}


def _put(part: nn.Module, name: str, tensor: Tensor) -> None:
    """Set a weight without the module's checks: it accepts only a Parameter in place of a Parameter."""
    tables: Any = (part._parameters, part._buffers)  # pyright: ignore[reportPrivateUsage]
    next(table for table in tables if name in table)[name] = tensor


class IndexOrder(OperationMode):
    """Makes topk and sort order equal scores by index.

    `torch.topk` and `torch.sort` do not define the order of equal scores; ONNX's TopK takes the lower index first. With
    this rule a module gives the one result that both definitions allow.

    Args:
        sample: If given, scores that are equal up to rounding are ordered randomly, with this seed.

    Attributes:
        choices: Scores, axis and indices of every selection by score so far.
    """

    def __init__(self, sample: int | None = None) -> None:
        super().__init__()
        self._generator = None if sample is None else torch.Generator().manual_seed(sample)
        self.choices: list[tuple[Tensor, int, Tensor]] = []

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operation, or a stable sort instead of it."""
        if func in _SORTING and args[0].dim():
            return self._sorted(_arguments(func, args, kwargs))
        if func in _SELECTING and args[0].dim():
            return self._selected(func, _arguments(func, args, kwargs))
        return func(*args, **kwargs)

    def _sorted(self, arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        scores, axis = arguments["self"], arguments["dim"]
        descending = arguments.get("largest", arguments.get("descending"))
        order = torch.sort(self._with_noise(scores), dim=axis, descending=descending, stable=True).indices
        indices = order.narrow(axis, 0, arguments.get("k", order.shape[axis])).contiguous()
        self.choices.append((scores, axis, indices))
        return scores.gather(axis, indices), indices

    def _selected(self, func: Any, arguments: Mapping[str, Any]) -> Any:
        whole = arguments["dim"] is None
        scores, axis = (arguments["self"].flatten(), 0) if whole else (arguments["self"], arguments["dim"])
        result = func(self._with_noise(scores), axis, True)
        indices = result if isinstance(result, Tensor) else result[1]
        self.choices.append((scores, axis, indices))
        chosen = [indices] if isinstance(result, Tensor) else [scores.gather(axis, indices), indices]
        if whole and arguments["keepdim"]:
            chosen = [tensor.reshape([1] * arguments["self"].dim()) for tensor in chosen]
        elif not arguments["keepdim"]:
            chosen = [tensor.squeeze(axis) for tensor in chosen]
        return chosen[0] if isinstance(result, Tensor) else tuple(chosen)

    def _with_noise(self, scores: Tensor) -> Tensor:
        """Return the scores with random last digits if a sample was requested."""
        if self._generator is None or not scores.is_floating_point():
            return scores
        size = scores.abs().nan_to_num(0.0, 0.0, 0.0)
        noise = torch.rand(scores.shape, generator=self._generator).to(scores.device, scores.dtype) * 2 - 1
        return scores + noise * (_TIE_WIDTH * torch.finfo(scores.dtype).eps) * (size + size.mean())


def _arguments(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an operation by name, including defaults."""
    schema = func._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {**defaults, **dict(zip((argument.name for argument in schema), args, strict=False)), **kwargs}


class TorchEngine:
    """Runs a module on arrays, under the input and output names of its exported graph.

    Args:
        in_float32: Compute float16 and bfloat16 in float32, with a copy of the module.
        ordered: Order equal scores by index, as ONNX operators do; torch does not define their order.
    """

    def __init__(self, call: ModuleCall | CallsInARow, *, in_float32: bool = False, ordered: bool = False) -> None:
        self._call: ModuleCall | CallsInARow = call.with_module(widened_copy(call.module)) if in_float32 else call
        self._in_float32, self._ordered = in_float32, ordered
        self._dtypes = [tensor.dtype for tensor in call.tensors]
        self._attended: list[Feeds] = []  # inputs on which every attention row saw a key

    @property
    def name(self) -> str:
        """Torch's version and the mode of the module."""
        mode = "train" if self._call.module.training else "eval"
        return f"PyTorch {torch.__version__}, {mode} mode{', in float32' if self._in_float32 else ''}"

    def run(self, feeds: Feeds) -> list[Value]:
        """Return all outputs in the order of the graph's."""
        with UnattendedRows(replace=False) as rows:
            outputs = self._run(feeds, self._order())
        if not rows.found:
            self._attended.append(feeds)
        return outputs

    def run_unattended(self, feeds: Feeds) -> tuple[list[Value], frozenset[int]] | None:
        """Return all outputs with random numbers in fully masked attention rows, and the lengths of these attentions.

        Return None if there is no such row; the module does not run if an earlier run has shown that.
        """
        if any(all(known[name] is feeds[name] for name in self._call.inputs) for known in self._attended):
            return None
        with UnattendedRows() as rows:
            outputs = self._run(feeds, self._order())
        return (outputs, frozenset(rows.lengths)) if rows.found else None

    def choices(self, feeds: Feeds) -> list[Choice]:
        """Return the scores and indices of everything that the module selects by score."""
        order = IndexOrder()
        self._run(feeds, order)
        return [Choice(to_array(scores), axis, to_array(indices)) for scores, axis, indices in order.choices]

    def run_shuffled(self, feeds: Feeds, sample: int) -> list[Value] | None:
        """Return all outputs with a random order of scores that are equal up to rounding; None if nothing is sorted."""
        order = IndexOrder(sample)
        outputs = self._run(feeds, order)
        return outputs if order.choices else None

    def _run(self, feeds: Feeds, mode: contextlib.AbstractContextManager[object]) -> list[Value]:
        tensors = self._tensors(feeds)
        widening = Widening() if self._in_float32 else contextlib.nullcontext()
        try:
            with mode, widening:
                return [to_array(tensor) for tensor in self._call.run(tensors)]
        except Exception as error:  # a forward is the user's code and may raise anything
            raise RuntimeFailure(f"the module does not accept these inputs: {reason(error)}") from error

    def _order(self) -> contextlib.AbstractContextManager[object]:
        return IndexOrder() if self._ordered else contextlib.nullcontext()

    def run_in_double(self, feeds: Feeds) -> list[Value] | None:
        """Return all outputs, computed in double precision by a copy of the module; None if it cannot."""
        for in_turn in (True, False) if self._call.state is None else (False,):
            try:
                whole = None if in_turn else copy.deepcopy(self._call.module).double()
                precise = self._call.with_module(widened_in_turn(self._call.module) if whole is None else whole)
                doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in self._tensors(feeds)]
                with self._order():
                    return [to_array(tensor) for tensor in precise.run(doubled)]
            except Exception:  # the module's code may require its own types
                continue
        return None

    def _tensors(self, feeds: Feeds) -> list[torch.Tensor]:
        tensors: list[torch.Tensor] = []
        for name, dtype in zip(self._call.inputs, self._dtypes, strict=True):
            array: Any = np.array(feeds[name])  # copied: a module may write into its inputs
            if dtype is torch.bfloat16:
                tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)  # pyright: ignore[reportUnknownMemberType]
            else:
                tensor = torch.from_numpy(array).to(dtype)  # pyright: ignore[reportUnknownMemberType]  # torch's own gap
            tensors.append(widen(tensor) if self._in_float32 else tensor)
        return tensors


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as a numpy array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.resolve_conj().resolve_neg().numpy()


# A softmax over no keys is undefined: kernels return zeros, the mean of all values, or NaN. A run with other numbers in
# rows whose keys are all masked shows which outputs depend on them.

_SOFTMAX = ("_softmax", "_safe_softmax")
_FUSED = "_scaled_dot_product"  # prefix of the kernels of scaled_dot_product_attention
_MASKS = ("attn_mask", "attn_bias")  # their names for the mask


class UnattendedRows(OperationMode):
    """Replaces the result of every attention row whose keys are all masked, or only finds these rows.

    Attributes:
        found: Whether there was such a row.
        lengths: Numbers of queries and keys of the attentions with such rows.
    """

    def __init__(self, *, replace: bool = True) -> None:
        super().__init__()
        self.found, self._replaces = False, replace
        self.lengths: set[int] = set()
        self._generator = torch.Generator().manual_seed(0)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operation, then replace the rows."""
        result, name = func(*args, **kwargs), func.__name__.partition(".")[0]
        if name in _SOFTMAX:
            hidden = _hidden(args[0]).all(args[1], keepdim=True)
            return self._replaced(result, hidden, args[0].shape[-2:]) if bool(hidden.any()) else result
        masks = [_arguments(func, args, kwargs).get(key) for key in _MASKS] if name.startswith(_FUSED) else []
        for mask in (mask for mask in masks if isinstance(mask, Tensor)):
            hidden = _hidden(mask).all(-1, keepdim=True)
            if bool(hidden.any()):
                lengths = (args[0].shape[-2], args[1].shape[-2])
                return (self._replaced(result[0], hidden, lengths), *result[1:])
        return result

    def _replaced(self, rows: Tensor, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        self.found = True
        self.lengths.update(lengths)
        if not self._replaces:
            return rows
        other = torch.randn(rows.shape, generator=self._generator).to(rows.device, rows.dtype)
        return torch.where(hidden, other, rows)


def _hidden(scores: Tensor) -> Tensor:
    """Return where a key is masked: False, -inf, or a score near the lowest number of its type."""
    return ~scores if scores.dtype is torch.bool else scores <= torch.finfo(scores.dtype).min / 2


# Captures the inputs and outputs of one module while a live model runs, by forward hooks.
#
# Tensors are copied in the hook, so that later in-place operations do not change them.


class Captured(Struct, frozen=True, eq=False):
    """One call of a module: inputs by parameter name, outputs by their position in the result."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def capture(
    module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], path: str
) -> tuple[Captured, ...]:
    """Run the model once and return every call of the module at `path` with plain tensors, in order.

    Raises:
        UsageError: If the live model has no such module, or does not run.
    """
    watched = LiveTree(module).find(path)
    if watched is None:
        raise UsageError(
            f"the live model has no module {path!r}", hint="give the model that the file was exported from"
        )
    entered: list[Mapping[str, Array]] = []
    calls: list[Captured] = []

    def before(inner: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        entered.append(_arrays(named_arguments(inner, args, kwargs)))

    def after(_inner: torch.nn.Module, _args: object, _kwargs: object, output: object) -> None:
        call = Captured(entered.pop(), _arrays(output))
        if call.inputs or call.outputs:
            calls.append(call)

    _run_hooked("the live model", module, args, kwargs, [(watched, before, after)])
    return tuple(calls)


def _run_hooked(
    what: str,
    module: torch.nn.Module,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    hooks: Iterable[tuple[torch.nn.Module, Callable[..., None], Callable[..., None]]],
    *,
    keep_modes: bool = False,
) -> None:
    """Run a module, and call functions before and after submodules: `hooks` has a submodule and both.

    Raises:
        UsageError: If it does not run.
    """
    flat = Flat([list(args), dict(kwargs)])  # copied, because a forward may write into its inputs
    with contextlib.ExitStack() as stack:
        for watched, before, after in hooks:
            stack.callback(watched.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(watched.register_forward_hook(after, with_kwargs=True).remove)
        try:
            run(module, *flat.rebuilt([tensor.clone() for tensor in flat.tensors]), keep_modes=keep_modes)
        except Exception as error:  # a forward may raise anything
            message = f"{what} does not run on these inputs: {reason(error)}"
            raise UsageError(message, hint="check their types and sizes") from error


def example_feeds(
    module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], names: Sequence[str]
) -> dict[str, Array]:
    """Return the example inputs as feeds of a model file: by name, or in order if the file has other names.

    Inputs of the file that are state of the module have the values that the module has.

    Raises:
        UsageError: If the example does not fit the file's inputs.
    """
    arrays = _arrays(named_arguments(module, args, kwargs))
    if missing := set(names) - arrays.keys():
        state = stored_tensors(module)
        arrays |= _arrays({name: state[name] for name in missing & state.keys()})
    if arrays.keys() >= set(names):
        return {name: arrays[name] for name in names}
    if len(arrays) == len(names):
        return dict(zip(names, arrays.values(), strict=True))
    raise UsageError(
        f"the example inputs ({', '.join(arrays)}) do not fit the file's inputs ({', '.join(names)})",
        hint="give the example that the file was exported with",
    )


def _arrays(value: object) -> dict[str, Array]:
    is_batch: Any = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore  # a view without an array
    return {leaf.name: to_array(leaf.tensor.clone()) for leaf in Flat(value).leaves if not is_batch(leaf.tensor)}


Key: TypeAlias = tuple[str, str, int]  # path of the call, "input" or "output", index
_Visit: TypeAlias = Callable[[str, str, list[torch.Tensor]], None]


class LiveCall(Struct):
    """The tensors of one call of a module."""

    inputs: tuple[Key, ...] = ()
    outputs: tuple[Key, ...] = ()


class LiveValues:
    """A PyTorch module on one example, in eval mode; parts of it that are in training mode alone stay in it.

    Raises:
        UsageError: If it does not run on these inputs.
    """

    def __init__(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._module, self._args, self._kwargs = module, args, kwargs
        self.name = f"PyTorch {torch.__version__}"
        self.calls: dict[str, LiveCall] = {}
        self.runs = 0
        named = cast("Iterable[tuple[str, torch.nn.Module]]", module.named_modules())
        trained = [name for name, child in named if child.training]
        self._keep_modes = bool(trained) and not module.training
        self.notes: tuple[str, ...] = ()
        if module.training:
            self.notes = ("the PyTorch module is in training mode, and was compared in eval mode",)
        elif trained:
            self.notes = (f"in training mode, as they were given: {', '.join(trained)}",)

        def count(path: str, kind: str, tensors: list[torch.Tensor]) -> None:
            keys = tuple((path, kind, index) for index in range(len(tensors)))
            known = self.calls.get(path, LiveCall())
            self.calls[path] = LiveCall(keys, known.outputs) if kind == "input" else LiveCall(known.inputs, keys)

        self._run(count)

    def feeds(self, names: Sequence[str]) -> dict[str, Array]:
        """Return the example as feeds of a model file with these inputs."""
        return example_feeds(self._module, self._args, self._kwargs, names)

    def outputs(self) -> list[Value]:
        """Return the outputs of the module."""
        keys = self.calls[""].outputs
        values = self.values(keys)
        return [values[key] for key in keys]

    def values(self, keys: Sequence[Key], given: Mapping[Key, Array] | None = None) -> dict[Key, Array]:
        """Return the tensors with these keys; tensors in `given` are replaced wherever the module reads them."""
        wanted, replaced = set(keys), given or {}
        values: dict[Key, Array] = {}
        swap = _Swap()

        def visit(path: str, kind: str, tensors: list[torch.Tensor]) -> None:
            for index, tensor in enumerate(tensors):
                key = path, kind, index
                if key in replaced:
                    swap.add(tensor, replaced[key])
                if key in wanted:
                    values[key] = to_array(swap.of(tensor).clone())

        with swap if replaced else contextlib.nullcontext():
            self._run(visit)
        return values

    def _run(self, visit: _Visit) -> None:
        """Run the module and visit the tensors of every call under its path; later calls are marked."""
        self.runs += 1
        stack: list[tuple[str, str]] = []  # name and path of the running calls
        counts: Counter[str] = Counter()

        def before(name: str) -> Callable[..., None]:
            def hook(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
                outer, path = stack[-1] if stack else ("", "")  # the caller's, with its marks
                path = path + name[len(outer) :] if outer and name.startswith(outer + ".") else name
                counts[path] += 1
                path = path if counts[path] == 1 else f"{path}@{counts[path] - 1}"
                stack.append((name, path))
                visit(path, "input", _tensors(named_arguments(module, args, kwargs)))

            return hook

        def after(_module: torch.nn.Module, _args: object, _kwargs: object, output: object) -> None:
            visit(stack.pop()[1], "output", _tensors(output))

        modules: dict[str, torch.nn.Module] = dict(self._module.named_modules())  # pyright: ignore[reportUnknownArgumentType]
        hooks = ((module, before(name), after) for name, module in modules.items())
        keep = self._keep_modes
        _run_hooked("the PyTorch module", self._module, self._args, self._kwargs, hooks, keep_modes=keep)


class _Swap(TorchFunctionMode):
    """Gives every function other tensors in place of some, also outside of calls of modules."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the first keeps its id from being reused

    def add(self, tensor: torch.Tensor, array: Array) -> None:
        """Replace a tensor by an array of the same number of elements from now on."""
        other = torch.as_tensor(array).to(tensor.device, tensor.dtype).reshape(tensor.shape)
        self._tensors[id(tensor)] = tensor, other

    def of(self, value: Any) -> Any:
        """Return the replacement of a tensor, or the value itself."""
        return self._tensors.get(id(value), (None, value))[1]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*tree_map(self.of, args), **tree_map(self.of, kwargs or {}))


def _tensors(value: object) -> list[torch.Tensor]:
    return [tensor for tensor in Flat(value).tensors if tensor.layout is torch.strided]
