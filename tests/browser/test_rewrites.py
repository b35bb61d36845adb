"""Using the rewrites and missed fusions: filtered by pass and by module, one opened with its two graphs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Open
from reporting.sample_run import sample_run
from sardonyx.records.run import Event, NodeRef, RewriteKind
from sardonyx.reporting.page import render_page
from sardonyx.reporting.run_bundle import RunBundle

STATUS = re.compile(r"([\d,]+) of ([\d,]+) rewrites shown")


def part(page: Page, name: str = "rewrites") -> Locator:
    section = page.locator(f"[data-section={name}]")
    section.scroll_into_view_if_needed()
    return section


def visible_and_total(page: Page) -> tuple[int, int]:
    status = part(page).locator(".rewrites-status")
    expect(status).to_have_text(STATUS)
    match = STATUS.search(status.inner_text())
    assert match is not None
    few, all_of_them = (int(each.replace(",", "")) for each in match.groups())
    return few, all_of_them


@pytest.fixture(params=["transformer", "deep"])
def page(request: pytest.FixtureRequest, opened: Open) -> Page:
    return opened(request.param)


def test_a_rewrite_opens_with_its_graph_before_and_after(page: Page) -> None:
    rewrites = part(page)
    fold = rewrites.locator("details.rewrites-pass").filter(has_text="fuse-").first
    fold.locator("summary").first.click()
    fold.locator("details.rewrites-group").first.locator("summary").first.click()
    detail = fold.locator(".rewrites-detail").first
    expect(detail.get_by_text("Before", exact=True)).to_be_visible()
    expect(detail.get_by_text("After", exact=True)).to_be_visible()
    expect(detail.locator("svg")).to_have_count(2)
    assert detail.locator("svg text").count() > 2
    tags = detail.locator("details", has=page.locator("table")).first
    if tags.get_attribute("open") is None:
        tags.locator("summary").click()
    expect(tags.get_by_role("row").filter(has_text="removed").first).to_be_visible()


def test_a_drawing_shows_nodes_with_their_state_and_values_that_enter_and_leave(
    open_page: Open, tmp_path: Path
) -> None:
    nodes = NodeRef("mul", "MatMul", ("x", "w"), ("m",)), NodeRef("add", "Add", ("m", "b"), ("y",))
    made = NodeRef("add", "Gemm", ("x", "w", "b", ""), ("y",))
    fused = Event("p", RewriteKind.FUSE, "y", nodes, (made,), (), "", "", "")
    dropped = Event("p", RewriteKind.DROP, "m", nodes, (), (), "", "", "")  # the replaced value is an output too
    for events, drawn in (
        ((fused,), [["− MatMul", "− Add", "x", "w", "b", "y"], ["+ Gemm", "x", "w", "b", "y"]]),
        ((dropped,), [["− MatMul", "− Add", "x", "w", "b", "m", "y"]]),
    ):
        run = replace(sample_run(), events=events, wiring_after=None)
        (tmp_path / "page.html").write_text(render_page([RunBundle("m", run)]), "utf-8")
        page = open_page(tmp_path / "page.html", "#rewrite=0")
        graphs = part(page).locator("svg.graph")
        expect(graphs).to_have_count(len(drawn))
        assert [graph.locator("text").all_text_contents() for graph in graphs.all()] == drawn
        for graph, boxes in zip(graphs.all(), drawn, strict=True):
            line = graph.locator(".graph-line").get_attribute("d") or ""
            assert line.count("M") == len(boxes) - 1  # an edge for each value, here each box but one has one
            tops = graph.locator("rect").evaluate_all("boxes => boxes.map((box) => +box.getAttribute('y'))")
            assert tops[boxes.index("y")] == max(tops)
            assert tops[boxes.index("x")] < tops[0]


def test_rewrites_are_filtered_by_pass_and_shown_again(page: Page) -> None:
    rewrites = part(page)
    picker = rewrites.locator("select").first
    picker.select_option(index=1)
    options = picker.locator("option").all_inner_texts()
    few, all_of_them = visible_and_total(page)
    assert 0 < few < all_of_them
    assert options[1].endswith(f"({few:,})")
    expect(rewrites.locator("details.rewrites-pass")).to_have_count(1)
    assert "#pass=" in page.url
    rewrites.get_by_role("button", name="show all").click()
    expect(rewrites.locator(".rewrites-status")).to_contain_text(f"All {all_of_them:,} rewrites")


def test_each_pass_is_listed_once(opened: Open) -> None:
    page = opened("transformer")
    part(page)
    names = page.locator("details.rewrites-pass > summary > strong").all_inner_texts()
    assert len(names) > 2
    assert page.locator(".rewrites-static").is_hidden()
    assert page.locator("main table:visible", has_text=names[0]).count() == 0
    without = opened("transformer", java_script_enabled=False)
    assert without.locator(".rewrites-static tbody tr").count() == len(names)


def test_the_selected_module_filters_rewrites_and_missed_fusions(opened: Open) -> None:
    page = opened("transformer", "#module=encoder.layer.0&section=rewrites")
    few, all_of_them = visible_and_total(page)
    assert 0 < few < all_of_them
    expect(part(page, "missed").locator(".missed-status")).to_contain_text("encoder.layer.0")
    part(page).get_by_role("button", name="show all").click()
    expect(part(page, "missed").locator(".missed-status")).to_be_hidden()


def test_a_link_to_a_rewrite_opens_it_despite_filters(opened: Open) -> None:
    page = opened("deep", "#rewrite=4000&pass=no-such-pass")
    detail = page.locator(".rewrites-detail[data-rewrite='4000']")
    expect(detail).to_be_in_viewport()
    expect(detail).to_contain_text("Rewrite 4000")


def test_typed_text_is_searched_in_names(page: Page) -> None:
    field = part(page).locator("input[type=search]")
    field.fill("norm")
    few, all_of_them = visible_and_total(page)
    assert 0 < few < all_of_them
    field.fill("")
    expect(part(page).locator(".rewrites-status")).to_contain_text("All ")


def test_missed_fusions_give_the_reason(opened: Open) -> None:
    page = opened("transformer")
    first = part(page, "missed").locator("details.missed-pass").first
    expect(first.locator("tbody tr").first).to_be_visible()
