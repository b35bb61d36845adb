"""The places of attention of one graph, each described in words and numbers; no node is held on to."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx import collector
from sardonyx import provenance as p
from sardonyx.graph import origins
from sardonyx.graph.attention_sites.masking import Masking
from sardonyx.graph.attention_sites.parts import Parts
from sardonyx.graph.attention_sites.sizes import Measuring
from sardonyx.graph.facts import Facts
from sardonyx.graph.fingerprint.attention import Attention, Site, fused
from sardonyx.graph.fingerprint.reading import Reading
from sardonyx.graph.scopes import label
from sardonyx.wiring_record import AttentionForm


@dataclass(frozen=True, slots=True)
class FoundSite:
    """One place of attention in one graph."""

    module: str  # instance path of its owner
    heads: int | None  # of the queries; None: the graph does not say
    key_value_heads: int | None
    head_size: int | None
    mask: str
    causal: bool
    cached: bool
    cross: bool
    form: AttentionForm
    softmax: str  # the node; "" where it is inside an operator
    result: str  # the value that comes out: what a rewrite of the whole would be named after


def found(facts: Facts) -> tuple[FoundSite, ...]:
    """All places of attention of a model, in the order they run; the model is not changed."""
    with collector.paused():  # nothing made here is garbage before the end
        reading = Reading(facts.model)
        if reading.model is not facts.model:  # functions were written out in a copy
            facts = Facts(reading.model)
        attention = Attention(reading)
        if not attention.sites:
            return ()
        describe = _Describe(facts, reading, attention)
        return tuple(map(describe, attention.sites))


class _Describe:
    """Says what a place is like."""

    def __init__(self, facts: Facts, reading: Reading, attention: Attention) -> None:
        self._parts = Parts(facts, reading, attention)
        self._masking = Masking(facts, reading, attention)
        self._measuring = Measuring(facts, reading, attention)

    def __call__(self, site: Site) -> FoundSite:
        last = site.nodes[-1]
        spelled = fused(site.first) is None
        nodes = self._parts.of(site) if spelled else site.nodes
        sizes = self._measuring.spelled(site) if spelled else self._measuring.fused(site.first)
        operator = "" if spelled else _operator(site.first)
        return FoundSite(
            module=p.owner_of(p.merge(origins.origins(node) for node in site.nodes)),
            heads=sizes.heads,
            key_value_heads=sizes.key_value_heads,
            head_size=sizes.head_size,
            mask=self._masking.spelled(site, nodes) if spelled else self._masking.fused(site.first),
            causal=site.causal,
            cached=site.cached,
            cross=site.cross,
            form=AttentionForm(operator, tuple(map(label, nodes))),
            softmax=label(site.nodes[1]) if spelled else "",
            result=last.outputs[0].name or "",
        )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
