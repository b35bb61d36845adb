"""The page of a model file that another tool exported."""

from __future__ import annotations

from browser.conftest import Open


def test_the_graph_of_a_foreign_file_can_be_walked_through(opened: Open) -> None:
    page = opened("model_file")
    names = page.locator("nav.sections a").all_inner_texts()
    assert names == ["File", "Graph", "Modules", "Devices", "Costs", "Map", "Rewrites", "Missed", "Attention"]
    assert "Before" in page.locator("section[data-section=file]").inner_text()
    drawn = page.locator("section[data-section=graph] [data-graph=sides] svg")
    assert drawn.count() == 2
    assert "Conv" in drawn.first.inner_html()
    page.get_by_placeholder("search modules and nodes").fill("Conv")
    page.locator("[data-graph=found] li").first.click()
    assert "Conv" in page.locator("[data-graph=detail]").inner_text()
    colors = page.locator("[data-graph=color] option").all_inner_texts()
    assert {"FLOPs", "Bytes moved"} <= set(colors)
