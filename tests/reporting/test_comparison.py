"""The output of `compare`."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

from reporting.written import in_terminal
from sardonyx.records.comparison import Comparison, ModuleDifference, OpRef, Pair, Side
from sardonyx.records.run import OpCount
from sardonyx.reporting.document import View
from sardonyx.verbs.compare.command import comparison_document, comparison_sentence

GOLDEN = Path(__file__).parent / "golden" / "comparison.txt"


def sample_comparison(removed: int = 2) -> Comparison:
    before, after = (OpRef("relu", "Relu", path) for path in ("layer.0.act", "layer.0"))
    return Comparison(
        before=Side("raw.onnx", 12, 4, 3, "m"),
        after=Side("small.onnx", 11, 0, 3),
        ops=(OpCount("MatMul", 6, 6), OpCount("Identity", 2, 0), OpCount("com.example::Fused", 0, 1)),
        modules=(
            ModuleDifference("", "/Net", 2, 1, 1, 2, 0, 0),
            ModuleDifference("layer.0", "/Net/Layer.0", 5, 5, 0, 0, 1, 1),
            ModuleDifference("layer.1", "/Net/Layer.1", 5, 5, 0, 0, 1, 1),
        ),
        only_before=("dropout",),
        only_after=(),
        added=(OpRef("fused", "com.example::Fused", ""),),
        removed=tuple(OpRef(f"same_{i}", "Identity", "") for i in range(removed)),
        moved=(Pair(before, after),),
        changed=(Pair(OpRef("t", "Transpose", "layer.0"), OpRef("u", "Transpose", "layer.0"), ("perm: [0] → [1]",)),),
    )


def test_reads_as_the_golden_file_does() -> None:
    text = in_terminal(comparison_document, sample_comparison())
    if os.environ.get("REWRITE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_long_lists_are_shortened_by_default() -> None:
    comparison = sample_comparison(50)
    assert "same_49" not in in_terminal(comparison_document, comparison)
    assert "Identity 50" in in_terminal(comparison_document, comparison)
    assert "same_49" in in_terminal(comparison_document, comparison, View(verbose=True))
    assert "MatMul" in in_terminal(comparison_document, comparison, View(verbose=True))
    assert "layer" not in in_terminal(comparison_document, replace(comparison, moved=(), changed=()), View(depth=0))


def test_no_difference_has_a_message() -> None:
    same = replace(sample_comparison(0), added=(), moved=(), changed=())
    assert comparison_sentence(same) == "11 nodes in both: the same operators in the same modules"
    assert comparison_sentence(sample_comparison()) == "12 → 11 nodes: 2 removed, 1 added, 1 moved, 1 changed"


def test_hostile_names_move_no_cursor() -> None:
    bad = "[/] \x1b[31m \n \u202e"
    op = OpRef(bad, bad, bad)
    comparison = Comparison(
        before=Side(bad, 1, 1, 1, bad),
        after=Side(bad, 1, 1, 1),
        ops=(OpCount(bad, 1, 2),),
        modules=(ModuleDifference(bad, bad, 1, 1, 1, 1, 1, 1),),
        only_before=(bad,),
        only_after=(bad,),
        added=(op,),
        removed=(op,),
        moved=(Pair(op, op, (bad,)),),
        changed=(Pair(op, op, (bad,)),),
    )
    text = in_terminal(comparison_document, comparison, View(verbose=True))
    assert all(char.isprintable() or char == "\n" for char in text)
