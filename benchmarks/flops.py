"""Whether our multiply-adds are what torch's own counter counts, on every model, as written, decomposed and fused.

    python benchmarks/flops.py [NAME ...]      real widths (see `models`), one row each: ours, torch's, the difference

Each model runs once under both. torch's counter knows no formula for some kernels (attention on CPU, recurrent layers);
what we count for those is shown apart and named, and must be what torch counts once the attention is spelled out.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import zoo
from sardonyx.costs.operators.aten import describe
from sardonyx.costs.operators.description import Description
from sardonyx.costs.program import Value

Runs = tuple[Any, tuple[Any, ...], Mapping[str, Any]]


@dataclass
class Count:
    """What one run came to, by operator; flops are two for each multiply-add."""

    ours: Counter[str] = field(default_factory=Counter[str])
    torchs: Counter[str] = field(default_factory=Counter[str])  # by its own formulas
    total: int = 0  # by its own counter, for the whole run
    unknown: set[str] = field(default_factory=set[str])  # what our tables do not have

    @property
    def beyond(self) -> dict[str, int]:
        """What we count and torch has no formula for."""
        return {name: flops for name, flops in self.ours.items() if flops and name not in self.torchs}

    @property
    def agrees(self) -> bool:
        """Whether every operator that both count is the same in both."""
        shared = {name: flops for name, flops in self.ours.items() if name in self.torchs}
        return shared == dict(self.torchs) and sum(shared.values()) == self.total


class Watch(TorchDispatchMode):
    """Counts every operator twice, with our tables and with torch's formulas."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        super().__init__()
        self.count = Count()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run it and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = str(func.overloadpacket)
        said = described(func, args, kwargs, result)
        self.count.ours[name] += 2 * said.macs
        if not said.known:
            self.count.unknown.add(name)
        if func.overloadpacket in flop_registry:
            self.count.torchs[name] += flop_registry[func.overloadpacket](*args, **kwargs, out_val=result)
        return result


def described(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Description:
    """Our description of one call."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    reads = [value for name in names for value in tensors(given.get(name))]
    scalars = {name: each for name, each in given.items() if not tensors(each)}
    return describe(str(func.overloadpacket), reads, tensors(result), scalars)


def tensors(thing: Any) -> list[Value]:
    """The tensors in an argument or a result, as values."""
    found = [each for each in torch.utils._pytree.tree_leaves(thing) if isinstance(each, torch.Tensor)]
    return [Value("", tuple(each.shape), str(each.dtype)[6:], each.untyped_storage()._cdata) for each in found]


@contextmanager
def slowly() -> Iterator[None]:
    """Without torch's native attention, which hides everything from counters; as it is under export."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def count(module: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Count:
    """Run a model under both counters, the same way each time."""
    counter = FlopCounterMode(display=False)
    watch = Watch()
    for mode in (watch, counter):
        inputs = copy.deepcopy((args, dict(kwargs or {})))  # a cache grows where it lies
        torch.manual_seed(zoo.SEED)
        with slowly(), mode:
            module(*inputs[0], **inputs[1])
    watch.count.total = counter.get_total_flops()
    return watch.count
