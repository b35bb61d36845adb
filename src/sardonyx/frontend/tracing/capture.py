"""Captures the inputs and outputs of one module while a live model runs, by forward hooks.

Tensors are copied in the hook, so that later in-place operations do not change them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.frontend.tracing.state import stored_tensors
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.runtime import Array


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
