"""The table of passes: numbers of the record, equal layers as one place, inactive passes in one line."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.reporting.page.rewrites import section
from sardonyx.reporting.run_bundle import RunBundle


def test_each_active_pass_has_a_row_and_the_others_share_a_line() -> None:
    run = sample_run()
    html = str(section(RunBundle("m", run)).html)
    for each in run.passes:
        assert (f'href="#pass={each.name}"' in html) is bool(each.rewrites)
    silent = sum(not each.rewrites for each in run.passes)
    assert f"{silent} passes found nothing to do" in html


def test_a_pass_shows_its_most_frequent_module_and_the_number_of_others() -> None:
    first, *_ = (each for each in sample_run().passes if each.rewrites)
    many = replace(first, modules={"a": 1, "b": 2, "c": 3, "d": 4, "e": 5})
    html = str(section(RunBundle("m", replace(sample_run(), passes=(many,)))).html)
    assert f'href="#module=e&amp;pass={first.name}"' in html
    assert "#module=b" not in html
    assert "and 2 others" in html
