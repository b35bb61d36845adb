"""Whether a module takes inputs of some sizes, found without computing anything: a large model answers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from sardonyx.recording.running import left_as_it_was
from sardonyx.source.running import probe


def probe_sizes(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """The exception that the module answers with, if any.

    What only values decide is not found, and does not matter for costs. A refusal counts only where the module refuses
    the data itself too: one that looks at its data refuses whatever has none.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    stand_ins: tuple[Any, Any] = tree_map_only(torch.Tensor, mode.from_tensor, (tuple(args), dict(kwargs)))
    with mode, left_as_it_was(module):
        refusal = probe(module, *stand_ins)
    return refusal if refusal is None else probe(module, args, kwargs)
