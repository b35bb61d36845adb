"""Decoders with an attention mask: exported and verified, and still refused if a position that counts is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import models
import sardonyx
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import TorchEngine
from sardonyx.verification import Oracle

MASK = "attention_mask"
TRIALS = 3  # the number that an export uses


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return models.build("llama")[0]


@pytest.fixture(scope="module")
def decoder(module: nn.Module) -> tuple[ir.Model, Oracle]:
    """An exported decoder, and its module as the reference for mutants."""
    _, inputs = models.build("llama")
    exported = sardonyx.export(module, kwargs=inputs, dynamic="auto")
    assert exported.model is not None
    assert exported.verdict is not None
    assert exported.verdict.passed
    return exported.model, Oracle(exported.model, trials=TRIALS, engine=TorchEngine(ModuleCall(module, (), inputs)))


def operator(model: ir.Model, op_type: str) -> ir.Node:
    return next(node for node in model.graph if node.op_type == op_type)


def changed(model: ir.Model, node: ir.Node, operand: int, op_type: str, number: object) -> None:
    """Insert an operator with a constant between a node and one of its operands."""
    value = node.inputs[operand]
    assert value is not None
    constant = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor(np.asarray(number)))])
    between = ir.Node("", op_type, [value, constant.outputs[0]])
    model.graph.insert_before(node, [constant, between])
    node.replace_input_with(operand, between.outputs[0])


def ignore_padding(model: ir.Model) -> None:
    mask = next(value for value in model.graph.inputs if value.name == MASK)
    for node, operand in tuple(mask.uses()):
        if node.op_type != "Shape":
            changed(model, node, operand, "Max", np.int64(1))


def see_one_token_ahead(model: ir.Model) -> None:
    changed(model, operator(model, "LessOrEqual"), 1, "Add", np.int64(1))


def never_see_itself(model: ir.Model) -> None:
    changed(model, operator(model, "LessOrEqual"), 1, "Sub", np.int64(1))


def rotate_faster(model: ir.Model) -> None:
    """Rotary embedding with angles that are one percent too large."""
    changed(model, operator(model, "Cos"), 0, "Mul", np.float32(1.01))


def off_at(kept: int, real_tokens_so_far: Callable[[ir.tape.Tape, ir.Value], ir.Value]) -> Callable[[ir.Model], None]:
    """Logits that are 1 % too large at some positions, selected by the mask and the previous tokens."""

    def mutate(model: ir.Model) -> None:
        tape, graph = ir.tape.Tape(), model.graph
        mask = next(value for value in graph.inputs if value.name == MASK)
        one, axis = (tape.op("Constant", [], {"value_int": number}) for number in (kept, 1))
        last = tape.op("Constant", [], {"value_ints": [-1]})
        chosen = tape.op(
            "And", [tape.op("Equal", [mask, one]), real_tokens_so_far(tape, tape.op("CumSum", [mask, axis]))]
        )
        off = tape.op("Unsqueeze", [tape.op("Cast", [chosen], {"to": ir.DataType.FLOAT}), last])
        step = tape.op("Constant", [], {"value_float": 0.01})
        logits = graph.outputs[0]
        name, logits.name = logits.name, "right"
        wrong = tape.op("Add", [logits, tape.op("Mul", [off, step])])
        wrong.name, wrong.type, wrong.shape = name, logits.type, logits.shape
        graph.extend(tape.nodes)
        graph.outputs[0] = wrong

    return mutate


def number_of(count: int, op_type: str) -> Callable[[ir.tape.Tape, ir.Value], ir.Value]:
    return lambda tape, seen: tape.op(op_type, [seen, tape.op("Constant", [], {"value_int": count})])


first_real_token = off_at(1, number_of(1, "Equal"))
padding_on_the_right = off_at(0, number_of(0, "Greater"))
padding_on_the_left = off_at(0, number_of(0, "Equal"))


@pytest.mark.parametrize(
    "mutate",
    [ignore_padding, see_one_token_ahead, never_see_itself, rotate_faster, first_real_token, padding_on_the_right],
)
def test_a_wrong_position_that_counts_is_found(
    mutate: Callable[[ir.Model], None], decoder: tuple[ir.Model, Oracle]
) -> None:
    model, oracle = decoder
    mutant = model.clone()
    mutate(mutant)
    verdict = oracle.check(mutant)
    assert not verdict.passed
    assert "differs by up to" in verdict.failures[0]


def test_padding_that_sees_no_key_is_counted_and_not_compared(decoder: tuple[ir.Model, Oracle]) -> None:
    model, oracle = decoder
    mutant = model.clone()
    padding_on_the_left(mutant)
    verdict = oracle.check(mutant)
    assert verdict.passed
    assert [line for line in verdict.not_covered if "padding" in line] == [
        "7 of 16 positions of 'logits' are padding that sees no key: not compared"
    ]


@pytest.mark.parametrize("path", ["model.layers.0.self_attn", "model.layers.1"])
def test_a_module_is_extracted_with_an_example_that_is_padded_on_the_left(
    path: str, module: nn.Module, decoder: tuple[ir.Model, Oracle]
) -> None:
    padded = {"input_ids": torch.arange(6)[None], MASK: torch.tensor([[0, 0, 1, 1, 1, 1]])}
    cut = sardonyx.extract(decoder[0], path, live=module, kwargs=padded)
    assert cut.live is not None
    (line,) = cut.live.not_covered
    assert line.startswith("2 of 6 positions")


def test_a_text_encoder_that_pools_at_its_end_token_is_exported() -> None:
    """Texts without an end token are pooled at the first position, which may be padding on the left."""
    sizes = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24"
    text = [f"text_config.{part}" for part in f"{sizes},vocab_size=50,eos_token_id=49".split(",")]
    vision = [f"vision_config.{part}" for part in f"{sizes},image_size=32,patch_size=8".split(",")]
    exported = sardonyx.export(f"hf-config:CLIPConfig?{','.join([*text, *vision])},projection_dim=8", task="CLIPModel")
    assert exported.verdict is not None
    assert exported.verdict.passed
    (pooled,) = [line for line in exported.verdict.not_covered if "pooled" in line]
    assert pooled.startswith("1 of 2 ")
    assert "items of 'logits_per_image' are pooled from padding that sees no key: not compared" in pooled


class Padded(nn.Module):
    """An encoder of torch, whose mask is True where a position is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=mask)


def test_an_item_that_is_padding_throughout_is_not_compared() -> None:
    """Torch's kernel returns zeros for its attention, and the graph NaN."""
    mask = torch.tensor([[False, False, False, True, True], [True] * 5])
    exported = sardonyx.export(Padded(), (torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)), mask))
    assert exported.verdict is not None
    assert exported.verdict.passed
    (line,) = [line for line in exported.verdict.not_covered if "sees no key" in line]
    assert line == "5 of 10 positions of 'output' are padding that sees no key: not compared"
    assert any("at padded positions" in note for note in exported.notes), "PyTorch's fast path writes zeros there"


def test_a_graph_gets_more_time_if_its_module_is_slow(decoder: tuple[ir.Model, Oracle]) -> None:
    """The limit of its runs is a multiple of the module's time, which was not measured."""
    assert all(answer.seconds > 0 for answer in decoder[1].answers())
