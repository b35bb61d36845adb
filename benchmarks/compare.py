"""The published figures, measured anew: Sardonyx beside its peers, in the same run, as ratios.

    python benchmarks/compare.py [--repeats N] [--models FOLDER] [start memory many-nodes cnn time]

Models are exported on first use into benchmarks/results/models (or FOLDER). The bounds are the project's own promises:
a missed one makes the command fail.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import measure
import peers
import shelf
from claims import Claim

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CNN_NODES = {"resnet-50": 122, "efficientnet-b0": 239, "mobilenetv3-s": 122}


@dataclass(frozen=True)
class Bench:
    """Where the models are, and how often to repeat."""

    models: Path
    repeats: int

    def model(self, name: str, exporter: str) -> Path:
        """The raw export, made in a process of its own when it is not there yet, and read once into the page cache."""
        path = self.models / f"{name}.{exporter}.onnx"
        if not path.exists():
            print(f"exporting {name} ({exporter})", flush=True)
            subprocess.run([sys.executable, HERE / "zoo.py", self.models, exporter, name], check=True)
        measure.warm(path)
        return path

    def race(self, source: Path, *, also: Sequence[str] = ()) -> dict[str, list[measure.Cost]]:
        """Interleaved cold runs of Sardonyx and ONNX Runtime on one file, then one run of each other peer named."""
        commands = {"sardonyx": sardonyx(source), "onnxruntime": other("onnxruntime", source)}
        costs = measure.interleaved(commands, self.repeats)
        for name, runs in costs.items():
            self._row(source, name, measure.median(runs), measure.paired_ratio(runs, costs["sardonyx"]))
        usual = measure.median(costs["sardonyx"])
        for peer in also:
            try:
                cost = measure.run(other(peer, source))
            except measure.CommandFailed as failure:
                print(f"  {source.stem:<24} {peer:<12} failed: {str(failure).splitlines()[-1][:80]}")
            else:
                self._row(source, peer, cost, cost.seconds / usual.seconds)
        return costs

    def _row(self, source: Path, name: str, cost: measure.Cost, ratio: float) -> None:
        figures = f"{cost.seconds:8.2f} s {cost.cpu_seconds:8.2f} s {cost.peak_mb:7.0f} MB {ratio:8.2f} ×"
        print(f"  {source.stem:<24} {name:<12} {figures}", flush=True)


def sardonyx(source: Path) -> list[str]:
    """The command a user types, unverified: what the peers do is unverified too."""
    tool = str(Path(sys.executable).with_name("sardonyx"))
    return [tool, "optimize", str(source), "-o", str(result("sardonyx")), "--force", "--verify", "off", "--quiet"]


def other(peer: str, source: Path) -> list[str]:
    """The same work by a peer, in a fresh interpreter."""
    return shelf.command(peer, source, result(peer))


def result(tool: str) -> Path:
    """Where a tool writes; overwritten by its next run."""
    return RESULTS / f"{tool}.out.onnx"


def start(bench: Bench) -> Iterator[Claim]:
    """bert-base from a cold start, against the runtime's own C++ optimizer."""
    costs = bench.race(bench.model("bert-base", "torchscript"), also=peers.installed())
    ours, theirs = measure.median(costs["sardonyx"]), measure.median(costs["onnxruntime"])
    ratio = measure.paired_ratio(costs["sardonyx"], costs["onnxruntime"])
    yield Claim("bert-base torchscript: wall, of ONNX Runtime's", ratio, 1.0, "×", f"{theirs.seconds:.2f} s there")
    yield Claim("bert-base torchscript: peak memory", ours.peak_mb, 300, "MB", f"{theirs.peak_mb:.0f} MB there")


def memory(bench: Bench) -> Iterator[Claim]:
    """A 1.2 GB file must not mean 1.2 GB of memory."""
    costs = bench.race(bench.model("llama-4l", "dynamo"))
    theirs = measure.median(costs["onnxruntime"])
    peak = max(cost.peak_mb for cost in costs["sardonyx"])
    yield Claim("llama-4l dynamo: peak memory", peak, 300, "MB", f"{theirs.peak_mb:.0f} MB there")


def many_nodes(bench: Bench) -> Iterator[Claim]:
    """7,862 nodes: cost must follow the graph linearly."""
    costs = bench.race(bench.model("swin-t", "torchscript"))
    theirs = measure.median(costs["onnxruntime"])
    yield Claim(
        "swin-t torchscript: wall", measure.median(costs["sardonyx"]).seconds, 5, "s", f"{theirs.seconds:.2f} s there"
    )


def cnn(bench: Bench) -> Iterator[Claim]:
    """Nodes left of the three CNNs from both exporters, and no BatchNormalization."""
    for name, bound in CNN_NODES.items():
        for exporter in ("torchscript", "dynamo"):
            source = bench.model(name, exporter)
            measure.run(sardonyx(source))
            before, after = shelf.count(source), shelf.count(result("sardonyx"))
            beside = "; ".join(f"{peer} {_nodes_by(peer, source)}" for peer in ("onnxruntime", *peers.installed()))
            was = f"{before['nodes']} before; {beside}"
            yield Claim(f"{name} {exporter}: nodes", after["nodes"], bound, "nodes", was)
            yield Claim(f"{name} {exporter}: BatchNormalization left", after["batch_norms"], 0, "nodes")


def _nodes_by(peer: str, source: Path) -> str:
    try:
        measure.run(other(peer, source))
    except measure.CommandFailed:
        return "failed"
    return str(shelf.count(result(peer))["nodes"])


def time(bench: Bench) -> Iterator[Claim]:
    """The whole command on every reference model, beside ONNX Runtime and onnxslim."""
    import time_contest  # imported here because memory of this process counts in its children
    from stage import CASES, Stage

    stage = Stage(bench.models, shelf.Shelf(RESULTS / "shelf"), RESULTS, list(CASES), repeats=bench.repeats)
    yield from time_contest.time(stage).claims


CAMPAIGNS: dict[str, Callable[[Bench], Iterator[Claim]]] = {
    "start": start,
    "memory": memory,
    "many-nodes": many_nodes,
    "cnn": cnn,
    "time": time,
}


def main() -> int:
    """Run the campaigns asked for, print the table, fail where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="*", default=list(CAMPAIGNS), metavar="CAMPAIGN")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs per tool (default 5)")
    parser.add_argument("--models", type=Path, default=RESULTS / "models", help="where the raw exports lie")
    asked = parser.parse_args()
    if unknown := set(asked.campaigns) - set(CAMPAIGNS):
        parser.error(f"unknown campaign {', '.join(sorted(unknown))}; there are {', '.join(CAMPAIGNS)}")
    RESULTS.mkdir(exist_ok=True)
    bench = Bench(asked.models, asked.repeats)
    print("cold starts, medians; the last column is wall time as a multiple of Sardonyx's, run by run")
    print(f"  {'model':<24} {'tool':<12} {'wall':>10} {'cpu':>10} {'peak':>10} {'ratio':>10}")
    claims = [claim for name in asked.campaigns for claim in CAMPAIGNS[name](bench)]
    print("\n".join(["", *(claim.line() for claim in claims)]))
    return 0 if all(claim.met for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
