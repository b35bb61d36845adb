"""Predicted peak memory beside what a GPU's allocator really gave out, over real models, sizes and dtypes.

    PYTHONPATH=src:benchmarks python benchmarks/memory.py --device cuda --out rows.json [--only NAME …]
    PYTHONPATH=src:benchmarks python benchmarks/memory.py --table rows.json > benchmarks/memory-gpu.md

`eager` is the model as it is, `graph` the decomposed one, both predicted as Python was seen to hold their values;
`operators` is the decomposed one as a graph of single operators, predicted from last uses alone. Peaks are what a run
allocates above the weights and inputs that were there before it: `activations`. `total` has those too. A first run is
not measured: it makes cuBLAS set its workspace aside, once for the process (the table says how much), which is not the
model's. `asked` is what was asked of the allocator, which hands out larger blocks where it has them. With
`--device cpu` the same is done with torch's profiler.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import memory_models
import memory_table
from allocations import Allocations, on_cpu, on_cuda
from memory_models import SUBJECTS, Subject
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.tracing.structure import Flat
from sardonyx.ir.shapes.expr import Size, add, floor_quotient, multiply
from sardonyx.verbs.analyze.costs.peak_memory import Peak, liveness
from sardonyx.verbs.analyze.costs.program import Program
from sardonyx.verbs.analyze.recorder import record

BLOCK = 512  # the CUDA allocator gives out multiples of this
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHOWN = 24  # blocks at the peak


def predicted(program: Program, form: str, block: int) -> Peak:
    """The peak of a recorded run if every buffer is rounded up to whole blocks."""
    buffers = tuple(replace(each, bytes=rounded(each.bytes, block)) for each in program.buffers)
    steps = tuple(replace(each, workspace=rounded(each.workspace, block)) for each in program.operations)
    return liveness(replace(program, buffers=buffers, operations=steps), as_run=form != "operators").at()


def rounded(size: Size, block: int) -> Size:
    """The size of whole blocks."""
    return multiply(floor_quotient(add(size, block - 1), block), block)


def measured(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> tuple[int, Allocations]:
    """The peak of a real run, and how it came about."""
    with torch.no_grad():
        model(*args, **kwargs)
    if device == "cpu":
        taken = on_cpu(lambda: model(*args, **kwargs))
        return taken.peak, taken
    return on_cuda(lambda: model(*args, **kwargs))


def row(model: nn.Module, made: dict[str, Any], form: str, device: str) -> dict[str, Any]:
    """One comparison."""
    block = BLOCK if device == "cuda" else 1
    args, kwargs = memory_models.on(device, made)
    peak, taken = measured(model, args, kwargs, device)
    program = record(model, args, kwargs)
    told, plain = predicted(program, form, block), predicted(program, form, 1)
    found = {
        "measured": peak,
        "asked": taken.peak,
        "predicted": told.bytes,
        "weights": told.weights,
        "inputs": told.inputs,
        "error": told.bytes / peak - 1,
        "error_asked": plain.bytes / taken.peak - 1,
        "error_total": (told.bytes - peak) / (peak + told.weights + told.inputs),
        "operation": told.operation.operator if told.operation else "",
        "module": told.operation.module if told.operation else "",
        "workspace": told.workspace,
        "blocks": taken.at_peak[:SHOWN],
        "alive": [each.bytes for each in told.alive][:SHOWN],
    }
    if device != "cpu" and form == "eager" and next(model.parameters()).dtype is torch.float32:
        here = predicted_here(model, made, form, block)
        found |= {"predicted_without_device": here, "error_without_device": here / peak - 1}
    return found


def predicted_here(model: nn.Module, made: dict[str, Any], form: str, block: int) -> int:
    """The same prediction as one would get it without the device, and without what the CPU's own kernels hold."""
    where = next(model.parameters()).device
    args, kwargs = memory_models.on("cpu", made)
    model.to("cpu")
    try:
        program = record(model, args, kwargs)
    finally:
        model.to(where)
    bare = [replace(each, workspace=0) for each in program.operations]
    return predicted(replace(program, operations=tuple(bare)), form, block).bytes


def forms(model: nn.Module, made: dict[str, Any], device: str, place: int) -> Iterator[tuple[str, nn.Module]]:
    """The model as it is; at one size also decomposed, and as a graph of operators."""
    yield "eager", model
    if place == 1:
        args, kwargs = memory_models.on(device, made)
        graph = decompose(model, args, kwargs=kwargs)
        yield "graph", graph
        yield "operators", operators(graph, args, kwargs)


def operators(graph: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    """Every operator that a call carries out as a node of its own."""
    names, given = list(kwargs), [*args, *kwargs.values()]

    def call(*tensors: torch.Tensor) -> Any:
        by_name = dict(zip(names, tensors[len(args) :], strict=True))
        return Flat(graph(*tensors[: len(args)], **by_name)).tensors

    with torch.no_grad():
        traced = make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    return Positional(traced, names)


class Positional(nn.Module):
    """A graph of operators, called as the model is."""

    def __init__(self, graph: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.graph, self.names = graph, names

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """Run it."""
        return self.graph(*args, *(kwargs[name] for name in self.names))


def rows_of(name: str, subject: Subject, dtype: str, device: str) -> Iterator[dict[str, Any]]:
    """Every size of a model in one dtype; what fails says why."""
    torch.manual_seed(0)
    torch.set_default_dtype(DTYPES[dtype])
    try:
        with torch.device(device):
            model = subject.build().eval()
    finally:
        torch.set_default_dtype(torch.float32)
    model.to(device=device, dtype=DTYPES[dtype])
    for place, (batch, length) in enumerate(subject.sizes):
        made = subject.inputs(batch, length, DTYPES[dtype])
        head = {"model": name, "dtype": dtype, "batch": batch, "length": length}
        form = "?"
        try:
            for form, shown in forms(model, made, device, place):
                began = time.perf_counter()
                yield {**head, "form": form, **row(shown, made, form, device), "seconds": time.perf_counter() - began}
                del shown
        except Exception as error:  # whatever a model or a device answers with is the result of its row
            yield {**head, "form": form, "failed": f"{type(error).__name__}: {error}".partition("\n")[0][:300]}
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def told(found: dict[str, Any]) -> str:
    """A line of progress."""
    start = "{model:12s}{dtype:9s}{batch:>4}×{length:<6}{form:10s}".format(**found)
    if "failed" in found:
        return f"{start} failed: {found['failed']}"
    alone = f" ({found['error_without_device']:+.2%} without device)" if "error_without_device" in found else ""
    return (
        f"{start} {found['measured'] / 1e6:10.2f} MB {found['error']:+8.2%} of activations "
        f"{found['error_asked']:+8.2%} asked {found['error_total']:+8.2%} total{alone} {found['seconds']:.1f} s"
    )


def environment(device: str) -> dict[str, Any]:
    """Where it was measured, and what cuBLAS sets aside."""
    about: dict[str, Any] = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        square = torch.ones(64, 64, device="cuda")
        held = square @ square
        torch.cuda.synchronize()
        about["gpu"] = torch.cuda.get_device_name()
        about["cublas_workspace"] = torch.cuda.memory_allocated() - before - 2 * square.nbytes
        del held
    return about


def main() -> None:
    """Measure, or make a table of what was measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES))
    parser.add_argument("--table", type=Path)
    wish = parser.parse_args()
    if wish.table:
        print(memory_table.markdown(json.loads(wish.table.read_text())))
        return
    about = environment(wish.device)
    rows: list[dict[str, Any]] = []
    for dtype in wish.dtype:
        for name in wish.only:
            try:
                for found in rows_of(name, SUBJECTS[name], dtype, wish.device):
                    rows.append(found)
                    print(told(found), flush=True)
            except Exception as error:  # one that cannot be built must not stop the rest
                rows.append({"model": name, "dtype": dtype, "form": "", "batch": 0, "length": 0, "failed": repr(error)})
                print(told(rows[-1]), flush=True)
            if wish.out:
                wish.out.write_text(json.dumps({"environment": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
