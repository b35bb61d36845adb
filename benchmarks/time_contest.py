"""What the whole command costs beside the fastest peer, ONNX Runtime's own optimizer, and how cost grows with depth."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import measure
import shelf
from claims import Claim
from sardonyx.measurement import statistics
from stage import HERE, Section, Stage, said, sardonyx, tell

RIVAL = "onnxruntime"
MEAN = 0.7  # of the rival's time, over all models
MEMORY = 300.0  # MB, on every model
LINEAR = 1.15  # times as much a layer as in the smallest model
LAYERS = (6, 12, 24, 48)


def time(stage: Stage) -> Section:
    """Cold starts of the whole command, taking turns with the rival; ours is unproven, as is the rival's."""
    section = Section(
        "Time and memory",
        f"Whole command from a cold start, files in the page cache, {stage.repeats} runs of each in turns; medians, "
        "and our time as a multiple of ONNX Runtime's (offline, extended level) with its 95 % interval; the same of "
        "the CPU seconds, which other work on the machine hardly moves.",
        ["model", "ours", "ONNX Runtime", "ratio", "ratio of CPU seconds", "our peak", "its peak"],
    )
    ratios: list[float] = []
    for case in stage.cases():
        measure.warm(case.source)
        commands = {
            "sardonyx": sardonyx(case.source, stage.output("sardonyx")),
            RIVAL: shelf.command(RIVAL, case.source, stage.output(RIVAL)),
        }
        costs = measure.interleaved(commands, stage.repeats)
        ours, theirs = measure.median(costs["sardonyx"]), measure.median(costs[RIVAL])
        ratio = statistics.compare(*([run.seconds for run in costs[name]] for name in commands))
        cpu = statistics.compare(*([run.cpu_seconds for run in costs[name]] for name in commands))
        peak = max(run.peak_mb for run in costs["sardonyx"])
        ratios.append(ratio.ratio)
        section.rows.append(
            [
                *(str(case), f"{ours.seconds:.2f} s", f"{theirs.seconds:.2f} s", said(ratio), said(cpu)),
                *(f"{peak:.0f} MB", f"{theirs.peak_mb:.0f} MB"),
            ]
        )
        tell(" | ".join(section.rows[-1]))
        section.claims.append(
            Claim(f"{case}: time of ONNX Runtime's", ratio.ratio, 1.0, "×", f"{said(ratio)}; CPU {said(cpu)}")
        )
        section.claims.append(Claim(f"{case}: peak memory", peak, MEMORY, "MB"))
        section.data.append(
            {"model": case.name, "exporter": case.exporter}
            | {name: [[run.seconds, run.cpu_seconds, run.peak_mb] for run in runs] for name, runs in costs.items()}
        )
    if ratios:
        section.claims.append(
            Claim("time of ONNX Runtime's, geometric mean", statistics.geometric_mean(ratios), MEAN, "×")
        )
    return section


def growth(stage: Stage) -> Section:
    """Seconds of optimizing one architecture at one, two, four and eight times its depth."""
    section = Section(
        "Growth",
        "One architecture (BERT, width 64) made deeper; seconds from loading to the written file as the run's own "
        f"record says, the fastest of {stage.repeats} runs in turns, and what one more layer costs, "
        "which no fixed cost can flatter.",
        ["exporter", "layers", "nodes before", "seconds", "of the smallest", "one more layer"],
    )
    for exporter in stage.exporters:
        files = {layers: _deep(stage, layers, exporter) for layers in LAYERS}
        times: dict[int, list[float]] = {layers: [] for layers in LAYERS}
        before: dict[int, int] = {}
        for _ in range(stage.repeats):
            for layers, path in files.items():
                run = _run(path, stage.output("deep"))
                times[layers].append(run["seconds"]["total"])
                before[layers] = run["before"]["nodes"]
        fastest = {layers: min(times[layers]) for layers in LAYERS}
        for row, claims in _grown(exporter, fastest):
            section.rows.append([*row[:2], f"{before[int(row[1])]:,}", *row[2:]])
            section.claims.extend(claims)
            tell(" | ".join(section.rows[-1]))
        section.data.append({"exporter": exporter, "seconds": times, "nodes": before})
    return section


def _grown(exporter: str, seconds: dict[int, float]) -> Iterator[tuple[list[str], list[Claim]]]:
    """A row and its claims for each depth: the time of all, and of one more layer, which no fixed cost can flatter."""
    (first, base), *_ = seconds.items()
    yield [exporter, str(first), f"{base:.3f}", "", ""], []
    steps: list[float] = []  # seconds of one more layer, from each depth to the next
    for (fewer, less), (layers, spent) in itertools.pairwise(seconds.items()):
        factor, ratio = layers / first, spent / base
        steps.append((spent - less) / (layers - fewer))
        claims = [Claim(f"{exporter}: time, {factor:g} × the layers", ratio / factor, LINEAR, f"× {factor:g}")]
        if len(steps) > 1:
            step = f"{exporter}: one more layer, {factor:g} × the layers"
            claims.append(Claim(step, steps[-1] / steps[0], LINEAR, "×"))
        yield [exporter, str(layers), f"{spent:.3f}", f"{ratio:.2f} ×", f"{1000 * steps[-1]:.1f} ms"], claims


def _deep(stage: Stage, layers: int, exporter: str) -> Path:
    path = stage.models / f"deep-{layers}.{exporter}.onnx"
    if not path.exists():
        tell(f"exporting {layers} layers ({exporter})")
        subprocess.run([sys.executable, HERE / "deep.py", path, exporter, str(layers)], check=True)
    return path


def _run(source: Path, output: Path) -> dict:
    words = sardonyx(source, output, "portable", "--verify", "off", "--json")
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
