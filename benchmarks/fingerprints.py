"""How often the fingerprint is right, on architectures that its rules were not written on and on all.

    python benchmarks/fingerprints.py FOLDER [--export] [--optimize] [--only held|seen] [-v]

FOLDER keeps the exports (benchmarks/family_zoo.py) and what `optimize` makes of them; --export and --optimize add what
is missing: about 3 s an architecture with TorchScript, 20 s with dynamo, 2 s an optimization. Judging what is there
takes half a minute. An architecture is right when every form of it is: both exporters, raw, portable and `ort`.

Two verdicts. *Held out*: half of the lineages, drawn by a seed before the rules were written, which nobody looked at
until they stood. *Left out*: the borders of the rules are fitted anew to all lineages but one, and tried on that one;
where several settings fit equally well, their mean.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import family_zoo
from family_makers import Subject
from sardonyx.ir.io import load
from sardonyx.verbs.analyze.fingerprint import THRESHOLDS, Features, Thresholds, classify, features

EXPORTERS, TARGETS = ("torchscript", "dynamo"), ("portable", "ort")
ENOUGH, MANY = 0.95, 40


@dataclass(frozen=True)
class Sample:
    """One file of an architecture."""

    subject: Subject
    form: str  # "dynamo", "dynamo.ort", …
    found: Features
    nodes: int
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the family is told."""
        return classify(self.found).family == self.subject.family


def optimize_missing(folder: Path) -> None:
    """Write what `optimize` makes of every export, for both targets."""
    from sardonyx import optimize

    for subject, exporter, target in itertools.product(family_zoo.subjects(), EXPORTERS, TARGETS):
        source = folder / f"{subject.name}.{exporter}.onnx"
        result = folder / f"{subject.name}.{exporter}.{target}.onnx"
        if source.exists() and not result.exists():
            optimize(source, result, target=target, verify="off")


def samples(folder: Path) -> Iterator[Sample]:
    """Every file of the folder, read and timed."""
    forms = [".".join(filter(None, form)) for form in itertools.product(EXPORTERS, ("", *TARGETS))]
    for subject, form in itertools.product(family_zoo.subjects(), forms):
        path = folder / f"{subject.name}.{form}.onnx"
        if path.exists():
            model = load(path)
            began = time.process_time()
            found = features(model)
            yield Sample(subject, form, found, len(model.graph), time.process_time() - began)


def right_architectures(found: list[Sample], at: Thresholds = THRESHOLDS) -> dict[str, bool]:
    """Whether all forms of an architecture are told right."""
    families = {each: classify(each, at).family for each in {sample.found for sample in found}}  # many files are alike
    verdicts: dict[str, bool] = defaultdict(lambda: True)
    for sample in found:
        verdicts[sample.subject.name] &= families[sample.found] == sample.subject.family
    return dict(verdicts)


def left_out(found: list[Sample]) -> float:
    """The share of architectures that are right when borders are fitted without their lineage."""
    settings = [
        Thresholds(stem, few, rare, reads, hides, sparse)
        for stem, few, rare in itertools.product((1, 2, 3, 4, 5), (0.1, 0.25, 0.5, 1.0), (0.02, 0.05, 0.1, 0.2))
        for reads, hides, sparse in itertools.product((0.1, 0.2, 0.4), (0.25, 0.5, 0.75), (0.06, 0.125, 0.25))
    ]
    verdicts = [right_architectures(found, at) for at in settings]
    group = {sample.subject.name: sample.subject.group for sample in found}
    total = 0.0
    for held in set(group.values()):
        inside = [name for name in group if group[name] == held]
        scores = [sum(verdict[name] for name in group if group[name] != held) for verdict in verdicts]
        best = [verdict for verdict, score in zip(verdicts, scores, strict=True) if score == max(scores)]
        total += sum(verdict[name] for verdict in best for name in inside) / len(best)
    return total / len(group)


def show(title: str, found: list[Sample]) -> float:
    """One line: architectures and files that are right."""
    verdicts = right_architectures(found)
    files = sum(sample.right for sample in found)
    share = sum(verdicts.values()) / len(verdicts)
    print(f"{title:32s} {sum(verdicts.values()):3d} of {len(verdicts):3d} architectures ({share:.1%}), ", end="")
    print(f"{files} of {len(found)} files ({files / len(found):.1%})")
    return share


def main() -> int:
    """Judge, and say whether the claim holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--optimize", action="store_true")
    parser.add_argument("--only", choices=("held", "seen"))
    parser.add_argument("-v", "--verbose", action="store_true", help="the evidence of every file")
    asked = parser.parse_args()
    if asked.export:
        for exporter in EXPORTERS:
            family_zoo.main([str(asked.folder), exporter])
    if asked.optimize:
        optimize_missing(asked.folder)
    held = family_zoo.held_out()
    wanted = {"held": (True,), "seen": (False,)}.get(asked.only, (True, False))
    found = [sample for sample in samples(asked.folder) if (sample.subject.group in held) in wanted]
    for sample in found:
        if asked.verbose or not sample.right:
            judged = classify(sample.found)
            print(f"{'right' if sample.right else 'WRONG'} {sample.subject.name:26s} {sample.form:22s} ", end="")
            print(f"{judged.family.value} {judged.confidence:.2f} ({', '.join(judged.evidence)})", end="")
            print("" if sample.right else f", should be {sample.subject.family}")
    return verdict(found, held)


def verdict(found: list[Sample], held: set[str]) -> int:
    """The shares by family and by half, and the claim."""
    for family in dict.fromkeys(sample.subject.family for sample in found):
        show(family, [sample for sample in found if sample.subject.family == family])
    halves = {"held out": [s for s in found if s.subject.group in held]}
    halves["seen"] = [s for s in found if s.subject.group not in held]
    shares = {title: show(title, half) for title, half in halves.items() if half}
    count = len({sample.subject.name for sample in found})
    share = left_out(found)
    print(f"{'left out, borders fitted anew':32s} {share:.1%} of {count} architectures")
    nodes, seconds = sum(s.nodes for s in found), sum(s.seconds for s in found)
    print(f"{1e6 * seconds / nodes:.1f} ms of processor time for 1,000 nodes")
    holds = min(*shares.values(), share) >= ENOUGH and count >= MANY
    claim = f"at least {ENOUGH:.0%} right on at least {MANY} architectures that it was not built on"
    print(f"claim: {claim}: {'holds' if holds else 'FAILS'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
