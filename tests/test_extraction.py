"""The public verb `extract`: modules of real exports, verified against the live module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import sardonyx
from narrowing import array, present
from sardonyx.errors import ModelError, OutputError, UsageError, VerificationFailed
from sardonyx.frontend.tracing.engine import capture, example_feeds
from sardonyx.frontend.tracing.traced import Exporter
from sardonyx.ir import module_region as cutting
from sardonyx.records.export import Extraction
from sardonyx.runtime import Session
from sardonyx.verbs.export import extract

EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")
Export = Callable[[Exporter], Path]


class Block(nn.Module):
    """Works in place, takes a keyword argument, and returns an unused value."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.act(self.lin(x))
        return hidden * scale, hidden.sum(), x


class Net(nn.Module):
    """A container, a module that is called twice, one that is never called, and operations between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.idle = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().mean()
        for block in self.blocks:
            x, _, _ = block(x, scale=scale)
        return self.shared(self.shared(x) + 1)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    folder = tmp_path_factory.mktemp("nets")

    def export(exporter: Exporter) -> Path:
        path = folder / f"{exporter}.onnx"
        if not path.exists():
            sardonyx.export(net(), x(), path, exporter=exporter, verify="off")
        return path

    return export


def x() -> torch.Tensor:
    return torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("optimized", [False, True])
def test_an_extracted_module_matches_the_live_module(
    exported: Export, exporter: Exporter, optimized: bool, tmp_path: Path
) -> None:
    source = exported(exporter)
    if optimized:
        source = tmp_path / "small.onnx"
        sardonyx.optimize(exported(exporter), source, verify="off")
    output = tmp_path / "block.onnx"
    made = sardonyx.extract(source, "blocks.1", output, live=net(), inputs=(x(),))
    assert made.live is not None
    assert made.live.passed
    assert [port.live for port in made.outputs] == ["0"]
    assert {port.live for port in made.inputs} == {"x", "scale"}
    assert made.dropped == ("1",)
    assert made.live.notes == ("its output '2' is one of its inputs",)
    live = capture(net(), (x(),), {}, "blocks.1")[0]
    feeds = {port.name: live.inputs[port.live or ""] for port in made.inputs}
    np.testing.assert_allclose(array(Session(output).run(feeds)[0]), live.outputs["0"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_call_of_a_module_is_compared_with_its_own_outputs(exported: Export, exporter: Exporter) -> None:
    first, second = (
        sardonyx.extract(exported(exporter), "shared", live=net(), inputs=(x(),), call=call) for call in (0, 1)
    )
    assert (first.path, second.path) == ("shared", "shared@1")
    assert (first.calls, second.call) == (2, 1)
    assert [port.name for port in first.inputs] != [port.name for port in second.inputs]
    assert first.live is not None
    assert second.live is not None
    assert first.tag == second.tag == "/Net"


def test_a_container_is_compared_with_the_whole_model(exported: Export) -> None:
    made = sardonyx.extract(exported("dynamo"), "blocks", live=net(), inputs=(x(),))
    assert made.live is None
    assert made.verdict is not None
    assert made.verdict.passed
    assert made.notes == ("blocks is never called with plain tensors: it was compared with the whole model only",)


def test_another_models_module_is_refused_and_nothing_is_written(exported: Export, tmp_path: Path) -> None:
    output = tmp_path / "block.onnx"
    with pytest.raises(VerificationFailed, match="the live model has other weights than the file") as caught:
        sardonyx.extract(exported("dynamo"), "blocks.0", output, live=net(seed=1), inputs=(x(),))
    assert caught.value.exit_code == 3
    assert not output.exists()


def test_a_wrong_extraction_is_refused_without_a_live_module(
    exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = cutting.extract

    def wrong(*args: Any, **options: Any) -> cutting.Extract:
        made = right(*args, **options)
        weights = made.model.graph.initializers.values()
        weight = next(value for value in weights if present(value.const_value).size > 1)
        weight.const_value = ir.tensor(present(weight.const_value).numpy() * np.float32(1.001), name=weight.name)
        return made

    monkeypatch.setattr(cutting, "extract", wrong)
    output = tmp_path / "block.onnx"
    with pytest.raises(VerificationFailed, match="does not compute on its own what it computes in the whole"):
        sardonyx.extract(exported("dynamo"), "blocks.0", output)
    assert not output.exists()
    assert sardonyx.extract(exported("dynamo"), "blocks.0", output, verify="off").verdict is None


def test_without_a_live_module_several_random_inputs_are_tried(exported: Export) -> None:
    made = sardonyx.extract(exported("torchscript"), "blocks.0")
    assert made.verdict is not None
    assert len(made.verdict.trials) >= 4
    assert all(output.max_abs == 0 for output in made.verdict.outputs)


def test_an_unused_or_unknown_module_is_refused(exported: Export) -> None:
    with pytest.raises(ModelError, match="idle owns no node"):
        sardonyx.extract(exported("dynamo"), "idle")
    with pytest.raises(UsageError, match="no module 'block'") as caught:
        sardonyx.extract(exported("dynamo"), "block")
    assert "blocks" in (caught.value.hint or "")


def test_a_file_that_exists_is_kept(exported: Export, tmp_path: Path) -> None:
    output = tmp_path / "there.onnx"
    output.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        sardonyx.extract(exported("dynamo"), "blocks.0", output)
    assert output.read_text() == "mine"
    sardonyx.extract(exported("dynamo"), "blocks.0", output, force=True)
    onnx.checker.check_model(output)


def test_extracting_from_a_model_in_memory_leaves_it_unchanged(exported: Export) -> None:
    proto = onnx.load(exported("dynamo"))
    before = proto.SerializeToString()
    made = sardonyx.extract(proto, "/Net/Block.0")
    assert made.path == "blocks.0"
    assert made.result.path is None
    assert proto.SerializeToString() == before


def test_the_record_reads_back_equal(exported: Export, tmp_path: Path) -> None:
    made = sardonyx.extract(exported("dynamo"), "blocks.0", tmp_path / "b.onnx", live=net(), inputs=(x(),))
    back = Extraction.from_json(made.to_json())
    assert back == made.plain()
    assert back.result.sha256 is not None


def test_a_tag_is_resolved_to_its_path(exported: Export) -> None:
    assert extract.path_of(exported("dynamo"), "/Net/Block.1") == "blocks.1"


# What hooks see


def test_outputs_are_copied_before_later_in_place_changes() -> None:
    (seen,) = capture(net(), (x(),), {}, "blocks.0.lin")
    assert seen.outputs["output"].min() < 0, "the activation that follows works in place"


def test_no_hook_is_left_behind() -> None:
    module, given = net().train(), x()
    capture(module, (given,), {}, "shared")
    assert module.training
    assert not module.shared._forward_hooks
    assert not module.shared._forward_pre_hooks
    assert torch.equal(given, x())
    with pytest.raises(UsageError, match="the live model has no module 'nothing'"):
        capture(module, (given,), {}, "nothing")


def test_examples_fit_by_name_or_in_order() -> None:
    assert list(example_feeds(net(), (x(),), {}, ["x"])) == ["x"]
    assert list(example_feeds(net(), (x(),), {}, ["input.1"])) == ["input.1"]
    with pytest.raises(UsageError, match=r"\(x\) do not fit the file's inputs \(a, b\)"):
        example_feeds(net(), (x(),), {}, ["a", "b"])
