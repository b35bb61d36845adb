"""Planted faults in real models: does `sardonyx locate` name the module that has the fault?

    python benchmarks/locate.py [--per-kind N] [--seed N] [--only MODEL ...] [--forms FORM ...] [--store FILE.json]
                                [--minutes N]

The faults are those of `mutations`, planted in the exported file and in its optimized form, and compared with the
exported file. The expected module owns the changed node, the inserted one, or the node that reads the changed constant.
Two more forms have no tags: `saved` is the exported file with a fault as the optimizer of ONNX Runtime saves it, and in
`untagged` neither file has tags, so that a changed node is expected in place of its module. A fault that does not
change the outputs beyond the tolerance of `verify` is counted as invisible. Results:

    named       the expected module
    enclosing   a module around it that lists it, because a fused node leaves no common border in both files;
                without tags, one of more than three nodes
    gradual     the error was said to accumulate over many modules
    wrong       another module
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mutants
import mutations
import subjects  # noqa: F401  # makes the small models of the tests importable
from sardonyx import locate, optimize
from sardonyx.errors import SardonyxError
from sardonyx.ir.origins import owner, tagged
from sardonyx.records.comparison import Location
from sardonyx.records.provenance import is_within, module_of
from sardonyx.runtime import library

Outcome = dict[str, Any]
Owners = dict[str | None, str]

NAMES = ("bert", "gpt2", "llama", "swin", "cnn", "mobilenet")
MODELS = [(name, exporter) for name in NAMES for exporter in ("torchscript", "dynamo")]
RESULTS = ("named", "enclosing", "gradual", "wrong", "invisible")
NODES_NAMED = 3  # a fault is named if no more nodes than these are said to contain it
FORMS = ("exported", "optimized", "saved", "untagged")


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


@dataclasses.dataclass(frozen=True)
class Fault:
    """The modules that own the nodes that a fault changed or inserted; where no file has tags, these nodes, too."""

    modules: frozenset[str]
    nodes: frozenset[str]

    @classmethod
    def of(cls, before: onnx.ModelProto, after: onnx.ModelProto, owners: Owners, *, names_nodes: bool) -> Fault:
        """Compare a model with the one that has a fault."""
        changed = changed_outputs(before, after)
        restore_tags(before, after)
        inserted = [node for node in tagged(after).model.graph if node.outputs[0].name not in owners]
        modules = {owners[output] for output in changed if output in owners}
        modules |= {module_of(owner(node)) for node in inserted if node.op_type != "Constant"}
        nodes = [node.name or node.output[0] for node in after.graph.node if node.output[0] in changed]
        nodes += [node.name or str(node.outputs[0].name) for node in inserted]
        return cls(frozenset(modules), frozenset(nodes if names_nodes else ()))


def without_tags(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without metadata and notes on its nodes."""
    result = copy.deepcopy(model)
    del result.metadata_props[:]
    for node in result.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    return result


def saved_by_runtime(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the offline optimizer of ONNX Runtime saves it, at the level whose files run everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        options = library.session_options()
        options.graph_optimization_level = library.onnxruntime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = f"{folder}/saved.onnx"
        library.open_session(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return onnx.load(f"{folder}/saved.onnx")


def judge(source: Path, mutant: onnx.ModelProto, fault: Fault) -> tuple[str, Location]:
    """Locate one fault and return the result."""
    location = locate(source, mutant, most_runs=0, threads=1)  # the shares of modules do not change the answer
    if location.same:
        return "invisible", location
    if location.module is None:
        return "wrong", location
    found, nodes = module_of(location.module.module), {*location.module.nodes}
    if found in fault.modules or (nodes & fault.nodes and len(nodes) <= NODES_NAMED):
        return "named", location
    listed = {*map(module_of, location.module.modules)}
    is_one_node = len(nodes) == 1  # of a kernel that a runtime fused from nodes of several modules
    is_around = any(is_within(module, found) and (module in listed or is_one_node) for module in fault.modules)
    if is_around or nodes & fault.nodes:
        return "enclosing", location
    return "gradual" if location.gradual else "wrong", location


def faults(
    name: str, exporter: str, per_kind: int, seed: int, known: set[str], forms: Collection[str]
) -> Iterator[Outcome]:
    """Plant faults of every kind in one model, in each of its forms; yield each result."""
    import models  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        source, plain = Path(folder) / "model.onnx", Path(folder) / "plain.onnx"
        models.export(name, exporter, source)
        exported = onnx.load(source)
        onnx.save(without_tags(exported), plain)
        for form in forms:
            model = optimize(exported).to_proto() if form == "optimized" else exported
            owners = {node.outputs[0].name: module_of(owner(node)) for node in tagged(model).model.graph}
            rng = np.random.default_rng(seed)
            for kind in mutations.KINDS:
                for number, mutant in mutants.mutants(model, kind, per_kind, rng):
                    fault = f"{name}, {exporter}, {form}: {kind}, {number}"
                    if fault in known:
                        continue
                    known.add(fault)
                    about = {"fault": fault, "model": f"{name}, {exporter}", "form": form, "kind": kind}
                    planted = Fault.of(model, mutant, owners, names_nodes=form == "untagged")
                    yield about | outcome(plain if form == "untagged" else source, mutant, planted, form)


def outcome(source: Path, mutant: onnx.ModelProto, fault: Fault, form: str) -> Outcome:
    """What `locate` finds for one fault."""
    began = time.perf_counter()
    try:
        if form in ("saved", "untagged"):
            mutant = without_tags(mutant)
        result, location = judge(source, saved_by_runtime(mutant) if form == "saved" else mutant, fault)
    except SardonyxError as error:
        return {"result": "does not run", "why": error.message}
    found = location.module
    return {
        "result": result,
        "expected": sorted(fault.modules),
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
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=FORMS[:2])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args(arguments)
    store: Path | None = options.store
    outcomes: list[Outcome] = json.loads(store.read_text()) if store is not None and store.exists() else []
    known, end = {one["fault"] for one in outcomes}, time.monotonic() + 60 * options.minutes
    chosen = [spec for spec in MODELS if not options.only or {spec[0], ".".join(spec)} & {*options.only}]
    planted = (faults(*spec, options.per_kind, options.seed, known, options.forms) for spec in chosen)
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
