"""Fused attention computes the same as its source for every form and every mask."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings

import sardonyx
from passes.attentions import forms
from passes.util import outputs
from sardonyx.ir.facts import Facts
from sardonyx.ir.rules import Match
from sardonyx.passes.attention.fuse_attention import FuseAttention
from sardonyx.verbs.analyze.fingerprint.attention import Attention, GraphView

TOLERANCE = {"float32": (1e-3, 1e-5), "float16": (2e-2, 1e-6)}


def differs(wanted: np.ndarray, got: np.ndarray) -> str:
    """Whether two results differ. A row fully masked by -inf may be NaN before and 0 afterwards."""
    assert wanted.dtype == got.dtype
    assert wanted.shape == got.shape
    rtol, atol = TOLERANCE[wanted.dtype.name]
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    freed = np.isnan(wanted) & (got == 0)
    if (np.isnan(wanted) != (np.isnan(got) | freed)).any():
        return f"{np.isnan(got).sum()} NaN for {np.isnan(wanted).sum()}"
    kept = ~np.isnan(wanted)
    wanted, got = wanted[kept], got[kept]
    if not wanted.size:
        return ""
    scale = np.maximum(np.abs(wanted), np.median(np.abs(wanted)))
    excess = np.abs(wanted - got) - (atol + rtol * scale)
    worst = int(np.argmax(excess))
    return "" if (excess <= 0).all() else f"{(excess > 0).sum()} differ, the worst {got[worst]:g} for {wanted[worst]:g}"


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(forms())
def test_every_form_computes_what_its_source_does(case: tuple[onnx.ModelProto, dict[str, np.ndarray]]) -> None:
    model, feeds = case
    wanted = outputs(model, feeds)
    for target in ("portable", "ort"):
        made = sardonyx.optimize(model, target=target, verify="off").model
        assert made is not None
        got = outputs(ir.to_proto(made), feeds)
        assert not [different for pair in zip(wanted, got, strict=True) if (different := differs(*pair))], target


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(forms())
def test_every_attention_that_is_fused_is_a_site_of_the_same_products(
    case: tuple[onnx.ModelProto, dict[str, np.ndarray]],
) -> None:
    view = GraphView(ir.from_proto(case[0]))
    facts, rule = Facts(view.model), FuseAttention()
    facts.infer()
    sites = {site.nodes[1]: site for site in Attention(view).sites}
    for node in (node for node, name in view.names.items() if name == "Softmax"):
        match = rule.outcome(rule.match, node, facts)
        if isinstance(match, Match):
            assert sites[node].nodes[2] is match.root
            assert sites[node].first in match.nodes
