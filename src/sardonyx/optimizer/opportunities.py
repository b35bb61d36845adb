"""What could be fused or dropped in a model, and why what could not: patterns before and after every pass has run.

The passes are run for real on a copy and nothing is written, so what is said here is what `optimize` does. A place that
is left is explained by the pass that came nearest to it: the refusal that shares most nodes with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sardonyx.analysis.census import Census
from sardonyx.analysis.fusion_patterns import PATTERNS, Finding, Pattern, Survey
from sardonyx.ir import origins
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import label
from sardonyx.optimizer import run_tables
from sardonyx.optimizer.candidates import Candidate, Progress, RewriteJob, Source
from sardonyx.optimizer.pipeline import select
from sardonyx.provenance import merge, owner_of
from sardonyx.records.inspection import Opportunities, PatternCount, WhyLeft
from sardonyx.records.run import Refusal

EXAMPLES = 3  # nodes named for each reason
NOBODY = "no pass came near"

Found = Mapping[str, Sequence[Finding]]


def opportunities(
    source: Source, *, target: Literal["portable", "ort"] = "portable", progress: Progress | None = None
) -> Opportunities:
    """Patterns that optimizers look for, found in a model and left once the passes have run; nothing is written.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        progress: Told the phase, and how far it is where that is known.
    """
    tell: Progress = progress or (lambda _phase, _fraction: None)
    untouched = RewriteJob(source, (), target, tell)
    before = untouched.candidate()
    had = {name: _by_module(places) for name, places in _found(before, target).items()}
    job = RewriteJob(source, select(target), target, tell)
    after = job.candidate()
    left, nearest = _found(after, target), _Refusals(after.log.refusals)
    return Opportunities(
        path=None if job.path is None else str(job.path),
        target=target,
        before=before.before.counts,
        after=Census.of(after.model).counts,
        patterns=tuple(_count(pattern, had[pattern.name], left[pattern.name], nearest) for pattern in PATTERNS),
        passes=run_tables.pass_records(job.passes, after.log),
    )


def _found(candidate: Candidate, target: str) -> Found:
    facts = Facts(candidate.model, target=target)
    facts.infer()
    survey = Survey(facts)
    return {pattern.name: tuple(pattern.find(survey)) for pattern in PATTERNS}


def _count(pattern: Pattern, had: dict[str, int], left: Sequence[Finding], nearest: _Refusals) -> PatternCount:
    why = () if pattern.made else tuple(_reasons(left, nearest))
    return PatternCount(pattern.name, pattern.what, pattern.made, sum(had.values()), len(left), had, why)


def _by_module(places: Iterable[Finding]) -> dict[str, int]:
    return dict(sorted(Counter(map(_owner, places)).items()))


def _owner(place: Finding) -> str:
    return owner_of(merge(map(origins.origins, place)))


def _reasons(left: Iterable[Finding], nearest: _Refusals) -> Iterator[WhyLeft]:
    """Places with the same reason together, the commonest first."""
    groups: dict[tuple[str | None, str], list[Finding]] = defaultdict(list)
    for place in left:
        refusal = nearest.to(place)
        groups[(None, NOBODY) if refusal is None else (refusal.pass_name, refusal.reason)].append(place)
    for (name, reason), places in sorted(groups.items(), key=lambda item: -len(item[1])):
        examples = tuple(label(place[-1]) for place in places[:EXAMPLES])
        yield WhyLeft(name, reason, len(places), _by_module(places), examples)


@dataclass(slots=True)
class _Refusals:
    """Refusals by the nodes they are about."""

    refusals: Sequence[Refusal]
    _at: dict[str, list[Refusal]] | None = None

    def to(self, place: Finding) -> Refusal | None:
        """The refusal that shares most nodes with a place; of equals, the one about least else."""
        if self._at is None:
            self._at = defaultdict(list)
            for refusal in self.refusals:
                for name in set(refusal.nodes):
                    self._at[name].append(refusal)
        shared: Counter[Refusal] = Counter()
        for node in place:
            shared.update(self._at.get(label(node), ()))
        return min(shared, key=lambda refusal: (-shared[refusal], len(refusal.nodes)), default=None)
