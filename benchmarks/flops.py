"""Whether our multiply-adds are what torch's own counter counts, on every model, as written, decomposed and fused.

    python benchmarks/flops.py [NAME ...] [--out FILE]      all models of memory_models.py, all of architectures.py

Ours come from a recording without data, torch's from a run with data, operator by operator. torch's counter has no
formula for some kernels (attention on CPU, recurrent layers); what we count for those is shown apart, and for attention
it must be what torch counts once the attention is spelled out.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import memory_models
import zoo
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.fuse import fuse_attention
from sardonyx.verbs.analyze.costs.aten_operators import describe
from sardonyx.verbs.analyze.costs.program import Description, Program, Value
from sardonyx.verbs.analyze.recorder import record

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
PIXELS = 224
SIZES = {  # two texts, one of them padded; small, since the count holds at any size
    memory_models.text: (2, 32),
    memory_models.translation: (2, 32),
    memory_models.speech: (1, 128),
    memory_models.sound: (1, 8000),
}


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


def counted_by_torch(module: Any, args: Args, kwargs: Kwargs) -> Counter[str]:
    """What torch's counter says of a run, by operator."""
    counter = FlopCounterMode(display=False)
    inputs = copy.deepcopy((args, dict(kwargs)))  # a cache grows where it lies
    torch.manual_seed(zoo.SEED)
    with slowly(), counter:
        module(*inputs[0], **inputs[1])
    found: Mapping[Any, int] = counter.get_flop_counts().get("Global", {})
    return Counter({str(operator): flops for operator, flops in found.items()})


def count(module: Any, args: Args = (), kwargs: Kwargs | None = None) -> Count:
    """Run a model under both counters, the same way each time."""
    inputs = copy.deepcopy((args, dict(kwargs or {})))
    torch.manual_seed(zoo.SEED)
    with slowly(), Watch() as watch:
        module(*inputs[0], **inputs[1])
    watch.count.total = sum(counted_by_torch(module, args, kwargs or {}).values())
    return watch.count


def by_operator(program: Program) -> Counter[str]:
    """Our flops of a recorded program's products."""
    found: Counter[str] = Counter()
    for operation in program.operations:
        found[operation.operator] += 2 * operation.macs
    return +found


@dataclass(frozen=True)
class Row:
    """One model in one form."""

    model: str
    form: str  # "standard", "decomposed", "fused"
    operations: int
    flops: int  # ours, of all products
    torchs: int
    beyond: dict[str, int]  # ours, of operators that torch has no formula for
    equal: bool  # every operator that torch counts, and no other
    seconds: float  # of recording
    notes: tuple[str, ...]


def row(model: str, form: str, module: Any, args: Args, kwargs: Kwargs) -> Row:
    """Record a module and let torch count a run of it."""
    start = time.perf_counter()
    program = record(module, args, kwargs)
    seconds = time.perf_counter() - start
    ours, theirs = by_operator(program), +counted_by_torch(module, args, kwargs)
    beyond = {name: flops for name, flops in ours.items() if name not in theirs}
    known = {str(packet) for packet in flop_registry}
    equal = all(ours[name] == flops for name, flops in theirs.items()) and not known & beyond.keys()
    total = sum(ours.values())
    return Row(model, form, len(program.operations), total, sum(theirs.values()), beyond, equal, seconds, program.notes)


def rows(model: str, module: nn.Module, args: Args, kwargs: Kwargs) -> Iterator[Row]:
    """A model as it is written, decomposed, and fused again."""
    yield row(model, "standard", module, args, kwargs)
    decomposed = decompose(module, args, kwargs=kwargs)
    yield row(model, "decomposed", decomposed, args, kwargs)
    yield row(model, "fused", fuse_attention(decomposed, args, kwargs=kwargs), args, kwargs)


def subject(name: str) -> tuple[nn.Module, Args, Kwargs]:
    """A model at its real width, or one of the small architectures ("small/bert")."""
    if name.startswith("small/"):
        import architectures

        case = architectures.build(name.removeprefix("small/"))
        return case.module, case.args, case.kwargs
    chosen = memory_models.SUBJECTS[name]
    torch.manual_seed(zoo.SEED)
    made = chosen.inputs(*SIZES.get(chosen.inputs, (1, PIXELS)), torch.float32)
    return chosen.build().eval(), *memory_models.on("cpu", made)


def names() -> list[str]:
    """All that are counted."""
    zoo.torchvision()
    import architectures

    return [*memory_models.SUBJECTS, *(f"small/{name}" for name in architectures.ARCHITECTURES)]


def told(found: Row) -> str:
    """A row of the table."""
    beyond = ", ".join(f"{name} {flops / 1e9:.4f}" for name, flops in found.beyond.items())
    verdict = "equal" if found.equal else "DIFFERENT"
    numbers = f"{found.operations} | {found.flops / 1e9:.4f} | {found.torchs / 1e9:.4f} | {beyond} | {verdict}"
    return f"| {found.model} | {found.form} | {numbers} | {found.seconds:.2f} |"


def main() -> None:
    """Print a row for each model and form, and say whether all are equal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    print("| model | form | operations | ours, GFLOP | torch's | without a formula in torch | verdict | s |")
    print("|---|---|---|---|---|---|---|---|")
    found: list[Row] = []
    for name in chosen.names or names():
        try:
            for each in rows(name, *subject(name)):
                found.append(each)
                print(told(each), flush=True)
        except Exception as error:
            print(f"| {name} | failed: {type(error).__name__}: {str(error)[:200]} |", flush=True)
        if chosen.out:
            chosen.out.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
    print(f"{sum(each.equal for each in found)} of {len(found)} equal to torch's count")
    totals = {each.model: {other.flops for other in found if other.model == each.model} for each in found}
    print(f"{sum(len(flops) == 1 for flops in totals.values())} of {len(totals)} models the same in all forms")


if __name__ == "__main__":
    main()
