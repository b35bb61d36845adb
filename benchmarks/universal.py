"""Export, tag, prove and optimize every architecture with both exporters: one row each, nothing left out.

    python benchmarks/universal.py [NAME ...] [--exporter dynamo|torchscript] [--jobs 2] [--json FILE]

Every case runs in a process of its own. The counts are read from the written file, not from what the exporter says of
itself: `direct` nodes were seen running in a module, of which `own` in the model's own forward; `inherited` ones got
their module from the data flow; `root` ones have none. After `optimize` every node must be tagged, and no module may be
missing unless all that it did was removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

EXPORTERS = ("dynamo", "torchscript")
LONGEST = 600  # seconds for one case


def one(name: str, exporter: str, folder: Path) -> dict[str, Any]:
    """Everything about one architecture and exporter."""
    import architectures  # here, so that the process that hands out the cases stays small
    from sardonyx.errors import SardonyxError

    path = folder / "model.onnx"
    case = architectures.build(name)
    try:
        record = architectures.export(case, path, exporter)
    except SardonyxError as refusal:
        return {"refused": refusal.message}
    row: dict[str, Any] = {"seconds": record.seconds, "passed": record.verdict.passed}
    row["error"] = example_error(case, path)
    return row | tagged(path) | optimized(path, folder / "small.onnx")


def example_error(case: Any, path: Path) -> float:
    """The largest difference from PyTorch on the example, as a share of the largest number in that output.

    The proof has looked at wilder inputs too, where numbers are large and so are differences.
    """
    import architectures
    import truth
    from sardonyx.runtime import Session

    pairs = zip(Session(path).run(truth.feeds_of(case)), architectures.run(case), strict=True)
    return max(float(abs(ours - theirs.numpy()).max() / abs(theirs).max()) for ours, theirs in pairs)


def tagged(path: Path) -> dict[str, Any]:
    """How the nodes of a file came by their modules."""
    from sardonyx.ir import io, origins
    from sardonyx.ir.scopes import is_constant, scopes
    from sardonyx.records.run import How

    model = io.load(path)
    origins.attach(model)
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for node in (node for scope in scopes(model) for node in scope.graph if not is_constant(node)):
        how = origins.how(node)
        counts[how] += 1
        counts["own"] += how is How.DIRECT and origins.owner(node) == ""
        if how is How.ROOT:
            reasons[f"{node.op_type}: {origins.reason(node)}"] += 1
    nodes = counts[How.DIRECT] + counts[How.INHERITED] + counts[How.ROOT]
    share = (counts[How.DIRECT] + counts[How.INHERITED]) / nodes
    return {"nodes": nodes, **{key: counts[key] for key in (*How, "own")}, "share": share, "reasons": dict(reasons)}


def optimized(path: Path, output: Path) -> dict[str, Any]:
    """Whether the tags outlive the optimizer."""
    import sardonyx
    from sardonyx.ir import io, origins
    from sardonyx.ir.scopes import scopes
    from sardonyx.records import provenance
    from sardonyx.records.run import RewriteKind

    source = io.load(path)
    origins.attach(source)
    had = provenance.merge(origins.origins(node) for scope in scopes(source) for node in scope.graph)
    run = sardonyx.optimize(path, output)
    result = io.load(output)
    nodes = [node for scope in scopes(result) for node in scope.graph]
    untagged = sum(provenance.MODULE_PATH not in node.metadata_props for node in nodes)
    origins.attach(result)
    things = [*nodes, *(value for scope in scopes(result) for value in scope.graph.initializers.values())]
    left = provenance.merge(origins.origins(thing) for thing in things)
    gone = provenance.merge(
        frozenset(event.origins) for event in run.events if event.kind in (RewriteKind.BYPASS, RewriteKind.DROP)
    )
    assert run.verdict is not None
    return {
        "after": run.after.nodes,
        "optimized_equal": run.verdict.passed and run.status == "done",
        "untagged": untagged,
        "lost": sorted(had - gone - left),
        "invented": sorted(left - had),
    }


def in_its_own_process(name: str, exporter: str) -> dict[str, Any]:
    """One case, its failure a row like any other."""
    command = [sys.executable, __file__, "--one", name, "--exporter", exporter]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # cases that run side by side do not fight for the same cores
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False, env=alone)
    except subprocess.TimeoutExpired:
        return {"name": name, "exporter": exporter, "failed": f"not done after {LONGEST} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        return {"name": name, "exporter": exporter, "failed": lines[-1][:300]}
    return {"name": name, "exporter": exporter, **json.loads(done.stdout.splitlines()[-1])}


def defects(row: dict[str, Any]) -> Iterator[str]:
    """What of a row is not as it must be."""
    if "refused" in row or "failed" in row:
        yield row.get("refused") or f"failed: {row['failed']}"
        return
    if not row["passed"]:
        yield "differs from PyTorch"
    if row["share"] < 0.97:
        yield f"only {row['share']:.1%} of the nodes have a module: {row['reasons']}"
    if row["untagged"]:
        yield f"{row['untagged']} untagged nodes after optimize"
    if not row["optimized_equal"]:
        yield "the optimized file differs"
    if row["lost"] or row["invented"]:
        yield f"after optimize: lost {row['lost']}, invented {row['invented']}"


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    if "share" not in row:
        return f"| {row['name']} | {row['exporter']} | " + " | ".join("–" * 11) + " |"
    seconds = [f"{row['seconds'].get(phase, 0.0):.1f}" for phase in ("export", "verification")]
    cells = [row["name"], row["exporter"], row["nodes"], row["direct"], row["own"], row["inherited"], row["root"]]
    cells += [f"{row['share']:.1%}", *seconds, f"{row['error']:.0e}", row["after"], row["untagged"]]
    return "| " + " | ".join(map(str, cells)) + " |"


TITLES = (
    *("model", "exporter", "nodes", "direct", "of them own", "inherited", "root", "with a module"),
    *("export and tag s", "verification s", "error on the example", "nodes optimized", "untagged then"),
)


def main(arguments: list[str]) -> int:
    """The table, then everything that is not as it must be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--exporter", choices=EXPORTERS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help="run one case here and print it as JSON")
    options = parser.parse_args(arguments)
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(one(options.names[0], options.exporter, Path(folder))))
        return 0
    if not options.names:
        from architectures import ARCHITECTURES

        options.names = list(ARCHITECTURES)
    cases = [(n, e) for n in options.names for e in ((options.exporter,) if options.exporter else EXPORTERS)]
    print("| " + " | ".join(TITLES) + " |\n|---|---" + "|--:" * (len(TITLES) - 2) + "|")
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda case: in_its_own_process(*case), cases):
            print(line(row), flush=True)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    wrong = [f"- {row['name']} ({row['exporter']}): {what}" for row in rows for what in defects(row)]
    print("", f"{len(rows) - len({w.split(':')[0] for w in wrong})} of {len(rows)} as they must be.", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
