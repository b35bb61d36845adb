"""Compare where `placement` predicts that nodes run with where the runtime puts them.

    python benchmarks/placement.py DEVICE FILE.onnx … [--table OUT.md]

The runtime loads each file with its graph optimizations off and says where each node is. Large weights become inputs of
the graph, so that files stay small; this changes no type.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from device_cases import typed
from device_profiles import Browser, Native, OpenVino, device_named
from sardonyx.ir.device import Where, read_profile
from sardonyx.ir.facts import Facts
from sardonyx.verbs.placement.placement import placed_nodes


def light(path: Path) -> onnx.ModelProto:
    """The model with large weights as inputs, and its nodes named by number."""
    model = typed(onnx.load(path, load_external_data=False))
    for number, node in enumerate(model.graph.node):
        node.name = str(number)
    return model


def predicted(model: onnx.ModelProto, device: str) -> dict[str, Where]:
    """The place of each node of the top graph by its name."""
    read = ir.from_proto(model)
    facts = Facts(read)
    facts.infer()
    top = set(read.graph)
    return {str(each.node.name): each.where for each in placed_nodes(facts, read_profile(device)) if each.node in top}


def compared(device: Native | OpenVino | Browser, name: str, files: Sequence[Path]) -> Iterator[dict[str, object]]:
    """One row for each file."""
    for path in files:
        model = light(path)
        expected = predicted(model, name)
        found = device.place(bytes(model.SerializeToString()))
        label = path.stem
        if isinstance(found, str):
            fails = sum(where is Where.FAILS for where in expected.values())
            yield {"file": label, "nodes": len(expected), "error": found[:200], "predicted_fails": fails}
            continue
        wrong: Counter[str] = Counter()
        right = 0
        for node in model.graph.node:
            if node.name not in expected or node.name not in found:
                continue
            real = found[node.name] == device.provider
            said = expected[node.name]
            if real == (said in (Where.DEVICE, Where.WRONG)):
                right += 1
            else:
                wrong[f"{node.op_type} {said.value}"] += 1
        away = sum(found[node.name] != device.provider for node in model.graph.node if node.name in found)
        yield {"file": label, "nodes": right + sum(wrong.values()), "right": right, "away": away, "wrong": dict(wrong)}


def main(words: Sequence[str]) -> int:
    """Compare, print a row for each file, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=("cuda", "openvino", "ort-cpu", "wasm", "webgpu"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--table", type=Path)
    asked = parser.parse_intermixed_args(words)
    rows: list[dict[str, object]] = []
    for row in compared(device_named(asked.device), asked.device, asked.files):
        rows.append(row)
        print(json.dumps(row), flush=True)
    nodes, right = (sum(int(str(row.get(key, 0))) for row in rows) for key in ("nodes", "right"))
    print(f"{right} of {nodes} nodes ({right / (nodes or 1):.2%}) as predicted, {len(rows)} files")
    if asked.table:
        asked.table.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
