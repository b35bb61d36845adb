"""A module under a flat signature: named tensors in, named tensors out, as an ONNX graph has them.

Both exporters and the proof see a model through this, so that names, nesting and order are decided once.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import Written, left_as_it_was, uncompiled, undoing_writes
from sardonyx.frontend.quiet import quietly
from sardonyx.frontend.tracing.structure import Flat, named_arguments

_PAST = "past_key_values"
INNER = "module"  # the attribute that holds the real module: its name is in front of all that torch reports


class Call:
    """How a module is called on its example inputs, and what its inputs and outputs are named."""

    def __init__(self, module: torch.nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Take the example apart; the module is not run."""
        self.module = module
        self._flat = Flat(named_arguments(module, args, kwargs))
        self._positional = len(args)
        self.inputs = self._flat.names
        self._continues = any(name.startswith(f"{_PAST}.") for name in self.inputs)
        self._tensors = tuple(leaf.tensor for leaf in self._flat.leaves)
        self.outputs: list[str] = []  # known once the module has run, or was traced
        self.left_out: list[str] = []  # outputs that are no tensors, with what they are
        self._names: list[str] = []
        self._tensor_outputs: frozenset[str] | None = None  # known once the module has run outside of an exporter

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The example's tensors, copied: a module may write into what it is given."""
        return tuple(tensor.clone() for tensor in self._tensors)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The element types of the module's weights and of the example."""
        return {tensor.dtype for tensor in (*self._tensors, *self.module.parameters(), *self.module.buffers())}

    def with_module(self, module: torch.nn.Module) -> Call:
        """The same call of another module."""
        other = copy.copy(self)
        other.module, other.outputs, other.left_out = module, [], []
        return other

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The module's answer, flat, to other tensors in the places of the example's."""
        values: dict[str, Any] = self._flat.rebuilt(tensors)
        given = list(values.items())
        result = self.module(*(value for _, value in given[: self._positional]), **dict(given[self._positional :]))
        flat, known = Flat(result), self._tensor_outputs
        found = [leaf for leaf in flat.leaves if not self._is_passed_through(leaf.tensor, tensors)]
        leaves = [leaf for leaf in found if known is None or leaf.name in known]  # torch traces sizes as tensors
        if not leaves:
            raise ModelError(
                f"{type(self.module).__name__} returns no tensor but {type(result).__name__}",
                hint="return tensors, alone or in tuples, lists, dicts, dataclasses",
            )
        self._names = [leaf.name for leaf in leaves]
        self.outputs[:] = _output_names(self._names, taken=self.inputs)
        if known is None:
            self.left_out[:] = [f"{name or 'output'} ({kind})" for name, kind in flat.others]
        return tuple(leaf.tensor for leaf in leaves)

    def _is_passed_through(self, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> bool:
        """Whether a call that continues a past returns what it was given: a runtime that holds it needs no copy."""
        return self._continues and any(tensor is each for each in given)

    def rehearse(self) -> Written:
        """Run the example outside of any exporter; what it wrote to can be undone once more after tracing.

        A tracer shows sizes as tensors, so which outputs are tensors is only seen here.
        """
        with left_as_it_was(self.module), undoing_writes(self.module) as written, _plainly():
            self(self.tensors)
            self._tensor_outputs = frozenset(self._names)
        return written

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The same outside of any exporter: without gradients or words, on tensors of its own, and nothing changes."""
        with left_as_it_was(self.module), undoing_writes(self.module), _plainly():
            return tuple(each.clone() for each in self([tensor.clone() for tensor in tensors]))


@contextlib.contextmanager
def _plainly() -> Generator[None]:
    with uncompiled(), torch.no_grad(), quietly():
        yield


class Adapter(torch.nn.Module):
    """The module as the exporters call it."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.module = call.module
        self._call = call
        self.training = call.module.training

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Flat tensors in, flat tensors out."""
        return self._call(tensors)


def _output_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Names a reader can use: `output_0` for a bare tuple, `present.…` for the cache that comes back."""
    found: list[str] = []
    for name in names:
        head, dot, tail = name.partition(".")
        if head.isdecimal():
            head = f"output_{head}"
        elif head == _PAST:
            head = "present"
        plain = head + dot + tail
        found.append(f"{plain}_out" if plain in taken or plain in found else plain)
    return found
