"""bfloat16 and float16: which type is exported, how it is verified, and that errors are still detected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

import sardonyx
from sardonyx.errors import ModelError, VerificationFailed
from sardonyx.frontend.inputs.examples import derive
from sardonyx.frontend.models import resolve
from sardonyx.frontend.tracing import traced
from sardonyx.frontend.tracing.engine import to_array
from sardonyx.records.run import Accuracy
from sardonyx.runtime import Session

TEXT = "hidden_size=32,num_hidden_layers=1,num_attention_heads=4,intermediate_size=48,vocab_size=60"
LLAMA = f"hf-config:LlamaForCausalLM?{TEXT},num_key_value_heads=2"
BERT = f"hf-config:BertModel?{TEXT}"
VIT = f"hf-config:ViTModel?{TEXT.partition(',vocab')[0]},image_size=16,patch_size=8"
RESNET = "hf-config:ResNetModel?embedding_size=8,hidden_sizes=[8],depths=[1]"
FLOAT, BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("source", "dtype", "exporter"),
    [
        (LLAMA, "bfloat16", "dynamo"),
        (LLAMA, "bfloat16", "torchscript"),
        (BERT, "float16", "dynamo"),
        (BERT, "float16", "torchscript"),
        (BERT, "bfloat16", "torchscript"),
        (VIT, "bfloat16", "dynamo"),
        (VIT, "bfloat16", "torchscript"),
        (VIT, "float16", "torchscript"),
        (RESNET, "bfloat16", "dynamo"),
        (RESNET, "bfloat16", "torchscript"),
        (RESNET, "float16", "torchscript"),
    ],
    ids=lambda value: value.partition("?")[0].partition(":")[2] or value,
)
def test_models_are_exported_in_half_precision_and_verified_in_float32(source: str, dtype: Any, exporter: Any) -> None:
    made = sardonyx.export(
        source, {"pixel_values": PIXELS} if source is RESNET else None, dtype=dtype, exporter=exporter
    )
    assert made.verdict is not None
    assert made.verdict.passed
    assert made.verdict.computed_in == "float32"
    assert "in float32" in made.verdict.reference
    note = made.verdict.notes[0]
    own = "no CPU kernel" if dtype == "bfloat16" else "of PyTorch on the example"
    assert note.startswith("both sides computed in float32 with the weights as stored; ")
    assert own in note
    assert made.options["dtype"] == dtype
    assert made.model is not None
    kinds = {value.dtype for value in made.model.graph.initializers.values()}
    assert getattr(ir.DataType, dtype.upper()) in kinds


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in bfloat16, the most common type."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model: Any = resolve(LLAMA).module
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def test_a_checkpoint_is_exported_in_float32_by_default(checkpoint: Path, tmp_path: Path) -> None:
    made = sardonyx.export(f"hf:{checkpoint}", output=tmp_path / "wide.onnx", exporter="torchscript")
    assert made.notes[0] == "the checkpoint is bfloat16, exported in float32; dtype keep exports it in bfloat16"
    assert made.verdict is not None
    assert made.verdict.computed_in is None
    kept = sardonyx.export(f"hf:{checkpoint}", output=tmp_path / "kept.onnx", dtype="keep", exporter="torchscript")
    assert "exported in" not in kept.notes[0]
    types = [
        {each.data_type for each in onnx.load(tmp_path / name).graph.initializer} & {FLOAT, BFLOAT16}
        for name in ("wide.onnx", "kept.onnx")
    ]
    assert types == [{FLOAT}, {BFLOAT16}]


def _spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    """Make torch export a changed graph."""
    real = traced.export

    def export(*args: Any, **options: Any) -> Any:
        model, notes = real(*args, **options)
        spoil(model)
        return model, notes

    monkeypatch.setattr(traced, "export", export)


def _wrong_weight(model: ir.Model) -> None:
    """One element of one weight, by two percent."""
    value = next(value for name, value in model.graph.initializers.items() if name.endswith("down_proj.weight"))
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    place = np.unravel_index(np.abs(array.astype(np.float32)).argmax(), array.shape)
    array[place] = (array[place].astype(np.float32) * 1.02).astype(array.dtype)
    value.const_value = ir.tensor(array, dtype=value.const_value.dtype, name=value.name)


def _wrong_axis(model: ir.Model) -> None:
    node = next(node for node in model.graph if node.op_type == "Softmax")
    node.attributes["axis"] = ir.AttrInt64("axis", -2)


@pytest.mark.parametrize("spoil", [_wrong_weight, _wrong_axis], ids=lambda value: value.__name__)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.campaign)])
def test_a_wrong_graph_is_detected(monkeypatch: pytest.MonkeyPatch, dtype: Any, spoil: Any) -> None:
    _spoiled(monkeypatch, spoil)
    with pytest.raises(VerificationFailed, match="does not compute what the module does"):
        sardonyx.export(LLAMA, dtype=dtype, exporter="torchscript")


def test_contradicting_types_are_distinguished_from_a_wrong_graph() -> None:
    with pytest.raises(ModelError, match="half precision that is not valid") as caught:
        sardonyx.export(nn.Conv2d(3, 4, 3), (PIXELS,), dtype="bfloat16", exporter="torchscript", opset=18)
    assert caught.value.hint == 'use `dtype="float32"`'  # torch.export writes an invalid graph at this opset too


class Stubborn(nn.Module):
    """Casts to its own types, whatever the input types."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)).to(torch.bfloat16)
        return self.second((hidden * 0.3).half().to(x.dtype))


def test_half_precision_requested_inside_forward_is_widened_too() -> None:
    for dtype in ("float32", "float16"):
        made = sardonyx.export(Stubborn().eval(), (torch.randn(2, 8),), dtype=dtype, exporter="torchscript")
        assert made.verdict is not None
        assert made.verdict.computed_in == "float32"


def test_a_wrong_constant_is_distinguished_from_a_rounded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: ir.Model) -> None:
        for node in model.graph:
            constant = node.attributes["value"].as_tensor() if node.op_type == "Constant" else None
            if constant is not None and constant.size == 1 and abs(float(constant.numpy().flat[0]) - 0.3) < 0.01:
                array = (constant.numpy().astype(np.float32) * np.float32(1.03)).astype(constant.numpy().dtype)
                node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array, dtype=constant.dtype))

    _spoiled(monkeypatch, spoil)
    with pytest.raises(VerificationFailed):
        sardonyx.export(Stubborn().eval(), (torch.randn(2, 8),), dtype="bfloat16", exporter="torchscript")


class Autocast(nn.Module):
    """A float32 module whose products are in bfloat16, and one of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.norm = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            key = self.key(x)
            mixed = torch.softmax(self.query(x) @ key.transpose(-1, -2), -1) @ key
            mixed = self.norm(mixed)  # of bfloat16, with weights in float32
        return x + mixed, key


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_part_in_half_precision_of_a_float32_module_runs_where_the_module_does(exporter: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x, path = Autocast().eval(), torch.randn(2, 5, 8), tmp_path / "model.onnx"
    made = sardonyx.export(module, (x,), path, exporter=exporter)
    assert made.verdict is not None
    assert made.verdict.computed_in == "float32"
    assert all(output.max_abs < 1e-5 for output in made.verdict.outputs), "autocast was on in one of the two"
    assert "of PyTorch on the example" in made.verdict.notes[0]
    assert any("in bfloat16, which the module uses: computed in float32" in note for note in made.notes)
    assert (made.modules, made.coverage.root) == (4, 0)
    values, keys = map(np.asarray, Session(path).run({"x": x.numpy()}))
    with torch.no_grad():
        expected = module(x)
    assert keys.dtype == ml_dtypes.bfloat16
    assert np.array_equal(keys, to_array(expected[1]))
    assert np.abs(values - to_array(expected[0])).max() < 0.02
    assert sardonyx.optimize(path).verdict is not None


def test_a_wrong_part_in_half_precision_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(model: ir.Model) -> None:
        weight = model.graph.initializers["key.weight"]
        assert weight.const_value is not None
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.001), name=weight.name)

    torch.manual_seed(0)
    _spoiled(monkeypatch, spoil)
    with pytest.raises(VerificationFailed):
        sardonyx.export(Autocast().eval(), (torch.randn(2, 5, 8),), exporter="torchscript")


class Distances(nn.Module):
    """Has no kernel in half precision on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(self.layer(x), x)


def test_a_module_without_kernels_in_half_precision_is_run_in_float32() -> None:
    module = Distances().half().eval()
    with pytest.raises(NotImplementedError, match="Half"):
        module(torch.ones(2, 3, 8, dtype=torch.float16))
    assert derive(module).args[0].dtype is torch.float16


def test_the_callers_module_keeps_its_type() -> None:
    module = nn.Linear(4, 3).eval()
    made = sardonyx.export(module, (torch.ones(2, 4),), dtype="float16", exporter="torchscript")
    assert [each.dtype for each in made.inputs] == ["float16"]
    assert module.weight.dtype is torch.float32
    assert (
        sardonyx.export(module.half(), (torch.ones(2, 4).half(),), exporter="torchscript").inputs[0].dtype == "float16"
    )


def test_a_model_in_half_precision_takes_half_the_memory() -> None:
    wide, narrow = (
        sardonyx.analyze(nn.Sequential(nn.Linear(64, 64)), (torch.ones(2, 64),), dtype=dtype).forms[0].memory
        for dtype in ("keep", "float16")
    )
    assert narrow.weights * 2 == wide.weights


def _large(off_by: float = 0.0) -> onnx.ModelProto:
    """A product in bfloat16 with enough weights that the reference evaluator would be slow, and a computed scale."""
    weights = np.random.default_rng(0).standard_normal((2048, 1100)).astype(np.float32)
    weights[3, 5] += off_by
    kept = [
        ir.tensor(weights.astype(ml_dtypes.bfloat16), dtype=ir.DataType.BFLOAT16, name="w"),
        ir.tensor(np.array(0.1, ml_dtypes.bfloat16), dtype=ir.DataType.BFLOAT16, name="c"),
    ]
    text = """<ir_version: 10, opset_import: ["": 20]>
    agraph (bfloat16[n, 2048] x) => (bfloat16[n, 1100] y) {
        root = Sqrt(c)
        scaled = Mul(x, root)
        y = MatMul(scaled, w)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(ir.to_proto(each) for each in kept)
    return model


def test_large_files_without_kernels_are_compared_in_float32() -> None:
    verdict = sardonyx.verify(_large(), _large(), trials=2)
    assert verdict.passed
    assert verdict.computed_in == "float32"
    assert verdict.reference.startswith("onnxruntime")
    assert "no CPU kernel for" in verdict.notes[0]
    wrong = sardonyx.verify(_large(), _large(off_by=3.0), trials=2)
    assert not wrong.passed
    assert "output 'y'" in wrong.failures[0]


def test_a_constant_that_was_folded_in_its_type_is_the_same_in_float32() -> None:
    folded = _large()
    root = np.sqrt(np.array(0.1, ml_dtypes.bfloat16).astype(np.float32)).astype(ml_dtypes.bfloat16)
    del folded.graph.node[0]
    folded.graph.initializer[1].CopyFrom(ir.to_proto(ir.tensor(root, dtype=ir.DataType.BFLOAT16, name="root")))
    verdict = sardonyx.verify(_large(), folded, trials=2, accuracy=Accuracy.EXACT)
    assert verdict.passed, verdict.failures
