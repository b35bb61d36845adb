"""Encoder-decoder caches as inputs and outputs of a graph, compared with the module at other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import sardonyx
from frontend.test_past import READERS
from sardonyx.frontend.tracing.traced import Exporter

PAST = [f"{part}.{side}" for part in ("decoder", "encoder") for side in ("key", "value")]


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("t5", "dynamo"),
        ("t5", "torchscript"),
        pytest.param("bart", "torchscript", marks=pytest.mark.campaign),
        ("whisper", "dynamo"),
        pytest.param("whisper", "torchscript", marks=pytest.mark.campaign),
        pytest.param("marian", "torchscript", marks=pytest.mark.campaign),
    ],
)
def test_an_encoder_decoder_takes_both_caches_and_returns_the_growing_one(name: str, exporter: Exporter) -> None:
    made = sardonyx.export(
        f"hf-config:{READERS[name]}", exporter=exporter, dynamic="auto", options=sardonyx.ExportOptions(with_past=True)
    )
    inputs = {each.name: each.dynamic for each in made.inputs}
    assert [each for each in inputs if each.startswith("past")] == [f"past_key_values.0.{each}" for each in PAST]
    assert made.outputs == ("logits", "present.0.decoder.key", "present.0.decoder.value")
    assert inputs["past_key_values.0.decoder.key"] == {0: "batch", 2: "past_sequence"}
    assert inputs["past_key_values.0.encoder.key"] == {0: "batch", 2: "encoder_sequence"}
    assert inputs["decoder_attention_mask"][1] == "past_sequence + sequence"
    assert made.verdict is not None
    tried = [trial.dims for trial in made.verdict.trials if trial.dims]
    assert {"past_sequence", "encoder_sequence", "sequence"} <= tried[0].keys()
    assert len({dims["past_sequence"] for dims in tried}) > 1


@pytest.mark.campaign
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("dynamic", [None, "auto"])
def test_every_encoder_decoder_is_exported_with_past(name: str, exporter: Exporter, dynamic: Any) -> None:
    made = sardonyx.export(
        f"hf-config:{READERS[name]}", exporter=exporter, dynamic=dynamic, options=sardonyx.ExportOptions(with_past=True)
    )
    assert made.verdict is not None
    assert len(made.verdict.trials) == 4


def test_the_tracer_keeps_an_input_that_nothing_reads() -> None:
    class Unread(nn.Module):
        def forward(self, x: torch.Tensor, unread: dict[str, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
            return x + y

    given = (torch.ones(2, 3), {"a": torch.zeros(2, 5)}, torch.ones(2, 3))
    made = sardonyx.export(Unread(), given, exporter="torchscript", dynamic={"unread.a": {1: "n"}})
    assert made.model is not None
    shapes = {value.name: value.shape for value in made.model.graph.inputs}
    assert list(shapes) == ["x", "unread.a", "y"]
    assert str(shapes["unread.a"]) == "[2,n]"
