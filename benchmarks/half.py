"""fp16 over the zoo: does every file convert and load, are there new NaN, how many casts, and the loss; beside a peer.

    python benchmarks/half.py FOLDER RESULTS [--to fp16|bf16] [--peer PACKAGES] [--names NAME ...]
    python benchmarks/half.py RESULTS --table

FOLDER holds files of `benchmarks/zoo.py`. Each file is converted by `sardonyx.quantize`, loaded in ONNX Runtime with
its default optimizations, and compared with the source on one generated input. PACKAGES is a folder with
onnxconverter-common, whose float16 converter gets the same files and inputs. Weights are random: the loss shows
rounding, not accuracy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import feeds
import sardonyx
from sardonyx.ir import io

PEER = """
import sys
sys.path.append(sys.argv[3])
import onnx
from onnxconverter_common import float16
onnx.save(float16.convert_float_to_float16(onnx.load(sys.argv[1]), keep_io_types=True), sys.argv[2])
"""


def casts(path: Path) -> int:
    """The Cast nodes of a file."""
    return sum(node.op_type == "Cast" for node in onnx.load(path, load_external_data=False).graph.node)


def run(path: Path, inputs: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of a file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, inputs)]


def compared(source: Path, result: Path) -> dict[str, Any]:
    """Whether the result loads, its new NaN and infinities, and the largest relative L2 of an output."""
    model = io.load(source)
    sizes = {name: 2 if "batch" in name else 16 for name in feeds.open_dims(model)}
    inputs = feeds.at_size(model, sizes)
    expected = run(source, inputs)
    try:
        outputs = run(result, inputs)
    except Exception as failure:  # the runtime has no common class for what it raises
        return {"loads": False, "failure": str(failure).splitlines()[0][:200]}
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(expected, outputs, strict=True)]
    new = sum(int((np.isfinite(a) & ~np.isfinite(b)).sum()) for a, b in pairs)
    errors = [float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-30)) for a, b in pairs]
    return {"loads": True, "new_nan": new, "relative_l2": max(errors), "casts": casts(result) - casts(source)}


def case(source: Path, to: Any, peer: str | None) -> dict[str, Any]:
    """The row of one file."""
    row: dict[str, Any] = {"model": source.name.partition(".")[0], "to": to}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "half.onnx"
        began = time.perf_counter()
        try:
            made = sardonyx.quantize(source, result, to=to)
        except sardonyx.SardonyxError as failure:
            return row | {"ours": {"loads": False, "failure": failure.message}}
        row["seconds"] = time.perf_counter() - began
        row["converted"], row["nodes"] = len(made.products), made.before.nodes
        row["kept"] = {group.reason: group.count for group in made.skipped}
        row["bytes"] = made.after.bytes / made.before.bytes
        row["unowned"] = sardonyx.inspect(result).coverage.root
        row["ours"] = compared(source, result)
        result.unlink()
        if peer is not None:
            command = [sys.executable, "-c", PEER, str(source), str(result), peer]
            converted = subprocess.run(command, capture_output=True, text=True, check=False)
            failed = {"loads": False, "failure": converted.stderr.strip().splitlines()[-1:]}
            row["peer"] = failed if converted.returncode else compared(source, result)
    return row


def table(folder: Path) -> str:
    """The rows as Markdown."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    headings = ("model", "nodes", "converted", "casts", "bytes", "relative L2", "new NaN", "s")
    headings += ("peer: casts", "relative L2", "new NaN")
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for row in rows:
        ours = row["ours"]
        if not ours["loads"]:
            lines.append(f"| {row['model']} | fails: {ours['failure']} |" + " |" * 9)
            continue
        cells = [row["model"], row["nodes"], row["converted"], ours["casts"], f"{row['bytes']:.2f} ×"]
        cells += [f"{ours['relative_l2']:.2g}", ours["new_nan"], f"{row['seconds']:.0f}"]
        peer = row.get("peer")
        if peer is None or not peer["loads"]:
            cells += ["·" if peer is None else "fails", "·", "·"]
        else:
            cells += [peer["casts"], f"{peer['relative_l2']:.2g}", peer["new_nan"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Convert the files whose rows are missing, or print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--to", default="fp16")
    parser.add_argument("--peer")
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table(options.folders[0]))
        return
    folder, results = options.folders
    for source in sorted(folder.glob("*.onnx"), key=lambda path: path.stat().st_size):
        name = source.name.partition(".")[0]
        target = results / f"{name}.{options.to}.json"
        if target.exists() or (options.names and name not in options.names):
            continue
        row = case(source, options.to, options.peer)
        target.write_text(json.dumps(row))
        print(f"{name}: {json.dumps(row['ours'])} peer {json.dumps(row.get('peer'))}", flush=True)


if __name__ == "__main__":
    main()
