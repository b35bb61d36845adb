"""What a notebook shows of a run: its summary, and the graph in a frame."""

from __future__ import annotations

from pathlib import Path

import onnx
from playwright.sync_api import Browser, expect

import sardonyx

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N] x) => (float[N] y) { a = Identity(x)  b = Exp(a)  c = Identity(b)  y = Relu(c) }"""


def test_a_notebook_shows_the_summary_and_a_graph_to_walk_through(browser: Browser, tmp_path: Path) -> None:
    run = sardonyx.optimize(onnx.parser.parse_model(MODEL))
    (tmp_path / "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{run._repr_html_()}", "utf-8")
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        page.goto((tmp_path / "cell.html").as_uri())
        expect(page.locator("body")).to_contain_text("4 → 2 nodes")
        frame = page.frame_locator("iframe")
        frame.locator(".nested-side[data-side=before] .nested-gone").first.click()
        expect(frame.locator(".nested-detail")).to_contain_text("Removed by rewrite")
    finally:
        page.close()
    assert errors == []
