"""The tensors that enter and leave every call of a module while a live model runs, by forward hooks.

The first run only counts the tensors. Each later run copies the requested ones, so that memory follows the request.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from msgspec import Struct
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.frontend.tracing.state import stored_tensors
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.runtime import Array, Value

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

    hooks = [
        watched.register_forward_pre_hook(before, with_kwargs=True),
        watched.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        run(module, *copied(args, kwargs))
    except Exception as error:  # a forward may raise anything
        raise UsageError(
            f"the live model does not run on these inputs: {reason(error)}", hint="check their types and sizes"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(calls)


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


def copied(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with copied tensors: a forward may write into its inputs."""
    flat = Flat([list(args), dict(kwargs)])
    return flat.rebuilt([leaf.tensor.clone() for leaf in flat.leaves])


def _arrays(value: object) -> dict[str, Array]:
    return {leaf.name: to_array(leaf.tensor.clone()) for leaf in Flat(value).leaves if not _is_batch(leaf.tensor)}


def _is_batch(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a batched view of a torch.func transform, which has no array."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # pyright: ignore  # no public name


Key: TypeAlias = tuple[str, str, int]  # path of the call, "input" or "output", index
_Visit: TypeAlias = Callable[[str, str, list[torch.Tensor]], None]


class LiveCall(Struct):
    """The tensors of one call of a module."""

    inputs: tuple[Key, ...] = ()
    outputs: tuple[Key, ...] = ()


class LiveValues:
    """A PyTorch module on one example, in eval mode; parts of it that are in training mode alone stay in it.

    Args:
        module: The module.
        args: Its positional inputs.
        kwargs: Its keyword inputs.

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
        self._run(self._count)

    def _count(self, path: str, kind: str, tensors: list[torch.Tensor]) -> None:
        call = self.calls.setdefault(path, LiveCall())
        keys = tuple((path, kind, index) for index in range(len(tensors)))
        if kind == "input":
            call.inputs = keys
        else:
            call.outputs = keys

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
                path = _path_below(stack[-1] if stack else None, name)
                counts[path] += 1
                path = path if counts[path] == 1 else f"{path}@{counts[path] - 1}"
                stack.append((name, path))
                visit(path, "input", _tensors(named_arguments(module, args, kwargs)))

            return hook

        def after(_module: torch.nn.Module, _args: object, _kwargs: object, output: object) -> None:
            visit(stack.pop()[1], "output", _tensors(output))

        hooks: list[Any] = []
        modules: dict[str, torch.nn.Module] = dict(self._module.named_modules())  # pyright: ignore[reportUnknownArgumentType]
        for name, module in modules.items():
            hooks.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
            hooks.append(module.register_forward_hook(after, with_kwargs=True))
        try:
            run(self._module, *copied(self._args, self._kwargs), keep_modes=self._keep_modes)
        except Exception as error:  # a forward may raise anything
            raise UsageError(
                f"the PyTorch module does not run on these inputs: {reason(error)}", hint="check their types and sizes"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()


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


def _path_below(caller: tuple[str, str] | None, name: str) -> str:
    """Return the path of a call: that of its caller, with its marks, and the rest of the name."""
    if caller is None or not caller[0]:
        return name
    outer, path = caller
    return path + name[len(outer) :] if name.startswith(outer + ".") else name


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf.tensor for leaf in Flat(value).leaves if leaf.tensor.layout is torch.strided]
