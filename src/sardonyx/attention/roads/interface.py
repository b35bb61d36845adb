"""How a graph made by torch.export is called: what it takes, checked at every call, and what it gives back.

Such a graph is made for one mode, for certain sizes and for fixed values of whatever is no tensor. A call that it was
not made for would be answered wrongly, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sardonyx.attention.roads.nesting import Shape, rebuilt, tensors_in
from sardonyx.errors import UsageError

INTERFACE, STRUCTURE = "sardonyx_interface", "sardonyx_structure"  # what the two modules below are called in a graph
TENSORS = "tensors"  # what the conditions on sizes call the list of all tensors that are taken


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor among the inputs; a size that may change is None."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | None, ...]

    def check(self, value: torch.Tensor) -> None:
        """Refuse what the graph was not made for."""
        if value.dtype != self.dtype:
            raise UsageError(
                f"{self.name} must be {self.dtype}, not {value.dtype}", hint="decompose the model again for this call"
            )
        fits = len(value.shape) == len(self.shape)
        if not fits or any(want is not None and got != want for got, want in zip(value.shape, self.shape, strict=True)):
            wanted = ", ".join("*" if size is None else str(size) for size in self.shape)
            raise UsageError(
                f"{self.name} must have the sizes [{wanted}], not {list(value.shape)}",
                hint="decompose the model with dynamic= to leave dims open",
            )


class Interface(nn.Module):
    """Takes the arguments of the model, checks them, and gives their tensors."""

    _is_impure = True  # torch's word for a module that must run though nothing reads what it gives

    def __init__(
        self, arguments: Mapping[str, Shape], leaves: Sequence[TensorLeaf], guards: Sequence[str], mode: bool
    ) -> None:
        """Remember the call that the graph was made for.

        Args:
            arguments: how each of them is nested, in order.
            leaves: what the tensors in them must be.
            guards: conditions on sizes as torch writes them: `L['tensors'][0].size()[1] % 4 == 0`.
            mode: whether the graph was made in training mode.
        """
        super().__init__()
        self._arguments, self._leaves = dict(arguments), tuple(leaves)
        self._guards = tuple(guards)
        self._holds = _compiled(self._guards)
        self.training = mode

    def forward(self, *arguments: Any) -> tuple[Any, ...]:
        """The tensors, in order."""
        flat: list[torch.Tensor] = []
        for (name, shape), value in zip(self._arguments.items(), arguments, strict=True):
            flat.extend(tensors_in(shape, value, name))
        for leaf, tensor in zip(self._leaves, flat, strict=True):
            leaf.check(tensor)
        for text, holds in zip(self._guards, self._holds, strict=True):
            if not holds({TENSORS: flat}):
                raise UsageError(f"the graph holds only where {self._readable(text)}", hint="see dynamic=")
        return tuple(flat)

    def _readable(self, guard: str) -> str:
        for place, leaf in enumerate(self._leaves):
            guard = guard.replace(f"L['{TENSORS}'][{place}]", leaf.name)
        return guard.replace(".size()", ".shape")

    def train(self, mode: bool = True) -> Interface:
        """Refuse the other mode: what depends on it is fixed in the graph.

        Raises:
            UsageError: the graph was made in the other mode.
        """
        if mode != self.training:
            made, other = ("training", "eval") if self.training else ("eval", "training")
            raise UsageError(
                f"this graph was made by torch.export in {made} mode and cannot change to {other} mode",
                hint=f"put the model into {other} mode and decompose it again",
            )
        return self

    def cast(self, dtypes: Mapping[torch.dtype, torch.dtype]) -> None:
        """Expect other element types."""
        self._leaves = tuple(replace(leaf, dtype=dtypes.get(leaf.dtype, leaf.dtype)) for leaf in self._leaves)

    def __getstate__(self) -> dict[str, Any]:
        """Compiled conditions do not go through a file; their text does."""
        return {name: value for name, value in self.__dict__.items() if name != "_holds"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Compile the conditions again."""
        self.__dict__.update(state)
        self._holds = _compiled(self._guards)


class Structure(nn.Module):
    """Gives results back as the model does: in its own kind of container."""

    def __init__(self, shape: Shape) -> None:
        """Remember how the results are nested."""
        super().__init__()
        self._shape = shape

    def forward(self, *tensors: Any) -> Any:
        """The results in their container."""
        return rebuilt(self._shape, iter(tensors))


def _compiled(guards: Sequence[str]) -> tuple[Callable[[Mapping[str, Any]], bool], ...]:
    if not guards:
        return ()
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP  # the functions that torch's conditions may use

    return tuple(eval(f"lambda L: {text}", dict(SYMPY_INTERP)) for text in guards)  # torch wrote the text
