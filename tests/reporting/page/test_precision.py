"""The quantization on the page: alone, or as a section of the page of a run."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from hostile import poisoned
from reporting.sample_quantization import sample_choice, sample_quantization
from reporting.sample_run_bundle import sample_run_bundle
from sardonyx.records.quantization import Quantization
from sardonyx.records.run import LoadedDecoder
from sardonyx.reporting import formatting
from sardonyx.reporting.document import View
from sardonyx.reporting.page import render_page
from sardonyx.reporting.page.precision import section, sections
from sardonyx.reporting.quantization import quantization_document, quantization_sentence
from sardonyx.reporting.run_bundle import QuantizationBundle
from sardonyx.reporting.writers import terminal


def shown(made: Quantization) -> str:
    return " ".join(re.sub(r"<[^>]*>", "", str(sections(QuantizationBundle("m", made))[0].html)).split())


def test_the_first_numbers_are_bytes_time_loss_and_budget() -> None:
    made = sample_choice()
    text = shown(made)
    assert quantization_sentence(made) in text
    assert "0.600 of the time of the source [0.580, 0.620], 1.5 → 0.9 ms (sequence=128)" in text
    assert "relative L2 [0.008, 0.012], on 32 samples of the given data, that nothing else has used" in text
    assert "task.py:accuracy 0.9 → 0.898, drop 0.002 [0, 0.004]" in text
    assert "least time with relative_l2&lt;=0.01, top1&gt;=0.99, the default" in text
    assert "1 product compared with a float32 simulation" in text
    assert "samples of the given data: 8 to choose, 32 to judge" in text
    assert "Weak claim" not in text


def test_a_budget_that_is_not_met_and_a_weak_claim_are_said_first() -> None:
    made = sample_choice()
    assert made.choice is not None
    broken = replace(made.choice, broken=("top1>=0.99 (top1 is 0.75)",))
    text = shown(replace(made, choice=broken, data=replace(made.data, weak="4 samples")))
    assert text.startswith(
        "The judged loss does not meet the budget: top1&gt;=0.99 (top1 is 0.75). Weak claim: 4 samples."
    )
    assert "not met" in text


def test_a_model_that_was_not_written_is_said_first_beside_the_front() -> None:
    made = sample_choice()
    choice = made.choice
    assert choice is not None
    beyond = tuple(replace(point, within=number != choice.chosen) for number, point in enumerate(choice.points))
    for points, why in (
        (beyond, "no measured model meets the budget (relative_l2&lt;=0.01, top1&gt;=0.99)"),
        (
            choice.points,
            "no measured model within the budget (relative_l2&lt;=0.01, top1&gt;=0.99) is faster or smaller",
        ),
    ):
        unwritten = replace(made, status="not met", choice=replace(choice, points=points))
        text = shown(unwritten)
        assert text.startswith(f"No file was written: {why}")
        assert "Measured models" in text
        assert " no file least time with" in text
        assert " met least time" not in text


def test_each_module_has_its_losses_its_precision_and_the_reason() -> None:
    html = str(sections(QuantizationBundle("m", sample_choice()))[0].html)
    assert html.count("<svg") == 2
    row = '<th scope="row">head</th><td><span class="soft">float32</span></td><td>relative L2 0.02 alone</td>'
    assert row in html
    assert '<td class="num">2.0 kB</td><td class="num">0.02 <span class="soft">(0.1 ms)</span></td>' in html
    made = sample_choice()
    assert made.choice is not None
    saved = formatting.size(made.before.bytes - 1500)
    assert f"0.004 ({saved})" in shown(replace(made, choice=replace(made.choice, objective="bytes")))
    slow = replace(made.choice.groups[0].options[0], excluded="not faster")
    kept = replace(made.choice.groups[0], options=(slow,))
    assert "0.004 (not faster)" in shown(replace(made, choice=replace(made.choice, groups=(kept,))))


def test_without_a_choice_there_are_no_plots() -> None:
    made = sample_quantization()
    text = shown(made)
    assert "<svg" not in str(sections(QuantizationBundle("m", made))[0].html)
    assert "All modules have the precision that was asked for: int8" in text
    assert "on 2 generated inputs, which say little about a trained model" in text
    assert "sardonyx bench SOURCE RESULT" in text
    assert "its weight is narrow" in text


def test_a_folder_for_generation_has_its_tokens_a_second_and_the_bytes_of_its_cache() -> None:
    text = shown(replace(sample_quantization(), decoder=LoadedDecoder("onnxruntime-genai 0.18.0", 85.1, 46_080)))
    assert "loaded in onnxruntime-genai 0.18.0: 85.1 tokens/s on this machine; cache: 46.1 kB per position" in text


def test_the_tree_has_the_precision_of_each_module_and_of_those_below_it() -> None:
    made = sample_choice()
    tree = sections(QuantizationBundle("m", made))[1]
    names, places = tree.data["precisions"]
    by_module = dict(zip(tree.data["names"], ([names[at] for at in each] for each in places), strict=True))
    assert by_module["encoder"] == ["int8"]
    assert by_module[""] == ["float32", "int8"]
    assert '<span class="chip">float32, int8</span>' in tree.html
    assert "rewrites" not in tree.data
    before, after = (sum(tree.data["own"][f"bytes_{side}"]) for side in ("before", "after"))
    assert f'style="width: {round(100 * after / before, 2)}%"' in tree.html, "bars of bytes"


def test_a_run_shows_the_quantization_of_its_files() -> None:
    bundle = sample_run_bundle()
    assert section(bundle) is None
    page = render_page([replace(bundle, quantization=sample_choice())])
    assert 'data-section="precision"' in page
    assert page.count('<section data-section="modules"') == 1
    assert "Bytes of constants" in page


def test_texts_of_a_record_are_escaped() -> None:
    made = sample_choice()
    bad = replace(poisoned(made), choice=poisoned(made.choice))
    page = render_page([], [QuantizationBundle("m", bad)])
    assert "<script>window" not in page
    assert "<img src" not in page


@pytest.mark.parametrize(("limit", "column"), [("cosine>=0.999", "cosine"), ("top1>=0.99", "top-1")])
def test_the_measured_models_are_listed_with_what_the_budget_limits(limit: str, column: str) -> None:
    made = sample_choice()
    assert made.choice is not None
    text = terminal.write(quantization_document(replace(made, choice=replace(made.choice, budget=(limit,))), View()))
    (heading,) = (line for line in text.splitlines() if "rel. L2" in line)
    assert column in heading.split("bytes")[0]
    assert ("0.99944" if column == "cosine" else "75.0 %") in text.split(heading)[1].splitlines()[1]
