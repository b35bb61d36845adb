"""Decoders with a cache become one Attention per layer with its past, and nothing that moves heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from sardonyx import ExportOptions, OptimizeOptions, export, optimize

SMALL = (
    "hidden_size=64,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,intermediate_size=128,"
    "vocab_size=100,pad_token_id=0"
)
PAST = 4  # Attention's first input with past keys and values

LAYERS = {
    "LlamaConfig": {"MatMul": 7, "RotaryEmbedding": 2, "Attention": 1, "Sigmoid": 1},
    "Phi3Config": {"MatMul": 4, "RotaryEmbedding": 2, "Attention": 1, "Split": 2},
}


@pytest.mark.parametrize(
    "config", [pytest.param(name, marks=pytest.mark.campaign if number else ()) for number, name in enumerate(LAYERS)]
)
def test_a_layer_has_one_attention_with_its_past(config: str, tmp_path: Path) -> None:
    """Verified with an empty and a filled past; 17 nodes per layer, 26 once."""
    path = tmp_path / "decoder.onnx"
    export(
        f"hf-config:{config}?{SMALL}", output=path, options=ExportOptions(with_past=True), dynamic="auto", verify="off"
    )
    run = optimize(path, options=OptimizeOptions(verify_seconds=4))
    assert run.verdict is not None
    assert run.verdict.passed
    assert run.model is not None
    nodes = list(run.model.graph)
    for operator, count in LAYERS[config].items():
        assert sum(node.op_type == operator for node in nodes) == 2 * count, operator
    assert not {"Transpose", "Reshape", "Softmax", "GatherND"} & {node.op_type for node in nodes}
    assert all(len(node.inputs) > PAST + 1 for node in nodes if node.op_type == "Attention")
    assert run.after.nodes <= 2 * 17 + 26
