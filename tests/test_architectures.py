"""The architectures are as the campaigns assume, and the campaigns detect planted faults."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
import torch

import architectures
import cuts
import overhead
import universal


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_outputs_vary_and_batch_items_differ(name: str) -> None:
    outputs = architectures.run(architectures.build(name))
    assert outputs
    for tensor in outputs:
        assert torch.isfinite(tensor).all()
        assert tensor.std() > 0.01  # neither constant nor vanishing
        assert not torch.allclose(tensor[0], tensor[1])  # the items of the batch differ


def test_the_same_name_builds_the_same_weights() -> None:
    first, second = (architectures.build("called-twice").module.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_there_are_enough_of_them() -> None:
    assert len(architectures.ARCHITECTURES) >= 26


@pytest.mark.parametrize(("name", "exporter"), [("cnn-attention", "torchscript"), ("two-names", "dynamo")])
def test_an_export_passes_every_check(name: str, exporter: str, tmp_path: Path) -> None:
    row = universal.one(name, exporter, tmp_path)
    assert not list(universal.defects(row))
    assert row["direct"] + row["inherited"] + row["root"] == row["nodes"] > row["own"]


GOOD = {"passed": True, "share": 1.0, "reasons": {}, "untagged": 0, "optimized_equal": True, "lost": [], "invented": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"passed": False},
        {"share": 0.96},
        {"untagged": 1},
        {"optimized_equal": False},
        {"lost": ["a"]},
        {"refused": "x"},
    ],
)
def test_every_fault_of_an_export_is_reported(wrong: dict[str, object]) -> None:
    assert not list(universal.defects(GOOD))
    assert len(list(universal.defects(GOOD | wrong))) == 1


def test_every_module_with_children_is_extracted_and_matches_the_live_one(tmp_path: Path) -> None:
    case = architectures.build("vit")
    path = tmp_path / "model.onnx"
    architectures.export(case, path, "torchscript", verify="off")
    names = ["layers", "layers.1.attention"]
    assert set(names) <= set(cuts.with_children(case.module))
    kinds = {name: cuts.cut(path, case, name) for name in names}
    assert [kind for kind, _ in kinds.values()] == ["container", "exact"]
    assert all(error < 1e-4 for _, error in kinds.values())


def test_metadata_bytes_are_counted_everywhere(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    )
    path = tmp_path / "m.onnx"
    for props in (model.metadata_props, model.graph.node[0].metadata_props, model.graph.input[0].metadata_props):
        props.add(key="key", value="äb")
    onnx.save(model, path)
    assert overhead.metadata_bytes(path) == 3 * 6
