"""Devices on the page: the graph shows which nodes do not run on one, and says why."""

from __future__ import annotations

from playwright.sync_api import expect

from browser.conftest import Open
from browser.test_graph import box, part, search, side

AWAY = ".nested-box.nested-heat:not(.nested-module, .nested-group)"  # an operator that falls back to the CPU


def test_a_device_colours_the_nodes_that_fall_back(opened: Open) -> None:
    page = opened("transformer")
    assert part(page).locator(AWAY).count() == 0
    part(page).locator("[data-graph=color]").select_option("device webgpu")
    expect(part(page).locator(".nested-legend")).to_contain_text("falls back to the CPU: ")
    expect(part(page).locator(".nested-legend")).to_contain_text("all other nodes run on webgpu")
    module = box(page, "before", "module embeddings")
    expect(module).to_have_class("nested-box nested-module nested-heat")
    assert " not on webgpu" in (module.get_attribute("aria-label") or "")
    module.click()
    expect(box(page, "before", "module embeddings")).to_have_attribute("aria-expanded", "true")
    expect(side(page, "before").locator(AWAY).nth(3)).to_be_attached()
    part(page).locator("[data-graph=color]").select_option("device cuda")
    expect(part(page).locator(AWAY)).to_have_count(0)


def test_a_node_and_a_module_say_where_they_run(opened: Open) -> None:
    page = opened("transformer")
    detail = part(page).locator(".nested-detail")
    search(page, "Range")
    expect(detail).to_contain_text("webgpu: no kernel: falls back to the CPU (inputs: int64")
    expect(detail).to_contain_text("Runs on cuda, openvino.")
    search(page, "LayerNormalization")
    expect(detail).to_contain_text("Runs on cuda, openvino, webgpu.")
    box(page, "after", "module embeddings").click()
    expect(detail).to_contain_text("Nodes that do not run on the device: webgpu ")
    page.goto(f"{page.url.partition('#')[0]}#module=embeddings")
    expect(page.locator(".modules-detail")).to_contain_text("Nodes that do not run on the device: webgpu ")


def test_the_table_of_devices_leads_to_the_graph_and_to_modules(opened: Open) -> None:
    page = opened("transformer")
    devices = page.locator("[data-section=devices]")
    devices.get_by_role("link", name="webgpu").click()
    assert page.url.endswith("#device=webgpu&section=graph")
    expect(part(page).locator("[data-graph=color]")).to_have_value("device webgpu")
    part(page).locator("[data-graph=color]").select_option("none")
    devices.get_by_role("link", name="embeddings", exact=True).click()
    expect(page.locator(".modules-detail")).to_contain_text("embeddings")
    expect(part(page).locator("[data-graph=color]")).to_have_value("none")


def test_a_link_to_an_unknown_device_changes_nothing(opened: Open) -> None:
    page = opened("transformer", "#device=abacus&section=graph")
    expect(part(page).locator("[data-graph=color]")).to_have_value("none")


def test_the_page_of_a_file_shows_its_devices(opened: Open) -> None:
    page = opened("model_file", java_script_enabled=False)
    table = page.locator("[data-section=devices] table").first
    assert {"cuda", "openvino", "webgpu"} <= set(table.locator("tbody th").all_inner_texts())
