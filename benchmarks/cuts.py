"""Cut every module that has modules out of real models, raw and optimized, and hold each to the live module.

    python benchmarks/cuts.py [NAME ...] [--exporter dynamo|torchscript]

A cut counts where it runs by itself, computes what the whole model computes there, and gives what the live module gave
when hooks watched it. Where fused nodes made it wider than asked, the module that was cut is the one compared.
Containers that are never called (`ModuleList`) have nothing to be compared with but the whole model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

import architectures
import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.verbs.export.extract import extract

MODELS = ("bert-tiny", "gpt2", "resnet-50", "vit", "t5")
EXPORTERS = ("dynamo", "torchscript")


@dataclass
class Tally:
    """What became of the modules of one file."""

    counts: Counter[str] = field(default_factory=Counter)  # exact, wider, container, failed
    worst: float = 0.0  # largest difference from a live module
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def with_children(module: nn.Module) -> Iterator[str]:
    """The names of all modules that hold others, the model itself included, each instance once."""
    for name, each in module.named_modules():
        if next(each.children(), None) is not None:
            yield name


def cut_all(path: Path, case: architectures.Case) -> Tally:
    """Every module with children out of one file."""
    tally = Tally()
    began = time.perf_counter()
    for name in with_children(case.module):
        try:
            kind, worst = cut(path, case, name)
        except SardonyxError as refusal:
            kind, worst = "failed", 0.0
            tally.failures.append(f"{name or '(the model)'}: {refusal.message}")
        tally.counts[kind] += 1
        tally.worst = max(tally.worst, worst)
    tally.seconds = time.perf_counter() - began
    return tally


def cut(path: Path, case: architectures.Case, name: str) -> tuple[str, float]:
    """One module, written and proven: how exact the cut was, and how far it is from the live module."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "module.onnx"
        made = extract(path, name, output, live=case.module, inputs=case.args, kwargs=case.kwargs)
        if not output.exists():
            raise SardonyxError("nothing was written")
    if made.live is None:
        return "container", 0.0
    if not made.live.passed or not made.live.outputs:
        raise SardonyxError(f"nothing of what the live module gave was compared: {made.live.failures}")
    kind = "exact" if made.path == made.asked else "wider"
    return kind, max(each.max_abs for each in made.live.outputs)


def main(arguments: list[str]) -> int:
    """The table and every failure; 1 where there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--exporter", choices=EXPORTERS)
    options = parser.parse_args(arguments)
    print("| model | exporter | file | modules | exact | wider | containers | failed | max error | s |")
    print("|---|---|---|" + "--:|" * 7)
    failures: list[str] = []
    for name in options.names:
        for exporter in (options.exporter,) if options.exporter else EXPORTERS:
            case = architectures.build(name)
            with tempfile.TemporaryDirectory() as folder:
                raw, small = Path(folder) / "raw.onnx", Path(folder) / "small.onnx"
                architectures.export(case, raw, exporter)
                sardonyx.optimize(raw, small)
                for kind, path in (("raw", raw), ("optimized", small)):
                    tally = cut_all(path, case)
                    numbers = [tally.counts[key] for key in ("exact", "wider", "container", "failed")]
                    cells = [name, exporter, kind, tally.counts.total(), *numbers, f"{tally.worst:.1g}"]
                    print("| " + " | ".join(map(str, cells)) + f" | {tally.seconds:.0f} |", flush=True)
                    failures += [f"- {name} ({exporter}, {kind}) {each}" for each in tally.failures]
    print("", *failures, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
