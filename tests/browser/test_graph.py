"""The graph section: modules are opened one by one, on both sides, and only what is near the visible part is drawn."""

from __future__ import annotations

import csv
from xml.etree import ElementTree

from playwright.sync_api import Locator, Page, expect

from browser.conftest import Open
from hostile import VECTORS
from sardonyx.reporting import formatting

DRAWN = "document.querySelectorAll('.nested-box').length"
FOCUSED = "document.activeElement.dataset.key"


def part(page: Page) -> Locator:
    host = page.locator("article.model:not([hidden]) [data-section=graph]")
    host.scroll_into_view_if_needed()
    host.locator(".nested-box").first.wait_for()
    return host


def side(page: Page, which: str) -> Locator:
    return part(page).locator(f".nested-side[data-side={which}]")


def box(page: Page, which: str, key: str) -> Locator:
    return side(page, which).locator(f'.nested-box[data-key="{key}"]')


def test_it_starts_closed_and_a_click_opens_a_module_on_both_sides(opened: Open) -> None:
    page = opened("transformer")
    assert part(page).locator("[aria-expanded=true]").count() == 0
    assert page.locator(".nested-op").count() <= 12, "the operators of the model itself"
    for which in ("before", "after"):
        expect(side(page, which)).to_contain_text("embeddings")
    box(page, "before", "module embeddings").click()
    for which in ("before", "after"):
        expect(box(page, which, "module embeddings")).to_have_attribute("aria-expanded", "true")
        expect(side(page, which)).to_contain_text("LayerNorm")
    expect(part(page).locator(".nested-detail")).to_contain_text("embeddings")
    box(page, "after", "module embeddings").locator(".nested-title").click(force=True)
    expect(part(page).locator("[aria-expanded=true]")).to_have_count(0)


def test_edges_have_shapes_and_changed_operators_are_marked_and_linked(opened: Open) -> None:
    page = opened("transformer")
    expect(side(page, "before").locator(".nested-type", has_text="×").first).to_be_visible()
    search(page, "layer.0.attention.self")
    page.keyboard.press("Enter")
    assert side(page, "before").locator(".nested-gone").count() > 0
    side(page, "after").locator(".nested-made", has_text="Attention").click()
    detail = part(page).locator(".nested-detail")
    expect(detail).to_contain_text("Created by rewrite")
    expect(detail).to_contain_text("It stems from")
    assert side(page, "before").locator(".nested-marked").count() > 0, "what was fused into it"
    detail.get_by_role("link", name="rewrite").click()
    assert "#rewrite=" in page.url


def search(page: Page, text: str) -> None:
    field = part(page).locator("[data-graph=search]")
    field.fill(text)
    field.press("Enter")


def test_a_search_opens_the_path_to_a_node_and_focuses_it(opened: Open) -> None:
    page = opened("deep")
    search(page, "layers.200/mlp/act/Relu")
    assert page.evaluate(FOCUSED).startswith("node ")
    expect(part(page).locator(".nested-detail")).to_contain_text("layers.200/mlp/act/Relu")
    expect(part(page).locator(".nested-open").first).to_be_visible()
    part(page).locator("[data-graph=search]").fill("no such name")
    expect(part(page).locator(".nested-found")).to_contain_text("Nothing has this name")


def test_ten_thousand_nodes_are_drawn_as_far_as_they_are_seen(opened: Open) -> None:
    page = opened("deep")
    expect(side(page, "before")).to_contain_text("10,0")
    part(page)
    assert page.evaluate(DRAWN) < 60
    box(page, "before", "module model.layers").click()
    page.locator(".nested-side[data-side=before] .nested-group:not(.nested-open)").first.click()
    page.locator(".nested-side[data-side=before] .nested-group:not(.nested-open)").first.click()
    page.locator(".nested-side[data-side=before] .nested-module:not(.nested-open)").first.click()
    assert page.evaluate(DRAWN) < 300
    for _ in range(8):
        part(page).locator("[data-graph=out]").click()
    assert page.evaluate(DRAWN) < 1500


def test_it_is_used_with_the_keyboard_alone(opened: Open) -> None:
    page = opened("transformer")
    side(page, "before").locator("[tabindex='0']").focus()
    assert side(page, "before").locator("[tabindex='0']").count() == 1
    seen = {page.evaluate(FOCUSED)}
    for _ in range(6):
        page.keyboard.press("ArrowDown")
        seen.add(page.evaluate(FOCUSED))
    assert len(seen) > 2
    box(page, "before", "module encoder.layer").focus()
    page.keyboard.press("Enter")
    expect(box(page, "before", "module encoder.layer")).to_have_attribute("aria-expanded", "true")
    assert page.evaluate(FOCUSED) == "module encoder.layer"
    page.keyboard.press("ArrowDown")
    inner = page.evaluate(FOCUSED)
    assert inner != "module encoder.layer"
    page.keyboard.press("Escape")
    expect(box(page, "before", "module encoder.layer")).to_have_attribute("aria-expanded", "false")
    assert page.evaluate(FOCUSED) == "module encoder.layer"


def test_a_removed_node_leads_to_what_replaced_it_in_its_module(opened: Open) -> None:
    page = opened("transformer")
    search(page, "Softmax")
    detail = part(page).locator(".nested-detail")
    expect(detail.locator("strong").first).to_have_text("Softmax")
    expect(detail).to_contain_text("Removed by rewrite")
    expect(detail).to_contain_text("equal for")
    marked = side(page, "after").locator(".nested-marked")
    labels = [each.get_attribute("aria-label") or "" for each in marked.all()]
    assert labels
    assert all("Attention" in label for label in labels), "not nodes of other modules"
    assert_in_sight(side(page, "after"))
    opened_keys = ".nested-module.nested-open"
    keys = [
        side(page, which).locator(opened_keys).evaluate_all("all => all.map((each) => each.dataset.key)")
        for which in ("before", "after")
    ]
    assert set(keys[1]) <= set(keys[0]), "what is open on one side is open on the other"


def assert_in_sight(pane: Locator) -> None:
    """Every marked box is within the pane."""
    area = pane.locator("svg.nested").bounding_box()
    assert area is not None
    for each in pane.locator(".nested-marked").all():
        place = each.bounding_box()
        assert place is not None
        assert area["x"] - 1 <= place["x"] <= area["x"] + area["width"] + 1 - place["width"]
        assert area["y"] - 1 <= place["y"] <= area["y"] + area["height"] + 1 - place["height"]


def test_all_nodes_that_were_fused_into_one_are_in_sight(opened: Open) -> None:
    page = opened("transformer")
    search(page, "layer.0.attention.self")
    page.keyboard.press("Enter")
    side(page, "after").locator(".nested-made[aria-label*='Attention ']").first.click()
    assert side(page, "before").locator(".nested-marked").count() > 5
    assert_in_sight(side(page, "before"))


def test_a_node_shows_its_attributes_values_and_weights(opened: Open) -> None:
    page = opened("transformer")
    search(page, "MatMul")
    detail = part(page).locator(".nested-detail")
    row = detail.locator("tr", has_text="constant").first
    expect(row).to_contain_text("float[")
    expect(row).to_contain_text("…")
    assert row.locator("svg.node-histogram rect").count() > 10
    search(page, "LayerNormalization")
    expect(detail.locator("tr", has_text="epsilon")).to_contain_text("e-")
    expect(detail.locator("tr", has_text="output").first).to_contain_text("float[")


def test_search_hits_name_their_module(opened: Open) -> None:
    page = opened("transformer")
    part(page).locator("[data-graph=search]").fill("Softmax")
    expect(part(page).locator(".nested-found li").first).to_contain_text("in encoder.layer.0.attention.self")


def test_what_is_shown_is_saved_as_pictures_and_tables(opened: Open) -> None:
    page = opened("transformer")
    part(page).locator("[data-graph-side=after]").click()
    for form in ("svg", "png"):
        with page.expect_download() as waiting:
            page.locator(f"[data-graph-save={form}]").click()
        file = waiting.value
        assert file.suggested_filename.endswith(f"after.{form}")
        data = file.path().read_bytes()
        if form == "png":
            assert data.startswith(b"\x89PNG")
            continue
        assert "embeddings" in "".join(ElementTree.fromstring(data).itertext())
        assert b"var(" not in data, "every colour is written out"
    with page.expect_download() as waiting:
        page.locator("[data-section=modules] button.csv").first.click()
    rows = list(csv.reader(waiting.value.path().read_text("utf-8").splitlines()))
    assert len(rows) > 3
    assert len({len(row) for row in rows}) == 1


def test_a_finger_moves_the_graph_and_two_zoom_it(opened: Open) -> None:
    page = opened("transformer", width=400, height=800, has_touch=True)
    world = side(page, "before").locator("svg > g")
    start = world.get_attribute("transform") or ""
    area = side(page, "before").locator("svg").bounding_box()
    assert area is not None
    devtools = page.context.new_cdp_session(page)

    def touch(kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": area["x"] + x, "y": area["y"] + y, "id": at} for at, (x, y) in enumerate(places)]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", (100, 60))
    touch("touchMove", (130, 140))
    touch("touchEnd")
    moved = world.get_attribute("transform") or ""
    assert moved != start
    assert moved.split()[0] == start.split()[0], "not zoomed"
    touch("touchStart", (100, 100), (160, 100))
    touch("touchMove", (80, 100), (220, 100))
    touch("touchEnd")
    assert (world.get_attribute("transform") or "").split()[0] != moved.split()[0]


def test_colours_follow_what_was_recorded(opened: Open) -> None:
    page = opened("transformer")
    for color in ("time", "flops", "bytes"):
        part(page).locator("[data-graph=color]").select_option(color)
        assert page.locator(".nested-box.nested-heat").count() > 2
        expect(part(page).locator(".nested-legend")).to_contain_text("of the source")
    part(page).locator("[data-graph=color]").select_option("pass")
    expect(part(page).locator(".nested-legend")).to_contain_text("fuse-")
    values = (
        part(opened("deep")).locator("[data-graph=color] option").evaluate_all("all => all.map((each) => each.value)")
    )
    assert values == ["none", "pass"]


def test_it_zooms_moves_and_fits(opened: Open) -> None:
    page = opened("transformer")
    world = side(page, "before").locator("svg > g")
    start = world.get_attribute("transform")
    part(page).locator("[data-graph=in]").click()
    assert world.get_attribute("transform") != start
    area = side(page, "before").locator("svg").bounding_box()
    assert area is not None
    zoomed = world.get_attribute("transform")
    page.mouse.move(area["x"] + 5, area["y"] + 5)
    page.mouse.down()
    page.mouse.move(area["x"] + 65, area["y"] + 45)
    page.mouse.up()
    assert world.get_attribute("transform") != zoomed
    part(page).locator("[data-graph=fit]").click()
    assert world.get_attribute("transform") == start


def test_names_stay_text(opened: Open) -> None:
    page = opened("hostile")
    part(page)
    for vector in (VECTORS["image"], VECTORS["script"]):
        search(page, vector)
        expect(part(page).locator(".nested-detail")).to_contain_text(formatting.visible(vector))
    assert page.locator("[data-section=graph] :is(img, script, iframe)").count() == 0


def test_a_link_opens_a_module_in_the_graph(opened: Open) -> None:
    page = opened("transformer", "#module=encoder.layer.0.attention&section=graph")
    part(page)
    expect(box(page, "after", "module encoder.layer.0.attention")).to_be_visible()


def test_without_a_script_there_is_a_sentence(opened: Open) -> None:
    page = opened("transformer", java_script_enabled=False)
    assert "needs JavaScript" in page.locator("[data-section=graph]").inner_text()
    assert page.locator("[data-section=graph] .toolbar").is_hidden()
