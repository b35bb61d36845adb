"""The output of `inspect --module`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from reporting.written import in_terminal
from sardonyx.records.inspection import Coverage, Module, ModuleInspection, OpUse, Port, Weight
from sardonyx.reporting.document import View
from sardonyx.reporting.inspection import module_document, module_sentence

GOLDEN = Path(__file__).parent / "golden"


def sample_module() -> ModuleInspection:
    return ModuleInspection(
        model="model.onnx",
        path="encoder.layer.0",
        tag="/Bert/BertLayer.0",
        kind="lib.bert.BertLayer",
        calls=("encoder.layer.0", "encoder.layer.0@1"),
        nodes=5,
        constants=1,
        parameters=44,
        ops=(OpUse("", "MatMul", 4), OpUse("own", "Twice", 1), OpUse("", "Constant", 1)),
        inputs=(Port("x", "float", ("batch", 4)),),
        outputs=(Port("y", "float", (None, 4)), Port("mask", "unknown", None)),
        weights=(
            Weight("w", "float", (4, 10), 40, ("encoder.layer.0.dense", "head")),
            Weight("b", "float", (4,), 4, ("encoder.layer.0", "encoder.layer.0.dense")),
        ),
        shared_nodes=("fused",),
        modules=(
            Module("encoder.layer.0", "/Bert/BertLayer.0", 1, 5, 0, 44),
            Module("encoder.layer.0.dense", "/Bert/BertLayer.0", 4, 4, 44, 44),
        ),
        coverage=Coverage(5, 1, 0, 0),
    )


@pytest.mark.parametrize("name", ["module", "module_verbose"])
def test_reads_as_the_golden_file_does(name: str) -> None:
    golden = GOLDEN / f"{name}.txt"
    text = in_terminal(module_document, sample_module(), View(verbose=name.endswith("verbose")))
    if os.environ.get("REWRITE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_only_weights_read_outside_count_as_shared() -> None:
    assert ["read", "by", "others", "too", "w"] in map(
        str.split, in_terminal(module_document, sample_module()).split("\n")
    )
    text = in_terminal(module_document, sample_module(), View(verbose=True))
    shared = text.split("Weights that other modules read too")[1].split("\n\n")[0]
    assert [line.split()[0] for line in shared.splitlines()[2:]] == ["w"]
    whole = in_terminal(module_document, replace(sample_module(), path=""))
    assert "other modules read too" not in whole


def test_many_weights_are_listed_on_request() -> None:
    many = tuple(Weight(f"w{i}", "float", (1,), 1, ("encoder.layer.0",)) for i in range(40))
    module = replace(sample_module(), weights=many)
    assert "w39" not in in_terminal(module_document, module)
    assert "w39" in in_terminal(module_document, module, View(verbose=True))
    assert module_sentence(module) == "encoder.layer.0: 5 nodes, 44 parameters, 1 input, 2 outputs"


def test_hostile_names_move_no_cursor() -> None:
    bad = "[/] \x1b[31m \n \u202e"
    module = replace(
        sample_module(),
        model=bad,
        tag=bad,
        kind=bad,
        calls=(bad, bad),
        inputs=(Port(bad, bad, (bad,)),),
        weights=(Weight(bad, bad, (1,), 1, (bad,)),),
        shared_nodes=(bad,),
    )
    text = in_terminal(module_document, module, View(verbose=True)) + module_sentence(replace(module, path=bad))
    assert all(char.isprintable() or char == "\n" for char in text)
