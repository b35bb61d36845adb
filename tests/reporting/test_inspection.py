"""The output of `inspect`: the golden page, module types shown once, and trees of a readable size."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from reporting.written import in_terminal
from sardonyx.records.inspection import (
    Body,
    Coverage,
    DynamicDim,
    Family,
    Features,
    Fingerprint,
    FunctionUse,
    Inspection,
    Module,
    OpUse,
    Port,
    RootNode,
    Weight,
)
from sardonyx.records.run import Counts
from sardonyx.reporting.document import View
from sardonyx.reporting.inspection import inspection_document, inspection_sentence

GOLDEN = Path(__file__).parent / "golden" / "inspection.txt"


def _layer(index: int) -> list[Module]:
    path, tag = f"encoder.layer.{index}", f"/Bert/BertLayer.{index}"
    return [
        Module(path, tag, 1, 5, 0, 40),
        Module(f"{path}.dense", tag, 4, 4, 40, 40),  # a plain torch.nn module has the tag of its parent
    ]


def sample_inspection(layers: int = 3) -> Inspection:
    modules = [
        Module("", "/Bert", 2, 2 + 5 * layers, 8, 8 + 40 * layers),
        Module("encoder", "/encoder", 0, 5 * layers, 0, 40 * layers),
        Module("encoder.layer", "/encoder/layer", 0, 5 * layers, 0, 40 * layers),
        *(module for index in range(layers) for module in _layer(index)),
    ]
    return Inspection(
        path="model.onnx",
        file_bytes=12_345,
        ir_version=8,
        opsets={"": 17, "com.example": 1},
        producer="pytorch 2.13.0",
        graph="main",
        fingerprint=Fingerprint(Family.ENCODER, 0.9, ("3 attentions", "none causal"), Features(3, *[0] * 15)),
        counts=Counts(17, 2, 7, 12_000),
        parameters=128,
        ops=(OpUse("", "MatMul", 12), OpUse("com.example", "Twice", 5), OpUse("", "Constant", 2)),
        inputs=(Port("ids", "int64", ("batch", 4)), Port("bias", "float", (4,), overridable=True)),
        outputs=(Port("y", "float", (None, "invented")), Port("z", "sequence(float)", None)),
        dynamic_dims=(DynamicDim("batch", ("ids[0]",)), DynamicDim("?", ("y[0]",)), DynamicDim("invented", ("y[1]",))),
        functions=(FunctionUse("com.example", "Twice", 1, 5),),
        bodies=(Body("/head/If", "If", "then_branch", 1),),
        modules=tuple(modules),
        coverage=Coverage(direct=14, inherited=3, root=2, own=2),
        root_nodes=(RootNode("shape", "Shape", "no module ran it, and nothing says where it belongs"),),
        tied=(Weight("w", "float", (4, 10), 40, ("encoder.layer.0.dense", "")),),
        metadata={"author": "[bold]me[/]"},
    )


def test_reads_as_the_golden_file_does() -> None:
    text = in_terminal(inspection_document, sample_inspection(), View(verbose=True))
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_a_module_type_is_shown_once_and_never_repeats_the_path() -> None:
    lines = in_terminal(inspection_document, sample_inspection(), View(verbose=True)).splitlines()
    tree = lines[lines.index("Modules") + 2 : lines.index("Weights of several modules") - 1]
    assert [line.split()[0] for line in tree] == ["(model)", "encoder.layer.0…2", "dense"]
    assert [line.split()[-1] for line in tree] == ["Bert", "BertLayer", "120"]


def test_the_sentence_names_only_dims_a_caller_may_choose() -> None:
    assert inspection_sentence(sample_inspection()) == "17 nodes, 128 parameters, 12.3 kB, opset 17, dynamic batch"
    memory = replace(sample_inspection(), file_bytes=0, opsets={"com.example": 1}, inputs=())
    assert inspection_sentence(memory) == "17 nodes, 128 parameters, 12.0 kB, no standard opset"


def test_the_default_depth_of_the_tree_is_readable() -> None:
    # Every layer is different, so nothing folds and the third level would be too much.
    odd = tuple(replace(m, nodes=m.nodes + i) for i, m in enumerate(sample_inspection(30).modules))
    inspection = replace(sample_inspection(30), modules=odd)

    def rows(view: View) -> int:
        lines = in_terminal(inspection_document, replace(inspection, tied=(), root_nodes=()), view).splitlines()
        start = lines.index("Modules") + 2
        return lines[start:].index("")

    assert 1 < rows(View()) <= View().rows < len(odd)
    assert rows(View(depth=0)) == 1
    assert rows(View(verbose=True)) == len(odd)
    assert "…" in in_terminal(inspection_document, inspection, View(depth=1))


def test_hostile_names_move_no_cursor() -> None:
    bad = "[/] \x1b[31m \n \u202e"
    inspection = replace(
        sample_inspection(),
        path=bad,
        producer=bad,
        opsets={bad: 1},
        ops=(OpUse(bad, bad, 1),),
        inputs=(Port(bad, bad, (bad,)),),
        dynamic_dims=(DynamicDim(bad, (bad,)),),
        functions=(FunctionUse(bad, bad, 1, 1),),
        bodies=(Body(bad, bad, bad, 1),),
        modules=(Module(bad, bad, 1, 1, 1, 1),),
        root_nodes=(RootNode(bad, bad, bad),),
        tied=(Weight(bad, bad, (1,), 1, (bad, bad)),),
        metadata={bad: bad},
    )
    text = in_terminal(inspection_document, inspection, View(verbose=True)) + inspection_sentence(inspection)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "[/] \\x1b[31m" in text


def test_the_source_of_module_names_is_shown_and_verbose_explains_the_root() -> None:
    plain, verbose = (
        in_terminal(inspection_document, sample_inspection(), View(verbose=deep)) for deep in (False, True)
    )
    line = "nodes by module       14 direct (2 of them in the model's own forward), 3 inherited, 2 at the root"
    assert line in plain
    assert "nothing says where it belongs" not in plain
    assert "nothing says where it belongs" in verbose
    assert "encoder.layer.0.dense, (model)" in verbose
    nothing_own = replace(sample_inspection(), coverage=Coverage(1, 0, 0, 0))
    assert "1 direct, 0 inherited, 0 at the root" in in_terminal(inspection_document, nothing_own)
