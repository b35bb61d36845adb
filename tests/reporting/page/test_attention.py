"""Attention on the page: equal layers as one row, values of the records, and a hint without measurements."""

from __future__ import annotations

import re

from msgspec.structs import replace

from reporting.sample_analysis import sample_analysis, sample_form
from reporting.sample_profile import HOSTILE, sample_profile
from reporting.sample_run import sample_run
from sardonyx.records.analysis import Analysis
from sardonyx.records.bench import Profile
from sardonyx.records.run import AttentionForm, AttentionSite, Run
from sardonyx.reporting import run as figures
from sardonyx.reporting.page.graph import attention_section
from sardonyx.reporting.run_bundle import RunBundle

PARTS = AttentionForm("", ("/attn0", "/attn0_softmax"))
WHOLE = AttentionForm("com.microsoft::MultiHeadAttention", ("/attn0",))
SITE = AttentionSite("layer.0.attn", 4, 4, 16, "causal", True, False, False, PARTS, WHOLE)


def _layers(count: int = 3) -> tuple[AttentionSite, ...]:
    return tuple(
        replace(
            SITE,
            module=f"layer.{place}.attn",
            before=AttentionForm("", (f"/attn{place}", f"/softmax{place}")),
            after=AttentionForm("Attention", (f"/attn{place}",)),
        )
        for place in range(count)
    )


def _run(*sites: AttentionSite) -> Run:
    run = sample_run()
    paths = [replace(one, path=path) for one, path in ((run.source, "before.onnx"), (run.result, "after.onnx"))]
    return replace(run, source=paths[0], result=paths[1], attention=sites)


def _analysis() -> Analysis:
    before = replace(sample_form(), name="before.onnx")
    return replace(sample_analysis(), forms=(before, replace(before, name="after.onnx")), sizes={"batch": 2})


def _rendered(run: Run, profile: Profile | None = None, analysis: Analysis | None = None) -> str:
    return str(attention_section(RunBundle("m", run, profile=profile, analysis=analysis)).html)


def _plain_text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_a_model_without_attention_has_a_message() -> None:
    html = _rendered(_run())
    assert "No attention in this model." in html
    assert "<table" not in html


def test_equal_layers_are_one_row_that_links_to_each_of_them() -> None:
    html = _rendered(_run(*_layers()))
    assert html.count('<tr>\n<th scope="row">') == 1
    assert "layer.0…2.attn" in html
    assert "×3" in html
    for place in range(3):
        assert f'href="#module=layer.{place}.attn"' in html
    assert "3 attention blocks, all fused into one operator" in html


def test_layers_that_differ_in_a_column_have_their_own_rows() -> None:
    first, second, third = _layers()
    other = [replace(second, heads=8), replace(second, mask="none"), replace(second, after=PARTS, why="no")]
    for each in other:
        assert [len(line.sites) for line in figures.groups((first, each, third))] == [2, 1]
        assert [line.label for line in figures.groups((first, each, third))] == ["layer.0,2.attn", "layer.1.attn"]
    elsewhere = replace(second, module="layer.1.cross")
    assert [line.label for line in figures.groups((first, elsewhere, third))] == ["layer.0,2.attn", "layer.1.cross"]


def test_heads_masks_and_forms_are_shown_where_known() -> None:
    assert figures.heads(SITE) == "4 × 16"
    assert figures.heads(replace(SITE, key_value_heads=2)) == "4 × 16, keys and values 2"
    assert figures.heads(replace(SITE, heads=None, key_value_heads=None)) == "? × 16"
    assert figures.heads(replace(SITE, heads=None, key_value_heads=None, head_size=None)) == "unknown"
    assert figures.mask(replace(SITE, cached=True, cross=True)) == "causal, with a cache, cross"
    assert [figures.form(each) for each in (PARTS, WHOLE, None)] == ["decomposed (2 nodes)", WHOLE.operator, "removed"]


def test_the_summary_counts_the_outcomes() -> None:
    already, fused = replace(SITE, before=WHOLE), SITE
    parts, gone = replace(SITE, after=PARTS), replace(SITE, after=None)
    assert figures.sentence([SITE]) == "1 attention block, fused into one operator"
    assert figures.sentence([already]) == "1 attention block, one operator already"
    mixed = figures.sentence([fused, fused, already, already, parts, gone])
    assert mixed == (
        "6 attention blocks: 2 fused into one operator, 2 one operator already, 1 still decomposed, 1 removed"
    )


def test_the_reason_for_an_unfused_site_is_shown() -> None:
    why = "its weights are read <i>elsewhere</i>"
    html = _rendered(_run(replace(SITE, after=PARTS, why=why)))
    assert "its weights are read &lt;i&gt;elsewhere&lt;/i&gt;" in html


def test_the_time_of_a_site_is_that_of_its_kernels() -> None:
    html = _plain_text(_rendered(_run(*_layers()), profile=sample_profile()))
    assert "6.60 ms" in html  # 2.0 + 2.2 + 2.4 of the first file's kernels
    assert "→ 3.30 ms" in html
    before = sample_profile().models[0]
    assert f"{100 * 6.6 / before.kernel_ms:.0f} %" in html
    assert "No times" not in html


def test_without_kernels_by_node_the_time_comes_from_its_modules() -> None:
    strange = tuple(replace(each, after=AttentionForm("Attention", ("nobody",))) for each in _layers())
    html = _plain_text(_rendered(_run(*strange), profile=sample_profile()))
    assert re.search(r"6\.60 ms \d+ % → unknown 6\.60 ms \d+ % → 3\.30 ms \d+ %", html)
    unknown = replace(SITE, module="nowhere", before=None, after=AttentionForm("Attention", ("nobody",)))
    assert _plain_text(_rendered(_run(unknown), profile=sample_profile())).count("unknown") == 2


def test_a_kernel_shared_by_several_sites_counts_once_in_the_sum() -> None:
    one, other = replace(SITE, module="nowhere"), replace(SITE, module="nowhere", heads=2)
    html = _plain_text(_rendered(_run(one, other), profile=sample_profile()))
    assert html.count("2.00 ms") == 3  # in each line, and in the sum of both
    assert "4.00 ms" not in html


def test_the_memory_of_a_site_is_that_of_its_modules_and_the_peak_is_named() -> None:
    html = _rendered(_run(*_layers()), analysis=_analysis())
    text = _plain_text(html)
    assert "4.5 MB 60 %" in text  # three modules that move 1.5 MB each, of 7.5 MB
    assert "800 kB 64 %" in text
    assert html.count("<svg") == 1
    assert "aten.gelu_1" in text
    assert 'href="#module=layer.1.mlp"' in html
    assert "The peak, at batch=2" in text


def test_nodes_of_the_root_module_do_not_count_as_attention() -> None:
    html = _plain_text(_rendered(_run(replace(SITE, module="")), sample_profile(), _analysis()))
    assert html.count("unknown") == 3


def test_without_records_the_page_shows_how_to_get_them() -> None:
    html = _rendered(_run(SITE))
    assert "No times: <code>sardonyx optimize MODEL --run FOLDER</code>" in html
    assert "sardonyx analyze SOURCE RESULT" in html
    assert "<svg" not in html


def test_names_are_only_ever_text() -> None:
    evil = '"><img src=x onerror=alert(1)>'
    form = AttentionForm(evil, (evil, HOSTILE))
    site = AttentionSite(f"{evil}.attn", 1, 1, 1, evil, False, False, False, form, replace(form, operator=""), evil)
    analysis = _analysis()
    peak = replace(analysis.forms[0].memory.peak, operation=evil, operator=HOSTILE, module=evil)
    memory = replace(analysis.forms[0].memory, peak=peak)
    forms = (replace(analysis.forms[0], memory=memory), analysis.forms[1])
    html = _rendered(
        _run(site, replace(site, heads=2)), sample_profile(), replace(analysis, forms=forms, sizes={evil: 1})
    )
    assert "<img" not in html
    assert "\x1b" not in html
    assert "&lt;img" in html
    assert 'href="#module=%22%3E%3Cimg' in html
