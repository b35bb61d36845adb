"""Planted faults in real models: does `sardonyx locate` name the module that has the fault?

    python benchmarks/locate.py [--per-kind N] [--seed N] [--only MODEL ...] [--store FILE.json] [--minutes N]

The faults are those of `mutations`, planted in the exported file and in its optimized form, and compared with the
exported file. The expected module owns the changed node, the inserted one, or the node that reads the changed constant.
A fault that does not change the outputs beyond the tolerance of `verify` is counted as invisible. Results:

    named       the expected module
    enclosing   a module around it that lists it, because a fused node leaves no common border in both files
    gradual     the error was said to accumulate over many modules
    wrong       another module
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mutants
import mutations
import subjects  # noqa: F401  # makes the small models of the tests importable
from sardonyx import locate, optimize
from sardonyx.common.errors import SardonyxError
from sardonyx.ir.origins import owner, tagged
from sardonyx.records.comparison import Location
from sardonyx.records.provenance import is_within, module_of

Outcome = dict[str, Any]

NAMES = ("bert", "gpt2", "llama", "swin", "cnn", "mobilenet")
MODELS = [(name, exporter) for name in NAMES for exporter in ("torchscript", "dynamo")]
RESULTS = ("named", "enclosing", "gradual", "wrong", "invisible")


def changed_outputs(before: onnx.ModelProto, after: onnx.ModelProto) -> set[str]:
    """First outputs of the nodes that a fault changed, or whose constant it changed."""
    old = {node.output[0]: node for node in before.graph.node}
    nodes = {node.output[0] for node in after.graph.node if old.get(node.output[0]) != node and node.output[0] in old}
    weights = {tensor.name: tensor for tensor in before.graph.initializer}
    constants = {tensor.name for tensor in after.graph.initializer if weights.get(tensor.name) != tensor}
    constants |= {name for name in nodes if old[name].op_type == "Constant"}
    readers = {node.output[0] for node in before.graph.node if constants.intersection(node.input)}
    return {name for name in nodes if old[name].op_type != "Constant"} | readers


def restore_tags(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Give a node that a fault replaced the tags of the one it replaced."""
    old = {node.output[0]: node for node in before.graph.node}
    for node in after.graph.node:
        source = old.get(node.output[0])
        if source is not None and not node.metadata_props:
            node.metadata_props.extend(source.metadata_props)


def inserted(mutant: onnx.ModelProto, owners: dict[str | None, str]) -> set[str]:
    """The modules that the file gives nodes which a fault inserted."""
    nodes = [node for node in tagged(mutant).model.graph if node.op_type != "Constant"]
    return {module_of(owner(node)) for node in nodes if node.outputs[0].name not in owners}


def judge(source: Path, mutant: onnx.ModelProto, expected: set[str]) -> tuple[str, Location]:
    """Locate one fault and return the result."""
    location = locate(source, mutant, most_runs=0, threads=1)  # the shares of modules do not change the answer
    if location.same:
        return "invisible", location
    if location.module is None:
        return "wrong", location
    found = module_of(location.module.module)
    if found in expected:
        return "named", location
    if any(is_within(module, found) and module in map(module_of, location.module.modules) for module in expected):
        return "enclosing", location
    return "gradual" if location.gradual else "wrong", location


def faults(name: str, exporter: str, per_kind: int, seed: int, known: set[str]) -> Iterator[Outcome]:
    """Plant faults of every kind in one exported model and in its optimized form; yield each result."""
    import models  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.onnx"
        models.export(name, exporter, source)
        forms = {"exported": onnx.load(source), "optimized": optimize(onnx.load(source)).to_proto()}
        for form, model in forms.items():
            owners = {node.outputs[0].name: module_of(owner(node)) for node in tagged(model).model.graph}
            rng = np.random.default_rng(seed)
            for kind in mutations.KINDS:
                for number, mutant in mutants.mutants(model, kind, per_kind, rng):
                    fault = f"{name}, {exporter}, {form}: {kind}, {number}"
                    expected = {owners[output] for output in changed_outputs(model, mutant) if output in owners}
                    restore_tags(model, mutant)
                    expected |= inserted(mutant, owners)
                    if fault not in known:
                        known.add(fault)
                        yield {
                            "fault": fault,
                            "model": f"{name}, {exporter}",
                            "form": form,
                            "kind": kind,
                            **outcome(source, mutant, expected),
                        }


def outcome(source: Path, mutant: onnx.ModelProto, expected: set[str]) -> Outcome:
    """What `locate` finds for one fault."""
    began = time.perf_counter()
    try:
        result, location = judge(source, mutant, expected)
    except SardonyxError as error:
        return {"result": "does not run", "why": error.message}
    found = location.module
    return {
        "result": result,
        "expected": sorted(expected),
        "found": None if found is None else found.module,
        "share": None if found is None else found.share,
        "borders": location.borders,
        "runs": location.runs,
        "seconds": time.perf_counter() - began,
    }


def table(outcomes: list[Outcome]) -> str:
    """The results by model, form and kind, as Markdown."""
    lines: list[str] = []
    for key in ("model", "form", "kind"):
        lines += [f"| {key} | {' | '.join(RESULTS)} |", "|---|" + "---:|" * len(RESULTS)]
        groups = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
        for one in outcomes:
            groups[one[key]][one["result"]] += 1
        lines += [f"| {name} | {' | '.join(str(counts[r]) for r in RESULTS)} |" for name, counts in groups.items()]
        lines.append("")
    counts = collections.Counter(one["result"] for one in outcomes)
    visible = sum(counts[result] for result in RESULTS) - counts["invisible"]
    right = counts["named"] + counts["enclosing"]
    lines.append(
        f"{right} of {visible} visible faults ({right / max(visible, 1):.1%}) were located: {counts['named']} by their "
        f"own module, {counts['enclosing']} by the module around it. {counts['invisible']} faults did not change the "
        f"outputs, and {counts['does not run']} did not run."
    )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Plant the faults that the file has no result of, and print the table of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--per-kind", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    store: Path | None = options.store
    outcomes: list[Outcome] = json.loads(store.read_text()) if store is not None and store.exists() else []
    known, end = {one["fault"] for one in outcomes}, time.monotonic() + 60 * options.minutes
    chosen = [spec for spec in MODELS if not options.only or {spec[0], ".".join(spec)} & {*options.only}]
    planted = (faults(*spec, options.per_kind, options.seed, known) for spec in chosen)
    for one in itertools.chain.from_iterable(planted):
        outcomes.append(one)
        if store is not None:
            store.write_text(json.dumps(outcomes, indent=1))
        if one["result"] in ("wrong", "gradual"):
            print(f"{one['fault']}: {one['found']} instead of {one['expected']}", flush=True)
        if time.monotonic() > end:
            print("time is up: run again with the same --store", flush=True)
            break
    print(table(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
