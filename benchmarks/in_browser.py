"""What optimizing changes in a browser: kernels started by WebGPU, values, and the time of WebAssembly.

    python benchmarks/in_browser.py FOLDER [MODEL …] [--table OUT.md]

Ten small models of real architectures with random weights: text models by the TorchScript exporter with dynamic batch
and length, as the files that pages load are made; the others by torch.export. Each file is optimized by onnxslim,
onnxsim (where `make peers` has put them) and Sardonyx. onnxruntime-web runs all of them in Chromium with its own
optimizations on: by WebGPU with the adapter of SwiftShader, where the kernels of a run are counted and outputs compared
with ONNX Runtime's of the raw file, and by WebAssembly, timed in turns with one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import peers
import sardonyx
import zoo
from sardonyx.errors import RuntimeFailure
from sardonyx.inputs.generator import at_size
from sardonyx.ir import io
from sardonyx.runtime import Session
from sardonyx.runtime.web import WebSession

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # some of the small models are the tests' own
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
OURS = ("portable", "ort", "webgpu")  # targets
KINDS = ("raw", "onnxslim", "onnxsim", *OURS)
CLOSE = 1e-4  # of an output's largest number
SIZES = {"batch": 1, "seq": 32}


def vit() -> zoo.Built:
    """ViT with two layers."""
    return zoo.hugging_face("ViTModel", "ViTConfig", lambda: zoo.image(64), image_size=64, **SMALL)


def t5() -> zoo.Built:
    """T5's encoder with two layers."""
    sizes = {"d_model": 64, "d_ff": 128, "d_kv": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 1000}
    return zoo.hugging_face("T5EncoderModel", "T5Config", lambda: zoo.text(12), **sizes)


def distilbert() -> zoo.Built:
    """DistilBERT with two layers."""
    sizes = {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 2, "vocab_size": 1000}
    return zoo.hugging_face("DistilBertModel", "DistilBertConfig", lambda: zoo.text(12), **sizes)


OTHERS: dict[str, Callable[[], zoo.Built]] = {
    "t5": t5,
    "distilbert": distilbert,
    "vit": vit,
    "whisper": lambda: zoo.whisper_encoder(64, 2, 2),
    "efficientnet": lambda: (zoo.torchvision().models.efficientnet_b0(), {"input": torch.randn(1, 3, 64, 64)}),
}
MODELS = ("bert", "distilbert", "gpt2", "llama", "t5", "swin", "vit", "whisper", "mobilenet", "efficientnet")
TEXT = ("bert", "distilbert", "gpt2", "llama", "t5")


def written(name: str, folder: Path) -> dict[str, Path]:
    """The files of a model by who made them; a peer that fails has none."""
    import models

    files = {kind: folder / f"{name}.{kind}.onnx" for kind in KINDS}
    if not files["raw"].exists():
        torch.manual_seed(0)
        model, inputs = models.build(name) if name in models.names() else OTHERS[name]()
        zoo.export(zoo.ready(model), inputs, files["raw"], "torchscript" if name in TEXT else "dynamo")
    for kind, path in files.items():
        if path.exists():
            continue
        if kind in OURS:
            sardonyx.optimize(files["raw"], path, target=kind)
        else:
            try:
                getattr(peers, kind)(str(files["raw"]), str(path))
            except Exception as error:  # whatever a peer raises
                print(f"{name}: {kind} fails: {error}", file=sys.stderr)
    return {kind: path for kind, path in files.items() if path.exists()}


def on_webgpu(files: dict[str, Path]) -> dict[str, Any]:
    """The kernels of one run and the largest difference from ONNX Runtime, relative to the output's largest number."""
    read = io.load(files["raw"])
    dims = {name: size for name, size in SIZES.items() if any(name in str(port.shape) for port in read.graph.inputs)}
    feeds = at_size(read, dims)
    expected = [value for value in Session(files["raw"]).run(feeds) if isinstance(value, np.ndarray)]
    found: dict[str, Any] = {}
    session: WebSession | None = None
    for kind, path in files.items():
        try:
            if session is None:
                session = WebSession(path, "webgpu", level="all")
            else:
                session.load(path)
            session.run(feeds)  # the first run may prepare weights
            results = session.run(feeds)
            gaps = [
                float(np.max(np.abs(ours - theirs), initial=0) / (np.max(np.abs(theirs), initial=0) or 1))
                for ours, theirs in zip(results, expected, strict=True)
                if isinstance(ours, np.ndarray)
            ]
            found[kind] = {"dispatches": session.dispatches, "gap": max(gaps)}
        except RuntimeFailure as failure:
            found[kind] = {"error": failure.message}
    if session is not None:
        session.close()
    return found


def on_wasm(files: dict[str, Path], seconds: float) -> dict[str, Any]:
    """The time of each file as a multiple of the raw one's, with its interval."""
    timed = sardonyx.bench(files, runtimes=("web-wasm",), seconds=seconds, starts=0)
    first, *others = timed.points[0].timings
    ratios = {one.label: one.against_first for one in others}
    compared = {kind: [ratio.ratio, ratio.low, ratio.high] for kind, ratio in ratios.items() if ratio is not None}
    busy = timed.machine.busy_during
    return {"raw ms": 1e3 * first.median, "busy": busy, **compared}


def table(rows: dict[str, Any]) -> str:
    """Both tables as Markdown."""
    lines = ["| kernels started | " + " | ".join(KINDS) + " | webgpu / onnxslim | difference |", "|---" * 9 + "|"]
    for name, row in rows.items():
        gpu = row["webgpu"]
        counts = [str(gpu.get(kind, {}).get("dispatches", "fails")) for kind in KINDS]
        slim = gpu.get("onnxslim", {}).get("dispatches")
        share = gpu["webgpu"]["dispatches"] / slim if slim else float("nan")
        gap = max(gpu[kind]["gap"] for kind in OURS)
        lines.append(f"| {name} | {' | '.join(counts)} | {share:.2f} | {gap:.0e} |")
    lines += ["", "| time by WebAssembly | raw, ms | " + " | ".join(KINDS[1:]) + " |", "|---" * 7 + "|"]
    for name, row in rows.items():
        if not (wasm := row["wasm"]):
            continue
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(*wasm[kind]) if kind in wasm else "·" for kind in KINDS[1:]]
        lines.append(f"| {name} | {wasm['raw ms']:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Measure, print, and write the table; fail if a file of ours has other values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="for the times of a model")
    asked = parser.parse_args(words)
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    for name in asked.models:
        rows[name] = {"webgpu": on_webgpu(written(name, asked.folder)), "wasm": {}}
        print(json.dumps({name: rows[name]}), flush=True)
    for name in asked.models:
        rows[name]["wasm"] = on_wasm(written(name, asked.folder), asked.seconds)
        print(json.dumps({name: rows[name]}), flush=True)
        if asked.table:
            asked.table.write_text(table(rows))
    wrong = [name for name, row in rows.items() for kind in OURS if row["webgpu"][kind]["gap"] > CLOSE]
    print(table(rows) + f"\nwrong: {', '.join(wrong) or 'none'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
