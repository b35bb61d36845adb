"""How many nodes every optimizer leaves of every reference model, and whether what is left computes the same."""

from __future__ import annotations

import json
import subprocess
from statistics import geometric_mean
from typing import Any

import measure
import peers
import shelf
from claims import Claim
from shelf import Result
from stage import TARGETS, Case, Section, Stage, sardonyx, tell

RIVALS = {"portable": peers.PORTABLE, "ort": peers.RUNTIME}
MEAN = 0.55  # of the best peer's nodes, over all models, with standard operators
FEWEST = "ort, fewest nodes"
# How ours is asked for: the target, and options. The last is what node counts of the runtime's own operators are held
# to; without it the clock decides, and some nodes stay (docs/decisions/0009).
WAYS: dict[str, tuple[str, ...]] = {
    "portable": ("portable", "--verify", "off", "--quiet"),
    "ort": ("ort", "--verify", "off", "--quiet"),
    FEWEST: ("ort", "--verify", "off", "--quiet", "--fewest-nodes"),
}
RULES = {"portable": "portable", FEWEST: "ort"}  # which of them are held to what
APART = 1.10  # the two exporters' results, the larger as a multiple of the smaller
MOST = {
    "portable": {
        "bert-base": 245,
        "gpt2": 270,
        "llama-4l": 115,
        "qwen3-4l": 135,
        "deit-small": 245,
        "whisper-tiny-enc": 85,
        "t5-small-enc": 150,
        "tv-vit-b16": 240,
        "swin-t": 600,
        "distilbert": 130,
    },
    "ort": {"bert-base": 100, "gpt2": 160, "tv-vit-b16": 130},
}


def nodes(stage: Stage) -> Section:
    """Compute nodes after each optimizer; Constant nodes are not counted, whoever leaves them."""
    every = (*peers.PORTABLE, *peers.RUNTIME)
    section = Section(
        "Nodes",
        "Compute nodes, Constants not counted. ✗: the result does not load or answers otherwise than the source at one "
        "of two sizes, and does not count as a peer; –: the peer failed.",
        ["model", "before", *every, *(f"ours, {way}" for way in WAYS)],
    )
    for case in stage.cases():
        rivals = {peer: stage.shelf.result(peer, case.source) for peer in every}
        row: dict[str, Any] = {
            "model": case.name,
            "exporter": case.exporter,
            "before": shelf.count(case.source)["nodes"],
        }
        row["peers"] = {peer: [result.nodes, result.valid, result.why] for peer, result in rivals.items()}
        row["ours"] = {way: _ours(stage, case, way) for way in WAYS}
        section.data.append(row)
        section.rows.append(
            [str(case), f"{row['before']:,}", *map(_cell, rivals.values())]
            + [f"{count:,}{'' if valid else ' ✗'}" for count, valid, _ in row["ours"].values()]
        )
        tell(" | ".join(section.rows[-1]))
        section.claims.extend(_case_claims(case, rivals, row["ours"]))
    section.claims.extend(_over_all(section.data))
    return section


def _ours(stage: Stage, case: Case, way: str) -> tuple[int, bool, str]:
    output = stage.output("ours")
    measure.run(sardonyx(case.source, output, *WAYS[way]))
    valid, why = stage.shelf.check(case.source, output)
    return shelf.count(output)["nodes"], valid, why


def _cell(result: Result) -> str:
    return "–" if result.nodes is None else f"{result.nodes:,}{'' if result.valid else ' ✗'}"


def best(rivals: dict[str, Result], target: str) -> Result | None:
    """The peer that leaves fewest nodes of those whose result is right."""
    right = [rivals[peer] for peer in RIVALS[target] if rivals[peer].valid]
    return min(right, key=lambda result: result.nodes or 0, default=None)


def _case_claims(case: Case, rivals: dict[str, Result], ours: dict[str, tuple[int, bool, str]]) -> list[Claim]:
    claims: list[Claim] = []
    for way, (count, valid, why) in ours.items():
        claims.append(Claim(f"{case}: wrong answers, {way}", int(not valid), 0, "", why))
        if way not in RULES:
            continue
        target = RULES[way]
        rival = best(rivals, target)
        if rival is not None and rival.nodes is not None:
            claims.append(Claim(f"{case}: nodes, {way}", count, rival.nodes, "nodes", f"best peer: {rival.peer}"))
        if case.name in MOST[target]:
            claims.append(Claim(f"{case}: nodes promised, {way}", count, MOST[target][case.name], "nodes"))
    return claims


def _over_all(data: list[dict[str, Any]]) -> list[Claim]:
    ratios: list[float] = []
    for row in data:
        right = [count for peer in peers.PORTABLE for count, valid, _ in (row["peers"][peer],) if valid]
        if right:
            ratios.append(row["ours"]["portable"][0] / min(right))
    claims: list[Claim] = []
    if ratios:
        claims.append(Claim("portable nodes of the best peer's, geometric mean", geometric_mean(ratios), MEAN, "×"))
    for way in WAYS:
        by_name: dict[str, list[int]] = {}
        for row in data:
            by_name.setdefault(row["model"], []).append(row["ours"][way][0])
        claims += [
            Claim(f"{name}: one exporter's nodes of the other's, {way}", max(pair) / min(pair), APART, "×")
            for name, pair in by_name.items()
            if len(pair) > 1
        ]
    return claims


def proof(stage: Stage) -> Section:
    """Every result proven by our own oracle: several sizes for each dynamic dim, and nothing rolled back."""
    section = Section(
        "Proof",
        "Our own proof of our results: trials on drawn inputs of several sizes, and rewrites that had to be undone.",
        ["model", "target", "nodes", "trials", "sizes of dynamic dims", "rolled back", "verdict"],
    )
    for case in stage.cases():
        for target in TARGETS:
            words = sardonyx(case.source, stage.output(target), target, "--json")
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            run = json.loads(done.stdout) if done.stdout.strip() else {}
            _add_proof(section, case, target, run, done.stderr)
    return section


def _add_proof(section: Section, case: Case, target: str, run: dict[str, Any], said: str) -> None:
    first = (said.strip().splitlines() or ["it said nothing"])[0][:200]
    verdict = run.get("verdict") or {"passed": False, "trials": [], "failures": [first]}
    sizes: dict[str, set[int]] = {}
    for trial in verdict["trials"]:
        for dim, size in trial["dims"].items():
            sizes.setdefault(dim, set()).add(size)
    dims = ", ".join(f"{dim} {len(of)}" for dim, of in sorted(sizes.items())) or "none"
    undone = [f"{each['pass_name']} at {each['root']}" for each in run.get("rolled_back", ())]
    count = run["after"]["nodes"] if run else "–"
    cells = [str(case), target, str(count), str(len(verdict["trials"])), dims, str(len(undone))]
    section.rows.append([*cells, "proven" if verdict["passed"] else f"FAILED: {verdict['failures'][0]}"])
    tell(" | ".join(section.rows[-1]))
    wrong = int(not verdict["passed"]) + len(undone)
    section.claims.append(Claim(f"{case}: unproven or undone, {target}", wrong, 0, "", "; ".join(undone[:3])))
    fewest = min((len(of) for of in sizes.values()), default=2)
    section.claims.append(Claim(f"{case}: dynamic dims tried at one size only, {target}", int(fewest < 2), 0, ""))
    section.data.append({"model": case.name, "exporter": case.exporter, "target": target, "undone": undone} | verdict)
