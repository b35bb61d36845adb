"""The map: both graphs on one scale with the same colours, and a hint where there are no times."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.reporting.page.modules import MEASURES, map_picture, map_section, module_tree, shared_colors
from sardonyx.reporting.plots.profile import Amount, families
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()
BUNDLE = RunBundle("some", RUN)


def widths(picture: str, start: str) -> list[float]:
    return [
        float(width) for width in re.findall(rf'<rect [^>]*width="([\d.]+)"[^>]*><title>{re.escape(start)}', picture)
    ]


def test_both_graphs_are_on_one_scale() -> None:
    picture = map_picture(BUNDLE, MEASURES[0])
    assert picture is not None
    before, after = widths(picture.file(), "(model)")
    assert before == 912.0
    assert abs(after / before - RUN.after.nodes / RUN.before.nodes) < 1e-4


def test_bytes_match_the_modules() -> None:
    picture = map_picture(BUNDLE, MEASURES[1])
    assert picture is not None
    before, after = (sum(getattr(each, f"bytes_{side}") for each in RUN.modules) for side in ("before", "after"))
    result = widths(picture.file(), "(model)")
    assert abs(result[1] / result[0] - after / before) < 1e-4


def test_without_a_profile_the_page_shows_how_to_get_times() -> None:
    assert map_picture(BUNDLE, MEASURES[2]) is None
    html = str(map_section(BUNDLE).html)
    (button,) = re.findall(r'<button[^>]*data-measure="ms"[^>]*>', html)
    assert "disabled" in button
    assert "--run FOLDER" in button
    assert html.count("disabled") == 1


def test_the_markup_shows_the_nodes_without_a_script() -> None:
    html = str(map_section(BUNDLE).html)
    (picture,) = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    root = ElementTree.fromstring(picture)
    titles = [title.text or "" for title in root.iter("title")]
    assert any(title.startswith("encoder.layer.3.attention") for title in titles)


def test_the_largest_families_have_colours() -> None:
    small = [Amount(f"m.{at}.only", "", 1.0, 1.0, "") for at in range(20)]
    large = [Amount(f"m.{name}", "Large", 50.0, 50.0, "") for name in "abc"]
    assert list(families([*small, *large])) == ["Large", "only"]
    many = [Amount(f"m.{at}", f"K{at:02}", 100.0 - at, 0.0, "") for at in range(30)]
    assert families(many) == {f"K{at:02}": at for at in range(8)}
    numbered = [Amount(path, "", 1.0, 0.0, "") for path in ("a.down.0", "b.down.1", "3")]
    assert list(families(numbered)) == ["down.*", "*"]
    assert list(shared_colors(module_tree(BUNDLE))) == map_section(BUNDLE).data["families"]


def test_names_are_text() -> None:
    hostile = replace(RUN.modules[0], path='"><script>alert(1)</script>', tag="</svg><img src=x onerror=alert(1)>")
    html = str(map_section(RunBundle("<b>", replace(RUN, modules=(hostile, *RUN.modules[1:])))).html)
    assert "<script" not in html
    assert "<img" not in html
