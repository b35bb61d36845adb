"""What one module of a live model takes and gives while the model runs, seen by forward hooks.

Tensors are copied the moment a hook sees them: what works in place later cannot change what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sardonyx.errors import UsageError, reason
from sardonyx.frontend.running import run
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.frontend.tracing.module_tree import LiveTree
from sardonyx.frontend.tracing.structure import Flat, named_arguments
from sardonyx.runtime import Array


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """One call of a module: its tensors by the names of its parameters, and by their places in what it returns."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


def capture(
    module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object], path: str
) -> tuple[Captured, ...]:
    """Run the model once and keep every call of the module at `path`, in order; those on plain tensors.

    Raises:
        UsageError: The live model has no such module, or does not run.
    """
    watched = LiveTree(module).find(path)
    if watched is None:
        raise UsageError(
            f"the live model has no module {path!r}", hint="is it the model that the file was exported from?"
        )
    entered: list[Mapping[str, Array]] = []
    calls: list[Captured] = []

    def before(inner: torch.nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        entered.append(_arrays(named_arguments(inner, given, named)))

    def after(_inner: torch.nn.Module, _given: object, _named: object, answer: object) -> None:
        call = Captured(entered.pop(), _arrays(answer))
        if call.inputs or call.outputs:
            calls.append(call)

    hooks = [
        watched.register_forward_pre_hook(before, with_kwargs=True),
        watched.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        run(module, *_copied(args, kwargs))
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
    """The example inputs as feeds of a model file: by name, or in order where a file named them its own way.

    Raises:
        UsageError: The example does not fit the file's inputs.
    """
    given = _arrays(named_arguments(module, args, kwargs))
    if given.keys() >= set(names):
        return {name: given[name] for name in names}
    if len(given) == len(names):
        return dict(zip(names, given.values(), strict=True))
    raise UsageError(
        f"the example inputs ({', '.join(given)}) do not fit the file's inputs ({', '.join(names)})",
        hint="give the example that the file was exported with",
    )


def _copied(args: Sequence[object], kwargs: Mapping[str, object]) -> tuple[list[Any], dict[str, Any]]:
    """The same arguments with tensors of their own: a forward may write into what it is given."""
    flat = Flat([list(args), dict(kwargs)])
    return flat.rebuilt([leaf.tensor.clone() for leaf in flat.leaves])


def _arrays(value: object) -> dict[str, Array]:
    return {leaf.name: to_array(leaf.tensor.clone()) for leaf in Flat(value).leaves if not _is_batch(leaf.tensor)}


def _is_batch(tensor: torch.Tensor) -> bool:
    """Whether it is only a view into a transform of torch.func, which no array can be made of."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # pyright: ignore  # no public name
