"""What the whole command costs beside ONNX Runtime's own optimizer and onnxslim, and how cost grows with depth."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import measure
import peers
import shelf
from claims import Claim
from sardonyx.verbs.bench import statistics
from stage import HERE, Case, Section, Stage, said, sardonyx, tell

RIVAL, SLOW_RIVAL = "onnxruntime", "onnxslim"
MEAN = 1.0  # of ONNX Runtime's time, over all models
LARGE, LARGE_MEAN = 100e6, 0.6  # the same over files above this many bytes
MOST = 2.0  # of ONNX Runtime's time, on every model
SLOW_MEAN = 0.5  # of onnxslim's time, over all models
MEMORY = 300.0  # MB, on every model
LINEAR = 1.15  # times as much a layer as in the smallest model
LAYERS = (6, 12, 24, 48)


def time(stage: Stage) -> Section:
    """Cold starts of the whole command, taking turns with its rivals; nothing is verified, as by them."""
    section = Section(
        "Time and memory",
        f"Whole command from a cold start, files in the page cache, {stage.repeats} runs of each in turns; medians, "
        "and our time as a multiple of ONNX Runtime's (offline, extended level) with its 95 % interval; the same of "
        "the CPU seconds, which other work on the machine hardly moves; and as a multiple of the time of one run of "
        "onnxslim (–: it is not installed, or fails).",
        ["model", "MB", "ours", "ONNX Runtime", "ratio", "ratio of CPU seconds", "of onnxslim", "our peak", "its peak"],
    )
    ratios: dict[str, float] = {}
    large: list[float] = []
    slow: list[float] = []
    for case in stage.cases():
        costs = _costs(stage, case)
        names = ("sardonyx", RIVAL)
        ours, theirs = measure.median(costs["sardonyx"]), measure.median(costs[RIVAL])
        ratio = statistics.compare(*([run.seconds for run in costs[name]] for name in names))
        cpu = statistics.compare(*([run.cpu_seconds for run in costs[name]] for name in names))
        size, peak = case.source.stat().st_size, max(run.peak_mb for run in costs["sardonyx"])
        ratios[str(case)] = ratio.ratio
        large += [ratio.ratio] if size > LARGE else []
        of_slow = ours.seconds / costs[SLOW_RIVAL][0].seconds if SLOW_RIVAL in costs else None
        slow += [] if of_slow is None else [of_slow]
        section.rows.append(
            [
                *(str(case), f"{size / 1e6:.0f}", f"{ours.seconds:.2f} s", f"{theirs.seconds:.2f} s", said(ratio)),
                *(
                    said(cpu),
                    "–" if of_slow is None else f"{of_slow:.2f}",
                    f"{peak:.0f} MB",
                    f"{theirs.peak_mb:.0f} MB",
                ),
            ]
        )
        tell(" | ".join(section.rows[-1]))
        claim = Claim(f"{case}: time of ONNX Runtime's", ratio.ratio, MOST, "×", f"{said(ratio)}; CPU {said(cpu)}")
        section.claims.extend([claim, Claim(f"{case}: peak memory", peak, MEMORY, "MB")])
        section.data.append(
            {"model": case.name, "exporter": case.exporter}
            | {name: [[run.seconds, run.cpu_seconds, run.peak_mb] for run in runs] for name, runs in costs.items()}
        )
    means = (
        ("time of ONNX Runtime's", list(ratios.values()), MEAN),
        (f"time of ONNX Runtime's, files over {LARGE / 1e6:.0f} MB", large, LARGE_MEAN),
        ("time of onnxslim's", slow, SLOW_MEAN),
    )
    section.claims.extend(
        Claim(f"{what}, geometric mean of {len(found)}", geometric_mean(found), bound, "×")
        for what, found, bound in means
        if found
    )
    return section


def _costs(stage: Stage, case: Case) -> dict[str, list[measure.Cost]]:
    """The costs of ours and ONNX Runtime's in turns, then of one run of onnxslim if it is installed and works."""
    measure.warm(case.source)
    commands = {
        "sardonyx": sardonyx(case.source, stage.output("sardonyx")),
        RIVAL: shelf.command(RIVAL, case.source, stage.output(RIVAL)),
    }
    costs = measure.interleaved(commands, stage.repeats)
    if SLOW_RIVAL in peers.installed():
        with contextlib.suppress(measure.CommandFailed):
            costs[SLOW_RIVAL] = [measure.run(shelf.command(SLOW_RIVAL, case.source, stage.output(SLOW_RIVAL)))]
    return costs


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
