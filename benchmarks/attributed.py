"""How much of a model's time in kernels is attributed to modules, raw and optimized, with the runtime's own fusions on.

    python benchmarks/attributed.py [FILE.onnx ...] [--exporter torchscript] [--runs 5] [--keep FOLDER]

Without files it exports eight models of the zoo first; all in all it takes about ten minutes on two cores. Every model
is profiled as it is and as `optimize` makes it, portable and for ONNX Runtime, side by side. Each line says how many
kernels there are, which share of their time belongs to a module or to the model's own forward and what told so, which
share is the model's own, and how often the two witnesses, names and values, spoke of the same kernel and agreed. The
verdict is at the end: every share at least 97 %, and no witness against the other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import sardonyx
from sardonyx.ir.origins import tagged
from sardonyx.records.bench import ProfiledModel, TracedBy
from sardonyx.runtime.timed import Level, Settings
from sardonyx.verbs.profile import kernel_origins
from sardonyx.verbs.profile.kernel_origins import Tracer
from sardonyx.verbs.profile.profiler import saving

ASKED = 0.97
MODELS = ("bert-base", "gpt2", "llama-4l", "t5-small-enc", "whisper-tiny-enc", "swin-t", "resnet-50", "efficientnet-b0")
TARGETS = ("portable", "ort")
HEAD = f"{'model':34s} {'form':9s} {'kernels':>7s} {'attributed':>10s} {'own':>6s}  {'told by':42s} witnesses"


def forms(source: Path, folder: Path) -> dict[str, Path]:
    """A file, and what we make of it."""
    made = {"raw": source}
    for target in TARGETS:
        made[target] = folder / f"{source.stem}.{target}.onnx"
        if not made[target].exists():
            sardonyx.optimize(source, made[target], target=target, verify="off")
    return made


def witnesses(path: Path) -> tuple[int, int]:
    """How many kernels both names and values speak of, and on how many they agree, on the way to each level."""
    spoke = agreed = 0
    before = kernel_origins.of_file(tagged(path).model.graph)
    with tempfile.TemporaryDirectory() as folder:
        for level in (Level.EXTENDED, Level.ALL):
            saved = Path(folder) / f"{level}.onnx"
            saving(path, Settings(level=level), saved)
            after = kernel_origins.as_run(saved)
            tracer = Tracer(after, before)
            for step in after.steps:
                named, between = tracer.names.step(step.name), tracer.between(step)
                if named is not None and between:
                    spoke += 1
                    agreed += bool(between.intersection(tracer.values.twins(named)))
            before = after
    return spoke, agreed


def line(name: str, form: str, model: ProfiledModel, spoke: int, agreed: int) -> str:
    """One row of the table."""
    by: dict[TracedBy, float] = defaultdict(float)
    for kernel in model.kernels:
        by[kernel.traced_by] += kernel.milliseconds
    told = ", ".join(f"{kind} {by[kind] / model.kernel_ms:.1%}" for kind in TracedBy if by[kind])
    own = sum(module.self_ms for module in model.modules if not module.path) / model.kernel_ms
    kernels = len(model.kernels)
    return f"{name:34s} {form:9s} {kernels:7d} {model.attributed:10.2%} {own:6.1%}  {told:42s} {agreed} of {spoke}"


def main() -> int:
    """Print the table and the verdict; 1 where something fell short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), default="torchscript")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="keep what is exported and optimized in this folder")
    asked = parser.parse_args()
    began = time.perf_counter()
    short: list[str] = []
    worst = 1.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(HEAD)
        for source in asked.files or exported(folder, asked.exporter):
            made = forms(source, folder)
            found = sardonyx.profile(list(made.values()), runs=asked.runs)
            for (form, path), model in zip(made.items(), found.models, strict=True):
                spoke, agreed = witnesses(path)
                print(line(source.stem, form, model, spoke, agreed), flush=True)
                worst = min(worst, model.attributed)
                if model.attributed < ASKED or agreed < spoke:
                    short.append(f"{source.stem} ({form})")
            for path in made.values():
                if asked.keep is None and path.parent == folder:
                    path.unlink()
    verdict = f"FELL SHORT: {', '.join(short)}" if short else "held"
    print(f"\nattributed at least {worst:.2%} (asked: {ASKED:.0%}); {verdict}; {time.perf_counter() - began:.0f} s")
    return bool(short)


def exported(folder: Path, exporter: str):
    """The models of the zoo, each written when its turn comes."""
    import zoo

    for name in MODELS:
        path = folder / f"{name}.{exporter}.onnx"
        if not path.exists():
            zoo.write(name, path, exporter)
        yield path


if __name__ == "__main__":
    sys.exit(main())
