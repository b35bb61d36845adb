"""Puts the places of attention of a source beside those of its result: by module, then by the order they run in.

A fused operator does the work of nodes of several modules, so that its module may lie above that of what it replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sardonyx import provenance as p
from sardonyx.graph.attention_sites.finding import FoundSite
from sardonyx.graph.attention_sites.masking import NONE
from sardonyx.record import Refusal, RolledBack
from sardonyx.wiring_record import AttentionSite

Fits = Callable[[FoundSite, FoundSite], bool]


def paired(
    before: Sequence[FoundSite],
    after: Sequence[FoundSite],
    refusals: Iterable[Refusal] = (),
    rolled_back: Iterable[RolledBack] = (),
) -> tuple[AttentionSite, ...]:
    """Every place once, in the order of the source; what only the result has comes last."""
    partners = _partners(before, after)
    taken = set(partners.values())
    why_not = _Reasons(refusals, rolled_back)
    sites = [_site(each, after[partners[place]] if place in partners else None, why_not)
             for place, each in enumerate(before)]  # fmt: skip
    sites += [_site(None, each, why_not) for place, each in enumerate(after) if place not in taken]
    return tuple(sites)


def _partners(before: Sequence[FoundSite], after: Sequence[FoundSite]) -> dict[int, int]:
    """Places in `before`, and their partners' in `after`."""
    found: dict[int, int] = {}
    ways: tuple[Fits, ...] = (
        lambda one, other: one.module == other.module,
        lambda one, other: p.is_within(one.module, other.module) or p.is_within(other.module, one.module),
    )
    for fits in ways:
        free = [place for place in range(len(after)) if place not in set(found.values())]
        for place, one in enumerate(before):
            partner = None if place in found else next((each for each in free if fits(one, after[each])), None)
            if partner is not None:
                found[place] = partner
                free.remove(partner)
    rest = [place for place in range(len(before)) if place not in found]
    free = [place for place in range(len(after)) if place not in set(found.values())]
    if len(rest) == len(free):  # modules say nothing, but all are there
        found.update(zip(rest, free, strict=True))
    return found


def _site(before: FoundSite | None, after: FoundSite | None, why_not: _Reasons) -> AttentionSite:
    one = before or after
    assert one is not None, "a place was found somewhere"
    other = after or one
    return AttentionSite(
        module=one.module,
        heads=one.heads or other.heads,
        key_value_heads=one.key_value_heads or other.key_value_heads,
        head_size=one.head_size or other.head_size,
        mask=NONE if other.mask == NONE else one.mask,  # one of zeros is only seen through when it is folded
        causal=one.causal,
        cached=one.cached,
        cross=one.cross,
        before=before.form if before is not None else None,
        after=after.form if after is not None else None,
        why="" if after is None or after.form.operator else why_not(after),
    )


class _Reasons:
    """Why a place is still in parts: what a pass said that looked at its Softmax, or that a fusion did not hold."""

    def __init__(self, refusals: Iterable[Refusal], rolled_back: Iterable[RolledBack]) -> None:
        self._by_node: dict[str, str] = {}
        for refusal in refusals:
            for node in refusal.nodes:
                self._by_node.setdefault(node, refusal.reason)
        self._undone = {each.root: each for each in rolled_back}

    def __call__(self, site: FoundSite) -> str:
        undone = self._undone.get(site.result)
        if undone is not None:
            return f"{undone.pass_name} was rolled back: {undone.reason}"
        return self._by_node.get(site.softmax, "")
