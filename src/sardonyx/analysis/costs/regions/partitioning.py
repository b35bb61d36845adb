"""Every operation into exactly one region: the rules in their order, then what no rule took, each by itself."""

from __future__ import annotations

from collections import defaultdict

from sardonyx.analysis.costs.program import Program
from sardonyx.analysis.costs.regions.attention import AttentionRule
from sardonyx.analysis.costs.regions.convolution import ConvolutionRule
from sardonyx.analysis.costs.regions.dataflow import Flow
from sardonyx.analysis.costs.regions.elementwise import ElementwiseRule
from sardonyx.analysis.costs.regions.growth import Board, RegionRule
from sardonyx.analysis.costs.regions.linear import LinearRule
from sardonyx.analysis.costs.regions.norm import NormRule
from sardonyx.analysis.costs.regions.parallel import ParallelLinearsRule, ParallelQkvRule
from sardonyx.analysis.costs.regions.region import ALONE, Partition, Quotient, region_of

# The order decides who gets what two rules could take. Attention is the largest; parallel projections are told by the
# attention they end in; a linear layer takes its bias and activation before a norm or a chain may take them.
RULES: tuple[RegionRule, ...] = (
    AttentionRule(),
    ParallelQkvRule(),
    ParallelLinearsRule(),
    ConvolutionRule(),
    LinearRule(),
    NormRule(),
    ElementwiseRule(),
)


def partition(program: Program) -> Partition:
    """The regions of a program, in an order in which they can run."""
    flow = Flow(program)
    quotient = Quotient(flow.steps, flow.before)
    board = Board(flow, quotient, set(flow.steps))
    for rule in RULES:
        for found in rule.find(board):
            board.claim(rule.name, found)
    rule_of = {step: claim.rule for claim in board.claims for step in claim.steps}
    groups = quotient.groups()
    region_at = {step: index for index, steps in enumerate(groups) for step in steps}
    riding = _riding(flow, region_at, len(groups))
    regions = [
        region_of(flow, rule_of.get(steps[0], ALONE), steps, riding.pop(index, []),
                  {region_at[earlier] for step in steps for earlier in flow.before[step]} - {index})
        for index, steps in enumerate(groups)
    ]  # fmt: skip
    regions += [region_of(flow, ALONE, [], views, []) for views in riding.values()]
    return Partition(tuple(regions))


def _riding(flow: Flow, region_at: dict[int, int], spare: int) -> dict[int, list[int]]:
    """Views by the region they are counted with: their one reader's, else the writer's, else the first reader's.

    They cost nothing anywhere, and any region may look through them. What is a view from input to answer is by itself.
    """
    riding = defaultdict[int, list[int]](list)
    for view, readers in flow.views.items():
        regions = sorted({region_at[reader] for reader in readers})
        source = flow.view_sources[view]
        if source is not None and len(regions) != 1:
            regions = [region_at[source]]
        riding[regions[0] if regions else spare + view].append(view)
    return riding
