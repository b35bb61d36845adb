"""Records in Python and in notebooks: `repr` is short, and the HTML has the summary and the graph."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import onnx
import pytest

import sardonyx
from hostile import poisoned
from reporting.sample_analysis import sample_analysis
from reporting.sample_bench import sample_benchmark
from reporting.sample_export import sample_export
from reporting.sample_profile import sample_profile
from reporting.sample_quantization import sample_choice
from reporting.sample_run import sample_run
from sardonyx.records.base import Record
from sardonyx.reporting.notebook import MAX_LINE

MODEL = "agraph (float[N] x) => (float[N] y) { a = Identity(x)  b = Exp(a)  c = Identity(b)  y = Relu(c) }"


@pytest.fixture(scope="module")
def run() -> sardonyx.Optimized:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {MODEL}')
    return sardonyx.optimize(model)


RECORDS = [
    sample_run(), sample_analysis(), sample_benchmark(files=2), sample_export(None), sample_profile(), sample_choice(),
]  # fmt: skip


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.record_tag())
def test_a_record_is_shown_in_three_lines(record: Record) -> None:
    for each in (record, poisoned(record)):
        lines = repr(each).split("\n")
        assert len(lines) <= 3
        assert max(map(len, lines)) <= MAX_LINE
        assert lines[0].startswith(f"{type(record).__name__}: ")


def test_the_lines_of_a_run_say_what_happened(run: sardonyx.Optimized) -> None:
    first, second, third = repr(run).split("\n")
    assert first.startswith("Optimized: 4 → 2 nodes")
    assert "same outputs on" in first
    assert "2 rewrites" in second
    assert "verdict" in third or "fields: " in third


def test_the_html_of_a_run_has_the_summary_and_the_graph(run: sardonyx.Optimized) -> None:
    html = run._repr_html_()
    assert "4 → 2 nodes" in html
    assert "<script" not in html
    frame = unescape(html.partition("srcdoc=")[2])
    assert 'data-graph="sides"' in frame
    assert '"Exp"' in frame  # an operator in its data


def test_the_html_of_every_record_is_harmless() -> None:
    for record in RECORDS:
        html = poisoned(record)._repr_html_()
        assert "<script" not in html
        assert not re.search(r"<img src=x", html)


@pytest.mark.campaign  # a kernel takes long to start; needs nbconvert and ipykernel
def test_a_notebook_shows_a_run(tmp_path: Path) -> None:
    """In a real kernel, and converted to a page."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {MODEL}'), tmp_path / "model.onnx")
    cell = nbformat.v4.new_code_cell("import sardonyx\nsardonyx.optimize('model.onnx')")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    data = notebook.cells[0].outputs[-1]["data"]
    assert data["text/plain"].startswith("Optimized: 4 → 2 nodes")
    assert "<iframe" in data["text/html"]
    convert = pytest.importorskip("nbconvert")
    page, _ = convert.HTMLExporter().from_notebook_node(notebook)
    assert "4 → 2 nodes" in page
    assert "sardonyx-record" in page
