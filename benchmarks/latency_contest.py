"""How fast the results run in ONNX Runtime with all its own optimizations on, beside the source and the best peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import intervals
import latency
import peers
from claims import Claim
from stage import HERE, TARGETS, Case, Section, Stage, tell

FINALISTS = 2  # peers that run beside ours: the fastest of a first race among all of them
OF_THE_SOURCE = {("efficientnet-b0", "dynamo"): 0.37, ("resnet-50", "dynamo"): 0.67}


def run(stage: Stage) -> Section:
    """Interleaved runs of the source, our results and the fastest peers' of every model."""
    section = Section(
        "Latency in ONNX Runtime",
        f"All of its optimizations on, {stage.threads} thread(s), {stage.clock} clock, rounds in random order: ratio "
        "to the source with a 95 % bootstrap interval, paired by round. Best peer: the faster of the two that were "
        "fastest in a race among all peers whose result is right.",
        ["model", "source", "ours, portable", "ours, ort", "best peer", "portable of the peer's", "ort of the peer's"],
    )
    for case in stage.cases():
        files = {"source": case.source}
        files |= {target: stage.ours(case.source, target) for target in TARGETS}
        rivals = _finalists(stage, case)
        times = _race(stage, files | rivals)
        _add(section, case, times, list(rivals))
        tell(" | ".join(section.rows[-1]))
    return section


def _add(section: Section, case: Case, times: dict[str, list[float]], rivals: list[str]) -> None:
    rows = latency.summary(times)
    rival = min(rivals, key=lambda peer: rows[peer]["ratio"])
    of_source = {name: intervals.paired(times[name], times["source"]) for name in (*TARGETS, rival)}
    of_rival = {target: intervals.paired(times[target], times[rival]) for target in TARGETS}
    ours = [str(of_source[target]) for target in TARGETS]
    beside = [f"{rival} {of_source[rival]}", *(str(of_rival[target]) for target in TARGETS)]
    section.rows.append([str(case), f"{rows['source']['ms']:.1f} ms", *ours, *beside])
    for target, ratio in of_rival.items():
        claim = Claim(f"{case}: surely slower than {rival}, {target}", ratio.low, 1.0, "×", f"{ratio}")
        section.claims.append(claim)
    if (case.name, case.exporter) in OF_THE_SOURCE:
        bound = OF_THE_SOURCE[case.name, case.exporter]
        section.claims.append(Claim(f"{case}: time of the source's", of_source["portable"].value, bound, "×"))
    section.data.append({"model": case.name, "exporter": case.exporter, "seconds": times})


def _finalists(stage: Stage, case: Case) -> dict[str, Path]:
    """The files of the fastest peers: found once in a race among all of them, and kept on the shelf."""
    kept = stage.shelf.place(case.source) / f"fastest-{stage.threads}.json"
    if not kept.exists():
        every = {peer: stage.shelf.file(peer, case.source) for peer in (*peers.PORTABLE, *peers.RUNTIME)}
        files = {peer: path for peer, path in every.items() if path is not None}
        times = _race(stage, {"source": case.source} | files)
        rows = latency.summary(times)
        order = sorted(files, key=lambda peer: rows[peer]["ratio"])
        kept.write_text(json.dumps({"order": order, "rows": rows}, indent=1))
        for peer in order[FINALISTS:]:
            stage.shelf.drop(peer, case.source)
    order = json.loads(kept.read_text())["order"][:FINALISTS]
    return {peer: path for peer in order if (path := stage.shelf.file(peer, case.source)) is not None}


def _race(stage: Stage, files: dict[str, Path]) -> dict[str, list[float]]:
    words = [sys.executable, str(HERE / "latency.py"), *(f"{name}={path}" for name, path in files.items()), "--json"]
    words += ["--rounds", str(stage.rounds), "--seconds", str(stage.seconds), "--threads", str(stage.threads)]
    said = subprocess.run([*words, "--clock", stage.clock], check=True, capture_output=True, text=True).stdout
    return json.loads(said.strip().splitlines()[-1])
