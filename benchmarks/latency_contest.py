"""How fast the results run in ONNX Runtime with all its own optimizations on, beside the source and the best peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import peers
from claims import Claim
from sardonyx.records.bench import Finding
from sardonyx.verbs.bench import statistics
from sardonyx.verbs.bench.interleaving import Race
from stage import HERE, TARGETS, Case, Section, Stage, said, tell

FINALISTS = 2  # peers that run beside ours: the fastest of a first race among all of them
OF_THE_SOURCE = {("efficientnet-b0", "dynamo"): 0.37, ("resnet-50", "dynamo"): 0.67}


def run(stage: Stage) -> Section:
    """Interleaved runs of the source, our results and the fastest peers' of every model."""
    section = Section(
        "Latency in ONNX Runtime",
        f"All of its optimizations on, {stage.threads} thread(s), {stage.clock} clock, rounds in random order: ratio "
        "to the source with a 95 % bootstrap interval, paired by round; slower or faster only beyond the noise floor. "
        "Best peer: the faster of the two that were "
        "fastest in a race among all peers whose result is right.",
        ["model", "source", "ours, portable", "ours, ort", "best peer", "portable of the peer's", "ort of the peer's"],
    )
    for case in stage.cases():
        files = {"source": case.source}
        files |= {target: stage.ours(case.source, target) for target in TARGETS}
        rivals = _finalists(stage, case)
        _add(section, case, _race(stage, files | rivals), list(rivals))
        tell(" | ".join(section.rows[-1]))
    return section


def _add(section: Section, case: Case, race: Race, rivals: list[str]) -> None:
    rival = min(rivals, key=lambda peer: race.comparison(peer).ratio)
    of_source = {name: race.comparison(name) for name in (*TARGETS, rival)}
    of_rival = {target: race.comparison(target, rival) for target in TARGETS}
    ours = [said(of_source[target]) for target in TARGETS]
    beside = [f"{rival} {said(of_source[rival])}", *(said(of_rival[target]) for target in TARGETS)]
    section.rows.append(
        [str(case), f"{1000 * statistics.spread(race.seconds['source']).median:.1f} ms", *ours, *beside]
    )
    for target, found in of_rival.items():
        slower = int(found.finding is Finding.SLOWER)
        section.claims.append(Claim(f"{case}: surely slower than {rival}, {target}", slower, 0, "", said(found)))
    if (case.name, case.exporter) in OF_THE_SOURCE:
        bound = OF_THE_SOURCE[case.name, case.exporter]
        section.claims.append(Claim(f"{case}: time of the source's", of_source["portable"].ratio, bound, "×"))
    section.data.append({"model": case.name, "exporter": case.exporter, "seconds": race.seconds, "twin": race.twin})


def _finalists(stage: Stage, case: Case) -> dict[str, Path]:
    """The files of the fastest peers: found once in a race among all of them, and kept on the shelf."""
    kept = stage.shelf.place(case.source) / f"fastest-{stage.threads}.json"
    if not kept.exists():
        every = {peer: stage.shelf.file(peer, case.source) for peer in (*peers.PORTABLE, *peers.RUNTIME)}
        files = {peer: path for peer, path in every.items() if path is not None}
        race = _race(stage, {"source": case.source} | files)
        ratios = {peer: race.comparison(peer).ratio for peer in files}
        order = sorted(files, key=lambda peer: ratios[peer])
        kept.write_text(json.dumps({"order": order, "ratios": ratios}, indent=1))
        for peer in order[FINALISTS:]:
            stage.shelf.drop(peer, case.source)
    order = json.loads(kept.read_text())["order"][:FINALISTS]
    return {peer: path for peer in order if (path := stage.shelf.file(peer, case.source)) is not None}


def _race(stage: Stage, files: dict[str, Path]) -> Race:
    words = [sys.executable, str(HERE / "latency.py"), *(f"{name}={path}" for name, path in files.items()), "--json"]
    words += ["--seconds", str(stage.seconds), "--threads", str(stage.threads), "--clock", stage.clock]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return Race(**json.loads(told.strip().splitlines()[-1]))
