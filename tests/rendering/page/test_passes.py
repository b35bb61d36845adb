"""The table of passes: numbers as in the record, equal layers as one place, silent passes in one line."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rendering.sample_run import sample_run
from sardonyx.rendering.dossier import Dossier
from sardonyx.rendering.page.passes import Place, places, section


def test_each_active_pass_has_a_row_and_the_silent_ones_share_a_line() -> None:
    run = sample_run()
    html = str(section(Dossier("m", run)).html)
    for each in run.passes:
        assert (f'href="#pass={each.name}"' in html) is bool(each.rewrites)
    silent = sum(not each.rewrites for each in run.passes)
    assert f"{silent} passes found nothing to do" in html


def test_a_run_in_which_nothing_happened_says_so() -> None:
    run = replace(sample_run(), passes=())
    assert "No pass found anything to rewrite" in str(section(Dossier("m", run)).html)


def test_layers_are_one_place_that_leads_to_what_holds_them() -> None:
    found = places({"encoder.layer.0.attention": 2, "encoder.layer.11.attention": 3, "pooler": 1, "": 9})
    assert found == (
        Place("", "", 9),
        Place("encoder.layer", "encoder.layer.*.attention", 5),
        Place("pooler", "pooler", 1),
    )


@given(st.dictionaries(st.text("a.01*", max_size=8), st.integers(1, 99), max_size=20))
def test_no_rewrite_is_lost_among_places(modules: dict[str, int]) -> None:
    assert sum(each.rewrites for each in places(modules)) == sum(modules.values())
