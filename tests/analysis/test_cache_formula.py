"""The bytes of a decoder's cache as a formula: full, windowed, both, and in an ONNX file."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

import sardonyx
from sardonyx.frontend.inputs.examples import Example
from sardonyx.frontend.inputs.past import cache_sizes
from sardonyx.frontend.models import resolve
from sardonyx.records.analysis import Cache
from sardonyx.verbs.analyze.forms import cache_of_graph
from sardonyx.verbs.analyze.torch_models import cache_of_module

SMALL = "hidden_size=32,num_attention_heads=4,num_key_value_heads=2,intermediate_size=64,vocab_size=100,head_dim=8"
FULL = f"hf-config:LlamaConfig?{SMALL},num_hidden_layers=2"
WINDOWED = f"hf-config:MistralConfig?{SMALL},num_hidden_layers=2,sliding_window=4"
HYBRID = f"hf-config:Gemma3TextConfig?{SMALL},num_hidden_layers=6,sliding_window=8"


@pytest.mark.parametrize(
    ("source", "formula"),
    [
        (FULL, "256 · batch · (past_sequence + sequence)"),
        (WINDOWED, "256 · batch · min(3, past_sequence + sequence)"),
        (HYBRID, "640 · batch · min(7, past_sequence + sequence) + 128 · batch · (past_sequence + sequence)"),
    ],
)
def test_the_formula_matches_the_cache_of_the_module(source: str, formula: str) -> None:
    module = resolve(source, task=None, seed=0).module.eval()
    result = cache_of_module(module, Example((), {"input_ids": torch.ones(2, 11, dtype=torch.int64)}))
    assert result is not None
    assert result.formula == formula
    for tokens in (2, 11):
        with torch.no_grad():
            cache = module(torch.ones(3, tokens, dtype=torch.int64), use_cache=True).past_key_values
        real = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
        known = {"batch": 3, "past_sequence": 0, "sequence": tokens, "min": min}
        assert eval(formula.replace("·", "*"), {}, known) == real


@pytest.mark.campaign
def test_analyze_shows_it_at_the_sizes_of_the_example() -> None:
    analysis = sardonyx.analyze(HYBRID).sources[0].cache
    assert isinstance(analysis, Cache)
    assert analysis.formula.startswith("640 · batch · min(7, ")
    assert analysis.bytes == 640 * 2 * 7 + 128 * 2 * 11


def test_an_onnx_file_returns_its_cache() -> None:
    def value(name: str, shape: list[int | str]) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT16), shape=ir.Shape(shape))

    past = [value(f"past.{place}.key", ["batch", 3, "past_sequence", 64]) for place in range(4)]
    new = [value(f"new.{place}", ["batch", 3, "sequence", 64]) for place in range(4)]
    nodes = [ir.node("Concat", list(pair), {"axis": 2}) for pair in zip(past, new, strict=True)]
    for place, node in enumerate(nodes):
        node.outputs[0].name = f"present.{place}.key"
        node.outputs[0].type = past[0].type
        node.outputs[0].shape = ir.Shape(["batch", 3, "past_sequence + sequence", 64])
    graph = ir.Graph([*past, *new], [node.outputs[0] for node in nodes], nodes=nodes, opset_imports={"": 20})
    result = cache_of_graph(ir.Model(graph, ir_version=10), {"batch": 2, "past_sequence": 5, "sequence": 1})
    assert result is not None
    assert result.formula == "1,536 · batch · (past_sequence + sequence)"
    assert result.bytes == 1536 * 2 * 6


def test_an_encoder_has_no_cache() -> None:
    module = resolve("hf-config:BertConfig?hidden_size=32,num_hidden_layers=1,num_attention_heads=4", task=None, seed=0)
    assert cache_sizes(module.module, Example((torch.ones(2, 5, dtype=torch.int64),), {})) is None
