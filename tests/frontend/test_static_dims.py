"""A dimension found by `auto` that torch cannot keep dynamic stays static, with a note; a named one is an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sardonyx
from sardonyx.errors import ModelError, VerificationFailed
from sardonyx.frontend.tracing.graph_names import with_lowest_limits
from sardonyx.frontend.tracing.traced import Exporter
from sardonyx.records.run import Verdict


class Listed(nn.Module):
    """Runs at any batch size, but the export fixes that of the example, because a list has a fixed length."""

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        pictures = torch.cat([picture.sum().reshape(1, 1) for picture in image])
        return ids * 2.0 + pictures


class Windows(nn.Module):
    """The tracer supports this operator only for a known length."""

    def forward(self, ids: Tensor) -> Tensor:
        return ids.unfold(1, 2, 1).sum(-1) * 0.5


IDS = torch.arange(10).reshape(2, 5)
LISTED = {"ids": IDS, "image": torch.arange(24.0).reshape(2, 3, 4)}


def sizes_tried(verdict: Verdict | None, dim: str) -> set[int]:
    assert verdict is not None
    assert verdict.passed
    return {trial.dims[dim] for trial in verdict.trials if dim in trial.dims}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_dim_found_by_auto_that_the_export_fixes_stays_static_with_a_note(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    translations: list[Any] = []
    translate: Any = torch.onnx.export

    def counted(*args: Any, **kwargs: Any) -> Any:
        translations.append(args)
        return translate(*args, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", counted)
    made = sardonyx.export(Listed(), LISTED, dynamic="auto", exporter=exporter)
    assert exporter != "dynamo" or len(translations) == 1, "only a graph with its final dimensions is translated"
    assert [each.dynamic for each in made.inputs] == [{1: "sequence"}, {}]
    assert [note for note in made.notes if note.startswith("batch stays 2: ")]
    assert len(sizes_tried(made.verdict, "sequence")) > 1
    assert made.model is not None
    assert [str(value.shape) for value in made.model.graph.inputs] == ["[2,sequence]", "[2,3,4]"]


@pytest.mark.parametrize(("exporter", "error"), [("dynamo", ModelError), ("torchscript", VerificationFailed)])
def test_a_named_dim_that_the_export_fixes_is_an_error(exporter: Exporter, error: type[Exception]) -> None:
    named = {"ids": {0: "batch"}, "image": {0: "batch"}}
    with pytest.raises(error):
        sardonyx.export(Listed(), LISTED, dynamic=named, exporter=exporter)


def test_a_dim_that_torch_cannot_export_dynamic_stays_static_with_its_reason() -> None:
    made = sardonyx.export(Windows(), (IDS,), dynamic="auto", exporter="torchscript")
    assert [each.dynamic for each in made.inputs] == [{0: "batch"}]
    assert [note for note in made.notes if note.startswith("sequence stays 5: torch cannot export it dynamic: ")]
    assert len(sizes_tried(made.verdict, "batch")) > 1


def test_a_module_that_fails_at_every_size_fails_as_before() -> None:
    class Decided(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            return ids * 2.0 if bool(ids.sum() > 4) else ids * 3.0

    with pytest.raises(ModelError, match="torch cannot export the model"):
        sardonyx.export(Decided(), (IDS,), dynamic="auto")


class Reserved(nn.Module):
    """Torch sees that there are 20 positions; two of them are reserved, which only running shows."""

    config = SimpleNamespace(max_position_embeddings=20)

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30, 6), nn.Embedding(20, 6)
        self.register_buffer("numbers", torch.arange(20))

    def forward(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(self.get_buffer("numbers")[: ids.shape[1]] + 2)


def test_a_dimension_has_one_limit_the_lowest() -> None:
    made = sardonyx.export(Reserved(), (IDS,), dynamic="auto", verify="off")
    assert [note for note in made.notes if "at most" in note] == ["sequence at most 18"]
    notes = ("a at most 9, according to the config", "other", "a + b at most 7", "a at most 9", "a at most 12", "other")
    assert with_lowest_limits(notes) == notes[:3]
