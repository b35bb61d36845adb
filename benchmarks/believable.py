"""Whether speed claims can be believed: the same file twice, a planted slowdown, and machines whose truth is known.

    python benchmarks/believable.py --same 50 [--seconds 20]                   about 10 minutes on a quiet machine
    python benchmarks/believable.py --planted 0.03 --times 20 [--seconds 60]   at most 20 minutes, mostly far fewer
    python benchmarks/believable.py --simulate 200                             minutes on all cores; nothing is timed

The first two ask the public command, `sardonyx bench`, each time in a process of its own, and take turns between files
of different kinds. `--same` gives it one file under two names; "no difference" is right. `--planted` gives it a chain
of a hundred equal units and one with that share of units more; "slower" is right. What was found is kept in the folder
as it comes, and a command that was interrupted goes on where it was. A missed promise makes the command fail.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import chains
import noise
from claims import Claim
from stage import HERE, tell

SAME, SLOWER, FASTER = "no difference", "slower", "faster"
REAL = ("bert-tiny.dynamo", "mobilenetv3-s.dynamo")  # a small transformer and a CNN, as an exporter writes them
WRONG, MISSED = 0.05, 0.10  # shares that are promised at most
RUNS, MINUTE = (0.01, 0.05), 60.0  # seconds: what is simulated


@dataclass(frozen=True)
class Limits:
    """How the command is asked."""

    seconds: float  # the most for one answer
    clock: str = "wall"


@dataclass(frozen=True)
class Trial:
    """One asking of the command, and what is right to say."""

    what: str
    first: Path
    second: Path
    right: str
    seed: int

    def key(self, limits: Limits) -> str:
        """Tells trials apart in what is kept."""
        return f"{self.what} #{self.seed}, {limits.seconds:g} s, {limits.clock} clock"


# The same file twice, and planted work


def same(folder: Path, models: Path, times: int) -> Iterator[Trial]:
    """Files of different kinds in turn, each under two names."""
    files = [_exported(models, name) for name in REAL] + [_chain(folder, "attention", chains.UNITS)]
    for seed, path in zip(range(times), itertools.cycle(files), strict=False):
        again = folder / f"again-{path.name}"
        if not again.exists():
            shutil.copyfile(path, again)
        yield Trial(f"same {path.stem}", path, again, SAME, seed)


def planted(folder: Path, share: float, times: int) -> Iterator[Trial]:
    """Chains of each kind in turn, against chains with that share of units more."""
    more = round(chains.UNITS * (1 + share))
    for seed, kind in zip(range(times), itertools.cycle(chains.KINDS), strict=False):
        first, second = (_chain(folder, kind, units) for units in (chains.UNITS, more))
        yield Trial(f"{more - chains.UNITS} % planted in {kind}", first, second, SLOWER, seed)


def _exported(models: Path, name: str) -> Path:
    path, (model, exporter) = models / f"{name}.onnx", name.split(".")
    if not path.exists():
        tell(f"exporting {name}")
        subprocess.run([sys.executable, HERE / "zoo.py", models, exporter, model], check=True)
    return path


def _chain(folder: Path, kind: str, units: int) -> Path:
    path = folder / f"{kind}-{units}.onnx"
    if not path.exists():
        onnx.save(chains.chain(kind, units), path)
    return path


def ask(trial: Trial, limits: Limits) -> dict[str, Any]:
    """What the command says of two files."""
    words = [sys.executable, "-m", "sardonyx", "bench", trial.first, trial.second, "--json", "--starts", "0"]
    words += ["--seconds", limits.seconds, "--clock", limits.clock, "--seed", trial.seed]
    said = json.loads(subprocess.run(list(map(str, words)), check=True, capture_output=True).stdout)
    found = said["points"][0]["timings"][1]["against_first"]
    return found | {"spent": said["seconds"]["timing"], "busy": said["machine"]["busy_during"]}


def asked(trials: Iterator[Trial], limits: Limits, kept: Path) -> list[bool]:
    """Whether each trial was answered rightly; those that are kept are not asked again."""
    known = dict(json.loads(line) for line in kept.read_text().splitlines()) if kept.exists() else {}
    right: list[bool] = []
    for trial in trials:
        key = trial.key(limits)
        if key not in known:
            known[key] = ask(trial, limits)
            with kept.open("a") as file:
                file.write(json.dumps([key, known[key]]) + "\n")
        found = known[key]
        right.append(found["finding"] == trial.right)
        tell(
            f"{'      ' if right[-1] else 'WRONG '}{key}: {found['finding']}, {found['ratio']:.4f} "
            f"[{found['low']:.4f}, {found['high']:.4f}], floor {found['floor']:.1%}, {found['rounds']} rounds, "
            f"{found['spent']:.0f} s"
        )
    return right


# Simulated machines


def simulated(name: str, run: float, ratio: float, times: int) -> collections.Counter[str]:
    """Verdicts about one kind of noise, and how often the interval held the truth."""
    found: collections.Counter[str] = collections.Counter()
    for seed in range(times):
        race = noise.simulated(noise.NOISES[name], ratio=ratio, run=run, seconds=MINUTE, seed=seed)
        said = race.comparison("other")
        found[str(said.finding)] += 1
        found["covered"] += said.low <= ratio <= said.high
        found["seconds"] += round(race.spent)
    return found


def simulate(times: int) -> list[Claim]:
    """All kinds of noise, short and long runs, with no difference and with three percent either way."""
    claims: list[Claim] = []
    cases = list(itertools.product(noise.NOISES, RUNS, (1.0, 0.97, 1.03)))
    with concurrent.futures.ProcessPoolExecutor() as pool:
        results = pool.map(simulated, *zip(*cases, strict=True), [times] * len(cases))
        for (name, run, ratio), found in zip(cases, results, strict=True):
            right = SAME if ratio == 1 else FASTER if ratio < 1 else SLOWER
            wrong = 1 - found[right] / times
            covered, seconds = found["covered"] / times, found["seconds"] / times
            what = f"{name}, runs of {1000 * run:.0f} ms, ratio {ratio}: {'wrong' if ratio == 1 else 'missed'}"
            beside = f"interval covers {covered:.0%}, {seconds:.0f} s"
            claims.append(Claim(what, wrong, WRONG if ratio == 1 else MISSED, "", beside))
            tell(claims[-1].line())
    return claims


def main(arguments: Sequence[str]) -> int:
    """Do what is asked and say whether it was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, metavar="TIMES", default=0)
    parser.add_argument("--planted", type=float, metavar="SHARE", help="of the work, a multiple of a hundredth")
    parser.add_argument("--times", type=int, default=20, help="of --planted")
    parser.add_argument("--simulate", type=int, metavar="TIMES", default=0)
    parser.add_argument("--seconds", type=float, help="the most for one answer (same: 20, planted: 60)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: where others use the machine")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sardonyx-believable")
    parser.add_argument("--models", type=Path, help="where exports are or go (default: the folder)")
    wish = parser.parse_args(arguments)
    wish.folder.mkdir(parents=True, exist_ok=True)
    kept, claims = wish.folder / "trials.jsonl", list[Claim]()
    if wish.same:
        right = asked(
            same(wish.folder, wish.models or wish.folder, wish.same), Limits(wish.seconds or 20.0, wish.clock), kept
        )
        claims.append(Claim("the same file twice: differences claimed", right.count(False) / len(right), WRONG, ""))
    if wish.planted:
        right = asked(planted(wish.folder, wish.planted, wish.times), Limits(wish.seconds or MINUTE, wish.clock), kept)
        claims.append(Claim(f"{wish.planted:.0%} planted: not found", right.count(False) / len(right), MISSED, ""))
    if wish.simulate:
        claims += simulate(wish.simulate)
    if not claims:
        parser.error("say --same, --planted or --simulate")
    print("\n".join(claim.line() for claim in claims))
    return int(not all(claim.met for claim in claims))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
