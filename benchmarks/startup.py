"""The time that commands take to start, beside the imports of the libraries that they need.

    python benchmarks/startup.py [--rounds 15]

The model has three nodes, so that hardly anything but start-up is measured. The commands take turns, and compiled
modules are kept, as after the first run on any machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import measure

TINY = (
    '<ir_version: 9, opset_import: ["" : 18]> g (float[2, 3] x) => (float[2, 3] y) '
    "{ a = Relu(x) b = Identity(a) y = Exp(b) }"
)
ORT = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.optimized_model_filepath = sys.argv[2]
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""
LIMITS = {"import sardonyx": 0.05, "sardonyx --help": 0.2, "sardonyx optimize": 0.45}  # seconds of CPU


def commands(folder: Path) -> dict[str, list[str]]:
    """Return what is measured, by name."""
    import onnx.parser

    model, result = folder / "model.onnx", folder / "result.onnx"
    onnx.save(onnx.parser.parse_model(TINY), model)
    sardonyx, python = [sys.executable, "-m", "sardonyx"], [sys.executable, "-c"]
    optimize = [*sardonyx, "optimize", str(model), "-o", str(result), "--force"]
    return {
        "python": [*python, "pass"],
        "import sardonyx": [*python, "import sardonyx"],
        "import numpy, onnx, onnx_ir": [*python, "import sardonyx.ir"],  # which leaves sympy out
        "ONNX Runtime, offline": [*python, ORT, str(model), str(folder / "ort.onnx")],
        "sardonyx --help": [*sardonyx, "--help"],
        "sardonyx optimize --help": [*sardonyx, "optimize", "--help"],
        "sardonyx inspect": [*sardonyx, "inspect", str(model)],
        "sardonyx optimize --verify off": [*optimize, "--verify", "off"],
        "sardonyx optimize": optimize,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        costs = measure.interleaved(commands(Path(folder)), rounds)
    print("| | CPU s, least | CPU s, median | wall s, median | goal |\n|---|--:|--:|--:|--:|")
    for name, runs in costs.items():
        middle, least = measure.median(runs), min(run.cpu_seconds for run in runs)
        goal = f"{LIMITS[name]:.2f}" if name in LIMITS else ""
        print(f"| {name} | {least:.2f} | {middle.cpu_seconds:.2f} | {middle.seconds:.2f} | {goal} |")


if __name__ == "__main__":
    main()
