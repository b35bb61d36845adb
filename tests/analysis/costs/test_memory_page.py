"""The figures of docs/memory.md match the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import zoo
from analysis.costs.traffic import traffic
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.fuse import fuse_attention
from sardonyx.ir.shapes.expr import multiply
from sardonyx.verbs.analyze.costs.fusion_regions import partition
from sardonyx.verbs.analyze.costs.peak_memory import PeakFunction, compare, liveness, peak_function
from sardonyx.verbs.analyze.costs.program import Program
from sardonyx.verbs.analyze.recorder import record

PAGE = (Path(__file__).parents[3] / "docs" / "memory.md").read_text()
PROSE = " ".join(PAGE.split())


@pytest.fixture(scope="module", autouse=True)
def _two_threads() -> Iterator[None]:
    """As on the machine of the page: fused attention keeps some memory for each thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _pictures(batch: int) -> torch.Tensor:
    return torch.empty(batch, 3, 224, 224, device="meta")


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    with torch.device("meta"):
        return zoo.torchvision().models.vit_b_16(weights=None).eval()


@pytest.fixture(scope="module")
def forms(vit: nn.Module) -> dict[str, nn.Module]:
    decomposed = decompose(vit)
    return {"standard": vit, "decomposed": decomposed, "fused again": fuse_attention(decomposed, (_pictures(1),))}


@pytest.fixture(scope="module")
def programs(forms: dict[str, nn.Module]) -> dict[str, Program]:
    return {form: record(model, (_pictures(1),)) for form, model in forms.items()}


@pytest.mark.parametrize("form", ["standard", "decomposed", "fused again"])
def test_the_table_of_forms(forms: dict[str, nn.Module], programs: dict[str, Program], form: str) -> None:
    program = programs[form]
    moved = traffic(program, partition(program)).at()
    peak, peak_of_8 = liveness(program).at(), liveness(record(forms[form], (_pictures(8),))).at()
    assert peak.operation is not None
    assert peak.operation.operator == "aten.gelu"
    assert peak.bytes == 9 * 197 * 768 * 4
    cells = (
        form, len(program.operations), _mb(peak.bytes, 2), _mb(peak_of_8.bytes, 2),
        _mb(moved.unfused, 1), _mb(moved.fused, 1), f"{100 * moved.reduction:.1f} %",
    )  # fmt: skip
    assert f"| {' | '.join(map(str, cells))} |" in PAGE


def _mb(octets: int, digits: int) -> str:
    return f"{octets / 1e6:.{digits}f} MB"


def test_values_held_by_python_and_the_weights(programs: dict[str, Program]) -> None:
    peak = liveness(programs["standard"], as_run=True).at()
    assert peak.bytes == (9 + 4) * 197 * 768 * 4
    assert f"beside {_mb(peak.weights, 2)} of weights" in PROSE
    assert f"As Python runs the standard model it is {_mb(peak.bytes, 2)}" in PROSE


def _times(function: PeakFunction, factor: int) -> PeakFunction:
    return replace(function, candidates=tuple(replace(c, bytes=multiply(c.bytes, factor)) for c in function.candidates))


@pytest.mark.campaign
def test_bert_as_a_function_of_batch_and_length() -> None:
    """The peak does not depend on depth, so two layers are enough."""
    transformers = zoo.transformers()
    with torch.device("meta"):
        model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2), add_pooling_layer=False).eval()
        ids = torch.ones(2, 128, dtype=torch.long)
    axes: dict[str, Any] = {"input_ids": {0: "batch", 1: "seq"}}
    forms = (model, decompose(model, (ids,), dynamic=axes))
    standard, decomposed = (peak_function(liveness(record(form, (ids,), axes=axes))) for form in forms)
    assert f"    standard      {standard.text}\n    decomposed    {decomposed.text}\n" in PAGE
    for batch in (1, 2, 64):
        assert len(standard.stretches("seq", {"batch": batch})) == 1
        short, long = decomposed.stretches("seq", {"batch": batch})
        assert f"Up to seq = {short.last} the peak is the GELU" in PAGE
        assert (short.value.operation, long.value.module) == ("gelu", "encoder.layer.0.attention.self")
        less, more = compare(_times(decomposed, 100), _times(standard, 101), "seq", {"batch": batch})
        assert (less.value, more.value) == ("less", "more")
        assert f"From seq = {more.first} on decomposing costs more than 1 % of memory" in PROSE
