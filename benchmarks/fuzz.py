"""Random models against the optimizer: nothing wrong, no crash, nothing slow, on hostile values and sizes.

    python benchmarks/fuzz.py --count 20000 --first 0 --jobs 2 --out found [--family attention] [--coverage]
    python benchmarks/fuzz.py --seed 1234 [--family attention]     # one model, in full

Each seed gives the same model on every run. A model is accepted if ONNX Runtime, without its optimizations, loads it
and runs it on an input. It is optimized for both targets and to the fewest nodes, with verification off. Each result
must be valid, keep the interface, stay within the size limit and give the same outputs. What fails is reduced to a few
nodes and written to the folder. Models run in worker processes, so that a crash of native code is a finding too.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import os
import re
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnx

from fuzzing import families, judging, lanes, running, shrinking
from fuzzing.draft import Rejected
from sardonyx.passes import ALL

PATIENCE = {"draw": 10.0, "source": 10.0}  # seconds that a worker may be silent: the source may compute something huge
PATIENCE_ELSE = 90.0
KEPT = 2  # reproducers of each signature


@dataclass
class Report:
    """What became of one seed."""

    seed: int
    family: str
    rejected: str = ""
    before: int = 0
    after: int = 0
    fired: tuple[str, ...] = ()
    hidden: int = 0
    rounding: int = 0
    slowest: float = 0.0
    faults: list[Fault] = field(default_factory=list)


@dataclass
class Fault:
    """A finding in words."""

    kind: str
    setting: str
    text: str
    passes: tuple[str, ...]
    folder: str = ""

    @property
    def grave(self) -> bool:
        """Whether it counts as a fault."""
        return self.kind not in judging.TOLERATED

    @property
    def signature(self) -> tuple[str, tuple[str, ...]]:
        """What makes two findings the same."""
        return self.kind, self.passes[-1:] or (re.sub(r"[\d.]+|v\d+|'.*?'", "", self.text)[:60],)


# ---------------------------------------------------------------------------------------------- one model


def examine(
    seed: int, family: str | None, out: Path | None, seen: collections.Counter[Any], tell: Any = lambda _stage: None
) -> Report:
    """Draw, judge and, where something is wrong, reduce the model of a seed."""
    tell("draw")
    family = family or families.family_of(seed)
    try:
        drawn = families.draw(seed, family)
        feeds = running.feeds(drawn.inputs, drawn.sizes, seed)
        tell("source")
        source = judging.Source(drawn.model, feeds)
    except (Rejected, running.Failed) as failed:
        return Report(seed, family, rejected=str(failed)[:80] or "rejected")
    if not source.answers:
        return Report(seed, drawn.family, rejected="no feed runs")
    tell("judge")
    judged = judging.judge(source)
    fired = tuple(sorted({name for names in judged.fired.values() for name in names}))
    report = Report(
        seed, drawn.family, "", judged.before, judged.after, fired, judged.hidden, judged.rounding, judged.slowest
    )
    for finding in judged.findings:
        feed = finding.feed if finding.feed is not None else source.answers[0][1]
        tell("attribute")
        fault = _fault(shrinking.Case(drawn.model, feed, finding), drawn, out, seen, tell)
        report.faults.append(fault)
        if fault.setting == "portable" and fault.grave:
            break  # the other settings share these passes
    return report


def _fault(
    case: shrinking.Case, drawn: families.Drawn, out: Path | None, seen: collections.Counter[Any], tell: Any
) -> Fault:
    finding = case.finding
    fault = Fault(finding.kind, finding.setting, finding.text, shrinking.responsible(case))
    seen[fault.signature] += 1
    if out is None or not finding.grave or seen[fault.signature] > KEPT:
        return fault
    tell(f"shrink {fault.signature}")
    small = shrinking.shrunk(case)
    text = f"{small.finding.kind}, {finding.setting}: {small.finding.text}\npasses: {', '.join(fault.passes)}\n"
    text += f"seed {drawn.seed}, family {drawn.family}, feed {finding.feed_name}"
    name = f"{finding.kind}-{'+'.join(fault.passes[:2]) or 'driver'}-{drawn.family}-{drawn.seed}"
    shrinking.save(small, out / name, text)
    fault.folder, fault.text = name, small.finding.text
    return fault


# ---------------------------------------------------------------------------------------------- workers


def work(connection: lanes.Connection, seeds: range, family: str | None, out: Path | None) -> None:
    """Examine seeds one after another, and say which stage each is in."""
    seen: collections.Counter[Any] = collections.Counter()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)  # the runtime complains there about every hostile model
    for seed in seeds:
        try:
            report = examine(seed, family, out, seen, lambda stage, seed=seed: connection.send((seed, stage)))
        except Exception:
            text = traceback.format_exc().strip().splitlines()
            report = Report(
                seed,
                family or families.family_of(seed),
                faults=[Fault("fuzzer", "", f"{text[-1]} ({text[-3].strip()})", ())],
            )
        connection.send(report)
    connection.send(None)


def ended(family: str | None, seed: int, stage: str, _hangs: bool, code: int | None) -> Report:
    """Return the report of a seed on which the worker died or hung; before it is optimized, the model is to blame."""
    report = Report(seed, family or families.family_of(seed))
    if stage in ("draw", "source"):
        report.rejected = "the runtime dies of the source, or does not finish"
    else:
        report.faults = [Fault("died", "", f"stage {stage}, exit code {code}", (stage.split()[0],))]
    return report


def job(family: str | None, out: Path | None) -> lanes.Job[Report]:
    """What the workers do."""
    working = functools.partial(work, family=family, out=out)
    return lanes.Job(working, functools.partial(ended, family), lambda stage: PATIENCE.get(stage, PATIENCE_ELSE))


def campaign(seeds: range, jobs: int, family: str | None, out: Path | None, quiet: bool = False) -> list[Report]:
    """Every report of a range of seeds."""
    return lanes.campaign(seeds, jobs, job(family, out), quiet=quiet)


# ---------------------------------------------------------------------------------------------- tables


COLUMNS = ("drawn", "accepted", "nodes", "after", "rounding", "hidden", "slowest", "wrong")


def summary(reports: list[Report]) -> str:
    """A table by family, then every distinct finding."""
    lines = [f"{'family':12}" + "".join(f"{each:>9}" for each in COLUMNS)]
    by_family: dict[str, list[Report]] = collections.defaultdict(list)
    grouped: dict[Any, list[tuple[Report, Fault]]] = collections.defaultdict(list)
    for each in reports:
        by_family[each.family].append(each)
        for fault in each.faults:
            grouped[fault.signature].append((each, fault))
    lines += [f"{family:12}" + _row(group) for family, group in sorted(by_family.items())]
    lines.append(f"{'all':12}" + _row(reports))
    for (kind, passes), group in sorted(grouped.items(), key=lambda item: (not item[1][0][1].grave, -len(item[1]))):
        each, fault = group[0]
        noted = "" if fault.grave else f" (tolerated: {judging.TOLERATED[kind]})"
        lines.append(f"{len(group):5} × {kind} [{', '.join(passes)}]{noted}")
        lines.append(f"        e.g. seed {each.seed} ({each.family}): {fault.text[:150]} {fault.folder}")
    return "\n".join(lines)


def _row(group: list[Report]) -> str:
    kept = [each for each in group if not each.rejected]
    wrong = sum(any(fault.grave for fault in each.faults) for each in group)
    sums = [sum(getattr(each, name) for each in kept) for name in ("before", "after", "rounding", "hidden")]
    slowest = f"{max((each.slowest for each in kept), default=0):.2f} s"
    return "".join(f"{each:>9}" for each in (len(group), len(kept), *sums, slowest, wrong))


def coverage(reports: list[Report]) -> str:
    """How many models each pass changed."""
    counts = collections.Counter(name for each in reports for name in each.fired)
    return "\n".join(f"{counts[each.name]:6} {each.name}" for each in ALL)


def main() -> int:
    """Run a campaign, or one seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--family", choices=families.FAMILIES, help="only this family")
    parser.add_argument("--out", type=Path, help="where reproducers go")
    parser.add_argument("--coverage", action="store_true", help="print how many models each pass changed")
    parser.add_argument("--seed", type=int, help="one model, in full")
    asked = parser.parse_args()
    if asked.seed is not None:
        return one(asked.seed, asked.family, asked.out)
    reports = campaign(range(asked.first, asked.first + asked.count), asked.jobs, asked.family, asked.out)
    print(summary(reports))
    if asked.coverage:
        print(coverage(reports))
    return int(any(fault.grave for each in reports for fault in each.faults))


def one(seed: int, family: str | None, out: Path | None) -> int:
    """Print a seed's model and what is wrong with it."""
    with contextlib.suppress(Rejected):
        print(onnx.printer.to_text(families.draw(seed, family).model))
    report = examine(seed, family, out, collections.Counter())
    print(report)
    return int(any(fault.grave for fault in report.faults))


if __name__ == "__main__":
    sys.exit(main())
