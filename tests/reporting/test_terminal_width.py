"""On a terminal, every row of a table is one line, sentences break between words, and a record fits on one screen."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from reporting.sample_documents import documents
from reporting.sample_export import sample_export
from reporting.sample_run import sample_run
from sardonyx.records.export import ExampleInput
from sardonyx.records.inspection import RootNode
from sardonyx.records.run import Counts, OpCount
from sardonyx.reporting.document import Column, Document, Facts, Notes, Row, Table, View, text_column
from sardonyx.reporting.export import export_document
from sardonyx.reporting.run import run_document
from sardonyx.reporting.writers import terminal
from sardonyx.reporting.writers.terminal import Style

LONG = "encoder.layer.0.attention.output.LayerNorm.with_a_name_that_goes_on"


def screen(document: Document, width: int) -> list[str]:
    return terminal.write(document, Style(width=width)).splitlines()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [80, 200])
def test_every_line_of_every_document_fits(width: int, verbose: bool) -> None:
    for name, document in documents(lambda text: text, View(verbose)):
        for line in screen(document, width):
            assert cell_len(line) <= width or len(line.split()) == 1, (name, line)


def test_a_row_leaves_out_details_first_and_then_the_middle_of_long_names() -> None:
    columns = (text_column("module"), Column("nodes"), text_column("kind", detail=1), Column("share", detail=2))
    table = Table(columns, [Row((LONG, "1,234", "LayerNorm", "12 %")), Row(("(model)", "9", "Bert", "88 %"))])
    everything = screen(Document((table,)), 200)
    assert everything[0].split() == ["module", "nodes", "kind", "share"]
    assert LONG in everything[1]
    for width, headings in ((76, "module nodes kind share"), (70, "module nodes kind"), (40, "module nodes")):
        lines = screen(Document((table,)), width)
        assert lines[0].split() == headings.split()
        assert len(lines) == 3
        assert max(map(len, lines)) <= width
        assert re.match(r"  encoder\.\w.*….*goes_on +1,234", lines[1])


def test_a_column_of_details_without_any_is_left_out() -> None:
    columns = (text_column("module"), "nodes", text_column("kind", 1))
    remark = Row(("and 2 more",))
    assert terminal.table_lines(Table.of(columns, (("a", "1", ""), remark)))[0].split() == ["module", "nodes"]
    assert terminal.table_lines(Table.of(columns, (("a", "1", "Linear"), remark)))[0].split() == [
        "module",
        "nodes",
        "kind",
    ]


def test_without_a_width_nothing_is_shortened_or_wrapped() -> None:
    table = Table((text_column("module"), text_column("where", detail=1)), [Row((LONG, LONG * 3))])
    text = terminal.write(Document((table, Notes(["word " * 60]))))
    assert f"{LONG}  {LONG * 3}" in text
    assert len(text.splitlines()) == 4


def test_sentences_break_between_words_and_paths_stay_whole() -> None:
    path = "/a/folder/" + "x" * 90 + ".onnx"
    facts = Facts({"time": "load 1 s, " * 12, "no": "yes"})
    lines = screen(Document((Notes([f"written to {path} in a moment"]), facts)), 40)
    assert path in [line.strip() for line in lines]
    assert "\n".join(lines).split() == f"written to {path} in a moment time {'load 1 s, ' * 12} no yes".split()
    assert [line for line in lines if "load" in line][1].startswith(" " * 8 + "load")
    assert max(len(line) for line in lines if path not in line) <= 40


def test_colour_changes_no_line() -> None:
    document = run_document(sample_run(), View())
    coloured = terminal.write(document, Style(color=True, width=60))
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == terminal.write(document, Style(width=60))


@pytest.mark.parametrize(("width", "most"), [(80, 30), (200, 27)])
def test_a_large_run_is_one_screen(width: int, most: int) -> None:
    run = sample_run()
    ops = tuple(OpCount(f"Operator{number}", 100 - number, number) for number in range(60))
    passes = tuple(replace(run.passes[0], name=f"pass-{number}", modules={LONG: 3}) for number in range(40))
    large = replace(run, ops=(*run.ops, *ops), passes=passes, rolled_back=(), notes=("a note",) * 30)
    lines = screen(run_document(large, View()), width)
    assert len(lines) <= most
    assert sum(line.lstrip().startswith("pass-") for line in lines) == 4
    assert "(36 others; -v lists all)" in "\n".join(lines)
    assert "and 28 more notes (-v shows them)" in "\n".join(lines)
    full = "\n".join(screen(run_document(large, View(verbose=True)), width))
    assert all(f"pass-{number} " in full for number in range(40))
    assert all(f"Operator{number} " in full for number in range(60))
    assert "By module" in full


@pytest.mark.parametrize(("width", "most"), [(80, 30), (200, 28)])
def test_a_large_export_is_one_screen(width: int, most: int) -> None:
    inputs = tuple(ExampleInput(name, "int64", (2, 11), {0: "batch"}) for name in ("input_ids", "attention_mask"))
    export = replace(
        sample_export(None),
        inputs=inputs,
        root_nodes=tuple(RootNode(f"node_{number}", "Shape", "no module ran it") for number in range(60)),
        notes=("input_ids=int64[2,11] generated as token ids, below 30522", *(f"note {n}" for n in range(20))),
        optimized=sample_run(),
    )
    lines = screen(export_document(export, View()), width)
    assert len(lines) <= most
    assert "token ids, below 30522" in next(line for line in lines if line.startswith("  input_ids=int64[2,11]"))
    assert "no module ran it" not in "\n".join(lines)
    full = "\n".join(screen(export_document(export, View(verbose=True)), width))
    assert full.count("no module ran it") == 60
    assert "By pass" in full


def test_an_optimized_export_is_compared_with_what_torch_alone_writes() -> None:
    export = replace(sample_export(None), optimized=sample_run(), plain_torch=Counts(220, 0, 39, 17_412_345))
    line = "plain torch  220 nodes with torch's own optimizer; the result has 187 (−15 %)"
    assert any(line in one for one in screen(export_document(export, View()), 80))
    assert "plain torch" not in "\n".join(screen(export_document(sample_export(None), View()), 80))


def test_in_a_pipe_tables_fit_and_every_sentence_is_one_line() -> None:
    text = terminal.write(run_document(sample_run(), View()), Style(width=60, wraps=False)).splitlines()
    assert text[-1].startswith("324 → 187 nodes")
    assert text[-1].endswith("→ small.onnx")
    assert max(len(line) for line in text if line.lstrip().startswith(("eliminate-", "Transpose", "operator"))) <= 60
