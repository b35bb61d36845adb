"""Missed fusions on the page: sorted by count, with reason and place, and a sentence where there are none."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import RefusalGroup, Run
from sardonyx.reporting.page.rewrites import UNFOLDED_PASSES, missed_section, refusing
from sardonyx.reporting.run_bundle import RunBundle


def refused(*passes: tuple[str, tuple[RefusalGroup, ...]]) -> Run:
    run = sample_run()
    return replace(run, passes=tuple(replace(run.passes[0], name=name, refusals=groups) for name, groups in passes))


def rendered(run: Run) -> str:
    return " ".join(str(missed_section(RunBundle("m", run)).html).split())


def test_passes_and_reasons_are_sorted_by_count() -> None:
    run = refused(
        ("rare", (RefusalGroup("a", 1, ()),)),
        ("never", ()),
        ("often", (RefusalGroup("less", 2, ()), RefusalGroup("more", 5, ("n1", "n2")))),
    )
    assert [(each.record.name, each.count) for each in refusing(run)] == [("often", 7), ("rare", 1)]
    html = rendered(run)
    assert html.startswith('<div class="missed-lead">8 skipped matches.')
    places = [html.index(text) for text in ("<strong>often", ">more<", ">less<", "<strong>rare")]
    assert places == sorted(places)
    assert "never" not in html
    assert "<code>n1</code>, <code>n2</code>" in html


def test_places_are_summarized_and_counted_by_module_in_the_data() -> None:
    modules = {f"encoder.layer.{at}.self": 2 for at in range(12)} | {"pooler": 1, "head": 1}
    run = refused(("p", (RefusalGroup("why", 26, (), modules),)))
    html = rendered(run)
    assert "encoder.layer.0…11.self" in html
    assert "and 1 other module" in html
    data = missed_section(RunBundle("m", run)).data
    ((count, counted),) = data["passes"][0]
    assert count == 26
    assert {data["modules"][at]: number for at, number in counted} == modules


def test_only_the_first_few_passes_are_open() -> None:
    html = rendered(refused(*((f"p{at}", (RefusalGroup("why", 9 - at, ()),)) for at in range(UNFOLDED_PASSES + 2))))
    assert html.count('<details class="missed-pass"') == UNFOLDED_PASSES + 2
    assert sum(f'data-pass="{at}" open>' in html for at in range(UNFOLDED_PASSES + 2)) == UNFOLDED_PASSES
    assert f'data-pass="{UNFOLDED_PASSES}">' in html


def test_no_missed_fusions_gives_a_sentence() -> None:
    made = missed_section(RunBundle("m", refused(("p", ()))))
    assert "No missed fusions" in made.html
    assert made.data is None


def test_names_and_reasons_are_text() -> None:
    bad = '"><img src=x onerror=alert(1)></script><script>'
    html = rendered(refused((bad, (RefusalGroup(bad, 1, (bad,), {bad: 1}),))))
    assert "<img" not in html
    assert "<script" not in html
    assert html.count("&lt;img") >= 4
