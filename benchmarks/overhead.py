"""What tags cost: export and tag against torch's bare export, in time and in bytes of metadata.

    python benchmarks/overhead.py [--model bert-base] [--rounds 5]

Every export runs in a fresh process that has exported a trifle before, so that neither side pays for imports; the two
sides take turns. Torch's side does the least it can do: no optimization, one file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXPORTERS = ("dynamo", "torchscript")
SIDES = ("torch", "sardonyx")
LIMITS = {"time": 1.10, "metadata": 0.25}


def one(model: str, side: str, exporter: str) -> dict[str, float]:
    """Seconds of one export in this process, and the bytes of metadata in what it wrote."""
    import torch

    import zoo

    trifle = torch.nn.Sequential(torch.nn.Linear(3, 2)).eval()
    with tempfile.TemporaryDirectory() as folder:
        _export(side, trifle, {"input": torch.randn(1, 3)}, Path(folder) / "trifle.onnx", exporter)
        module, inputs = zoo.build(model)
        path = Path(folder) / "model.onnx"
        began = time.perf_counter()
        _export(side, module, inputs, path, exporter)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "metadata": metadata_bytes(path)}


def _export(side: str, module: Any, inputs: dict[str, Any], path: Path, exporter: str) -> None:
    import architectures
    import zoo

    if side == "torch":
        zoo.export(module, inputs, path, exporter)
    elif "input" in inputs:
        architectures.export(architectures.Case(module, (inputs["input"],)), path, exporter, verify="off")
    else:
        architectures.export(architectures.Case(module, kwargs=inputs), path, exporter, verify="off")


def metadata_bytes(path: Path) -> int:
    """Bytes of all metadata entries of a file."""
    from sardonyx.ir import io
    from sardonyx.ir.scopes import scopes

    model = io.load(path)
    things: list[Any] = [model, model.graph]
    for scope in scopes(model):
        for node in scope.graph:
            things += [node, *node.outputs]
        things += [*scope.graph.inputs, *scope.graph.initializers.values()]
    return sum(_size(thing.metadata_props.items()) for thing in things)


def _size(entries: Iterable[tuple[str, str]]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in entries)


def main(arguments: list[str]) -> int:
    """Both tables; 1 where a limit is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="bert-base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "EXPORTER"))
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(one(options.model, *options.one)))
        return 0
    seen: dict[tuple[str, str], list[dict[str, float]]] = {(s, e): [] for e in EXPORTERS for s in SIDES}
    for _ in range(options.rounds):
        for (side, exporter), results in seen.items():
            command = [sys.executable, __file__, "--model", options.model, "--one", side, exporter]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results.append(json.loads(said.splitlines()[-1]))
    print(f"{options.model}, medians of {options.rounds} rounds in turns\n")
    print(
        "| exporter | torch s | sardonyx s | ratio | torch's metadata kB | sardonyx's kB | ratio |\n|---"
        + "|--:" * 6
        + "|"
    )
    missed = False
    torch_bytes = seen["torch", "dynamo"][0]["metadata"]  # its TorchScript exporter writes none to compare with
    for exporter in EXPORTERS:
        theirs, ours = ([each["seconds"] for each in seen[side, exporter]] for side in SIDES)
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        size = seen["sardonyx", exporter][0]["metadata"]
        cells = [exporter, f"{statistics.median(theirs):.2f}", f"{statistics.median(ours):.2f}", f"{ratio:.3f}"]
        cells += [f"{torch_bytes / 1000:.0f}", f"{size / 1000:.0f}", f"{size / torch_bytes:.3f}"]
        print("| " + " | ".join(cells) + " |")
        missed |= ratio > LIMITS["time"] or size / torch_bytes > LIMITS["metadata"]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
