"""Attention sites before and after: paired by module and order, with the reason if unfused; real models too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from onnx import parser

import sardonyx
from narrowing import present
from sardonyx.records.run import AttentionForm, Refusal, RolledBack
from sardonyx.verbs.optimize.details import SiteDescription, pair_sites

PARTS = AttentionForm("", ("scores", "softmax", "result"))
SITE = SiteDescription("layer.0.attn", 4, 4, 8, "causal", True, False, False, PARTS, "softmax", "result")
FUSED = replace(SITE, form=AttentionForm("Attention", ("result",)), softmax="")
SmallModel = Callable[[str, str], Path]


def test_equal_modules_are_paired_in_any_order() -> None:
    before = [replace(SITE, module=module) for module in ("a", "b", "a")]
    after = [replace(FUSED, module=module, heads=heads) for module, heads in (("b", 1), ("a", 2), ("a", 3))]
    sites = pair_sites([replace(each, heads=None) for each in before], after)
    assert [(site.module, site.heads) for site in sites] == [("a", 2), ("b", 1), ("a", 3)]


def test_a_fused_operator_is_paired_with_sites_in_modules_below_it() -> None:
    before = [replace(SITE, module=f"layer.{place}.attn.core") for place in range(2)]
    after = [replace(FUSED, module=f"layer.{place}.attn") for place in (1, 0)]
    sites = pair_sites(before, after)
    assert [site.module for site in sites] == ["layer.0.attn.core", "layer.1.attn.core"]
    assert all(site.after is not None for site in sites)


def test_without_modules_sites_are_paired_by_order_or_not_at_all() -> None:
    before = [replace(SITE, module=f"MatMul_{place}") for place in range(2)]
    after = [replace(FUSED, module=f"Attention_{place}", head_size=place) for place in range(2)]
    assert [site.after is not None for site in pair_sites(before, after)] == [True, True]
    lost = pair_sites(before, after[:1])
    assert [(site.before is None, site.after is None) for site in lost] == [(False, True), (False, True), (True, False)]


@given(st.lists(st.sampled_from(["", "a", "a.b", "a.c", "d"])), st.lists(st.sampled_from(["", "a", "a.b", "d", "e"])))
def test_every_site_appears_exactly_once(before: list[str], after: list[str]) -> None:
    old = [replace(SITE, module=module, form=AttentionForm("", (f"b{at}",))) for at, module in enumerate(before)]
    new = [replace(FUSED, module=module, form=AttentionForm("A", (f"a{at}",))) for at, module in enumerate(after)]
    sites = pair_sites(old, new)
    assert [site.before for site in sites if site.before] == [each.form for each in old]
    assert Counter(site.after for site in sites if site.after) == Counter(each.form for each in new)


def test_facts_unknown_on_one_side_come_from_the_other() -> None:
    (site,) = pair_sites(
        [replace(SITE, heads=None, key_value_heads=None)], [replace(FUSED, head_size=None, mask="other")]
    )
    assert (site.heads, site.key_value_heads, site.head_size, site.mask) == (4, 4, 8, "causal")
    (site,) = pair_sites([replace(SITE, mask="a constant")], [replace(FUSED, mask="none")])
    assert site.mask == "none"  # the constant was all zeros


def test_an_unfused_site_has_the_reason_a_pass_gave_for_its_softmax() -> None:
    refusals = (
        Refusal("fuse-product-scale", "another matter", ("scores",), ""),
        Refusal("fuse-attention", "its weights are read elsewhere", ("scores", "softmax", "result"), ""),
    )
    (site,) = pair_sites([SITE], [SITE], refusals)
    assert site.why == "its weights are read elsewhere"
    (site,) = pair_sites([SITE], [SITE], refusals, [RolledBack("fuse-attention", "result", "", "y differs")])
    assert site.why == "fuse-attention was rolled back: y differs"
    (site,) = pair_sites([SITE], [FUSED], refusals)
    assert site.why == ""
    (site,) = pair_sites([replace(SITE, softmax="elsewhere")], [replace(SITE, softmax="elsewhere")], refusals)
    assert site.why == ""


EXPECTED = {  # sites, heads, key/value heads, head size, mask before
    "bert": (2, 2, 2, 16, "from an input"),
    "gpt2": (2, 2, 2, 16, "causal and from an input"),
    "llama": (2, 4, 2, 8, "causal and from an input"),
}


@pytest.mark.parametrize(("name", "exporter"), [(name, "torchscript") for name in EXPECTED] + [("llama", "dynamo")])
def test_sites_of_real_models_match_their_configs(name: str, exporter: str, small_model: SmallModel) -> None:
    for target in ("portable", "ort"):
        run = sardonyx.optimize(small_model(name, exporter), target=target, verify="off")
        assert len(run.attention) == EXPECTED[name][0]
        for site in run.attention:
            assert (site.heads, site.key_value_heads, site.head_size, site.mask) == EXPECTED[name][1:]
            assert site.module.rpartition(".")[2] in ("self", "attn", "self_attn")
            assert site.before is not None
            assert site.before.operator == ""
            assert site.after is not None
            assert site.after.operator.endswith("Attention")
            assert set(present(run.wiring_before).names) >= set(site.before.nodes)
            assert set(present(run.wiring_after).names) >= set(site.after.nodes)


def test_windows_with_different_head_counts_are_distinguished(small_model: SmallModel) -> None:
    run = sardonyx.optimize(small_model("swin", "torchscript"), verify="off")
    assert [(site.heads, site.head_size) for site in run.attention] == [(2, 8), (2, 8), (4, 8), (4, 8)]
    assert all(site.mask != "none" for site in run.attention)


def test_a_run_without_fusion_gives_the_reason(small_model: SmallModel) -> None:
    run = sardonyx.optimize(
        small_model("bert", "torchscript"), verify="off", options=sardonyx.OptimizeOptions(keep_opset=True)
    )
    assert [site.after.operator for site in run.attention if site.after] == ["", ""]
    assert all("opset" in site.why for site in run.attention)
    skipped = sardonyx.optimize(small_model("bert", "torchscript"), verify="off", skip=["fuse-attention"])
    assert [site.why for site in skipped.attention] == ["", ""]


def test_a_model_without_attention_has_no_sites() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> main (float[2, 3] x) => (float[2, 3] y) { y = Softmax(x) }'
    model: onnx.ModelProto = parser.parse_model(text)
    assert sardonyx.optimize(model, verify="off").attention == ()
