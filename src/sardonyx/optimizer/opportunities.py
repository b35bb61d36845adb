"""Find patterns that can be fused or removed in a model, and why those that remain after all passes were not rewritten.

The passes run on a copy and nothing is written, so the answer is what `optimize` does. A remaining pattern is explained
by the pass that came nearest to matching it: the near miss that shares the most nodes with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from sardonyx.analysis.census import Census
from sardonyx.analysis.fusion_patterns import PATTERNS, Pattern, PatternMatch, Survey
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
NO_NEAR_MISS = "no pass nearly matched"

Findings = Mapping[str, Sequence[PatternMatch]]  # by pattern


def opportunities(
    source: Source, *, target: Literal["portable", "ort"] = "portable", progress: Progress | None = None
) -> Opportunities:
    """Count patterns that optimizers look for in a model, before and after the passes run; nothing is written.

    Args:
        source: A model file, a `ModelProto` or an `onnx_ir.Model`; it is not changed.
        target: "portable" for standard operators only, "ort" for ONNX Runtime's own as well.
        progress: Called with the phase, and the fraction done if known.
    """
    progress = progress or (lambda _phase, _fraction: None)
    before = RewriteJob(source, (), target, progress).candidate()
    counts = {name: _by_module(findings) for name, findings in _find(before, target).items()}
    job = RewriteJob(source, select(target), target, progress)
    after = job.candidate()
    left, near_misses = _find(after, target), _NearMisses(after.log.refusals)
    return Opportunities(
        path=None if job.path is None else str(job.path),
        target=target,
        before=before.before.counts,
        after=Census.of(after.model).counts,
        patterns=tuple(_count(each, counts[each.name], left[each.name], near_misses) for each in PATTERNS),
        passes=run_tables.pass_records(job.passes, after.log),
    )


def _find(candidate: Candidate, target: str) -> Findings:
    facts = Facts(candidate.model, target=target)
    facts.infer()
    survey = Survey(facts)
    return {pattern.name: tuple(pattern.find(survey)) for pattern in PATTERNS}


def _count(
    pattern: Pattern, before: dict[str, int], left: Sequence[PatternMatch], near_misses: _NearMisses
) -> PatternCount:
    why = () if pattern.made else tuple(_reasons(left, near_misses))
    return PatternCount(pattern.name, pattern.what, pattern.made, sum(before.values()), len(left), before, why)


def _by_module(findings: Iterable[PatternMatch]) -> dict[str, int]:
    return dict(sorted(Counter(map(_owner, findings)).items()))


def _owner(nodes: PatternMatch) -> str:
    return owner_of(merge(map(origins.origins, nodes)))


def _reasons(left: Iterable[PatternMatch], near_misses: _NearMisses) -> Iterator[WhyLeft]:
    """Group remaining patterns by reason, the most frequent reason first."""
    groups: dict[tuple[str | None, str], list[PatternMatch]] = defaultdict(list)
    for nodes in left:
        refusal = near_misses.nearest(nodes)
        groups[(None, NO_NEAR_MISS) if refusal is None else (refusal.pass_name, refusal.reason)].append(nodes)
    for (name, reason), findings in sorted(groups.items(), key=lambda item: -len(item[1])):
        examples = tuple(label(nodes[-1]) for nodes in findings[:EXAMPLES])
        yield WhyLeft(name, reason, len(findings), _by_module(findings), examples)


class _NearMisses:
    """The near misses of all passes, by the nodes they are about."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        self._by_node: dict[str, list[Refusal]] = defaultdict(list)
        for refusal in refusals:
            for name in set(refusal.nodes):
                self._by_node[name].append(refusal)

    def nearest(self, nodes: PatternMatch) -> Refusal | None:
        """Return the near miss that shares the most of these nodes, and has the fewest others; None if none does."""
        shared: Counter[Refusal] = Counter()
        for node in nodes:
            shared.update(self._by_node.get(label(node), ()))
        return min(shared, key=lambda refusal: (-shared[refusal], len(refusal.nodes)), default=None)
