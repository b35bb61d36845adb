"""The answers about a BERT-tiny are one screen of 80 columns: modules first, whole names, `-v` for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

import sardonyx
from sardonyx.reporting.analysis import analysis_document
from sardonyx.reporting.document import Document, View
from sardonyx.reporting.inspection import inspection_document
from sardonyx.reporting.profile import profile_document
from sardonyx.reporting.writers import terminal
from sardonyx.reporting.writers.terminal import Style
from sardonyx.verbs.compare.command import comparison_document

pytest.importorskip("transformers")
MOST = 30
BERT = (
    "hf-config:BertConfig?hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512,vocab_size=99"
)


def small(model: Path) -> Path:
    path = model.with_name("small.onnx")
    sardonyx.optimize(model, path, verify="off", force=True)
    return path


def screen(document: Document) -> list[str]:
    return terminal.write(document, Style(width=80)).splitlines()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "bert-tiny.onnx"
    sardonyx.export(BERT, output=path, dynamic="auto", verify="off")
    return path


@pytest.mark.parametrize("verb", ["inspect", "analyze", "profile", "compare"])
def test_the_answer_is_one_screen_of_whole_names(model: Path, verb: str) -> None:
    sizes = {"batch": 1, "sequence": 16}
    documents = {
        "inspect": lambda view: inspection_document(sardonyx.inspect(model), view),
        "analyze": lambda view: analysis_document(sardonyx.analyze(model, sizes=sizes), view),
        "profile": lambda view: profile_document(sardonyx.profile(model, sizes=sizes), view),
        "compare": lambda view: comparison_document(sardonyx.compare(model, small(model)), view),
    }
    lines = screen(documents[verb](View()))
    assert len(lines) <= MOST, "\n".join(lines)
    assert max(map(len, lines)) <= 80
    tree = lines[next(at for at, line in enumerate(lines) if line.startswith("Modules")) + 2 :]
    names = [line.split()[0] for line in tree[: tree.index("")]]
    assert {"embeddings", "position_embeddings", "token_type_embeddings"} <= set(names), names
    full = screen(documents[verb](View(verbose=True)))
    assert len(full) > 2 * len(lines)
