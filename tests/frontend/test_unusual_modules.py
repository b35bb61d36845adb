"""Unusual modules: they export, are analyzed and extracted, or are refused in one line with a reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.utils.import_utils import torch_compilable_check

import sardonyx
from sardonyx.errors import ModelError, SardonyxError, reason
from sardonyx.frontend.inputs.examples import fitting_example
from sardonyx.frontend.models import state_sha256
from sardonyx.frontend.tracing.prepare import unscripted
from sardonyx.frontend.tracing.traced import Exporter
from sardonyx.records.inspection import Port
from sardonyx.verbs.analyze.costs.program import ITEM_BYTES

ROWS = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Odd(nn.Module):
    """A linear layer and a given function of it."""

    def __init__(self, work: Callable[[Any, torch.Tensor], Any], **children: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.work = work
        for name, module in children.items():
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> Any:
        return self.work(self, x)


class Wrapped(nn.Module):
    """A module that can be scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@dataclasses.dataclass
class Answer:
    """An output with values that are not tensors."""

    scores: torch.Tensor
    count: int
    label: str
    more: Any = None


OUTPUTS: dict[str, tuple[Callable[[Any, torch.Tensor], Any], list[str], str]] = {
    "none": (lambda m, x: (m.linear(x), None), ["output_0"], ""),
    "size": (lambda m, x: (m.linear(x), x.shape[0]), ["output_0"], "1 (int)"),
    "shape": (lambda m, x: (x.shape, m.linear(x)), ["output_1"], "0.0 (int), 0.1 (int)"),
    "number": (lambda m, x: (m.linear(x), 2.5, "text"), ["output_0"], "1 (float), 2 (str)"),
    "dataclass": (
        lambda m, x: Answer(m.linear(x), 3, "k", [x, {"z": x + 1}]),
        ["scores", "more.0", "more.1.z"],
        "count (int), label (str)",
    ),
}


@pytest.mark.parametrize("work", OUTPUTS)
def test_outputs_that_are_not_tensors_are_left_out_and_noted(work: str) -> None:
    function, names, left_out = OUTPUTS[work]
    made = sardonyx.export(Odd(function), ROWS, exporter="torchscript")
    assert made.verdict is not None
    assert made.verdict.passed
    assert list(made.outputs) == names
    notes = [note for note in made.notes if "not tensors" in note]
    assert notes == ([f"outputs that are not tensors are left out of the graph: {left_out}"] if left_out else [])


def test_both_exporters_leave_the_same_outputs_out() -> None:
    function, names, left_out = OUTPUTS["dataclass"]
    made = sardonyx.export(Odd(function), ROWS)
    assert list(made.outputs) == names
    assert any(left_out in note for note in made.notes)


@pytest.mark.parametrize("answer", [None, 7, (), {1}])
def test_a_module_without_an_output_is_refused(answer: Any) -> None:
    with pytest.raises(ModelError, match=f"returns {type(answer).__name__} without a tensor"):
        sardonyx.export(Odd(lambda _m, _x: answer), ROWS, exporter="torchscript")


@pytest.mark.parametrize("inner", [False, True])
def test_a_module_is_extracted_and_compared_with_a_live_scripted_one(inner: bool, tmp_path: Path) -> None:
    scripted = torch.jit.script(Wrapped())
    live = nn.Sequential(scripted, nn.Tanh()) if inner else scripted
    path = tmp_path / "model.onnx"
    sardonyx.export(live, ROWS, path, exporter="torchscript")
    extraction = sardonyx.extract(path, "0.linear" if inner else "linear", live=live, inputs=(ROWS,))
    assert extraction.live is not None
    assert extraction.live.passed


def test_a_scripted_live_model_gets_inputs_like_those_of_the_file() -> None:
    plain = unscripted(torch.jit.script(Wrapped()))
    example = fitting_example(plain, [Port("x", "float32", ("batch", 4))])
    assert [tuple(value.shape) for value in (*example.args, *example.kwargs.values())] == [(2, 4)]


def test_a_frozen_script_can_be_read() -> None:
    module = unscripted(torch.jit.freeze(torch.jit.script(Wrapped().eval())))
    assert torch.equal(module(ROWS), module(ROWS))


def _quantized() -> nn.Module:
    torch.backends.quantized.engine = next(each for each in ("qnnpack", "fbgemm", "x86") if each in _engines())
    layers = (torch.ao.quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), torch.ao.quantization.DeQuantStub())
    model: Any = nn.Sequential(*layers).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = torch.ao.quantization.prepare(model)
    prepared(torch.randn(2, 3, 8, 8))
    return torch.ao.quantization.convert(prepared)


def _engines() -> list[str]:
    return torch.backends.quantized.supported_engines


@pytest.mark.filterwarnings("ignore")
def test_quantized_modules_are_analyzed_and_exported() -> None:
    picture = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = _quantized()
    assert sardonyx.analyze(model, picture).forms[0].work.operations
    made = sardonyx.export(model, picture, exporter="torchscript", verify="off")
    assert made.counts.nodes
    assert made.modules > 1, "torch names the modules of those that it traces twice"
    assert len(state_sha256(model)) == 64


def test_every_type_of_torch_has_a_size() -> None:
    types = [each for each in vars(torch).values() if isinstance(each, torch.dtype)]
    assert {str(each).removeprefix("torch."): each.itemsize for each in types}.items() <= ITEM_BYTES.items()


def _looping(m: Any, x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = (torch.tensor(0), x)
    results: Any = while_loop(lambda i, _x: i < 3, lambda i, x: (i + 1, m.linear(x)), start)
    return results[1]


def _scanning(m: Any, x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.scan import scan

    results: Any = scan(lambda carry, x: (carry + x, (carry + x).clone()), torch.zeros(4), m.linear(x))
    return results[1]


def _branching(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 100, lambda x: x * 2, lambda x: m.linear(x), (x,))


@pytest.mark.parametrize(("work", "linears"), [(_branching, 1), (_looping, 3), (_scanning, 1)])
def test_control_flow_is_analyzed_as_it_runs(work: Callable[[Any, torch.Tensor], Any], linears: int) -> None:
    analysis = sardonyx.analyze(Odd(work), ROWS)
    standard = analysis.forms[0]
    assert standard.work.macs == linears * 2 * 4 * 4
    assert any("depends on its data" in note for note in standard.notes)
    ran = next(module for module in standard.modules if module.path == "linear")
    assert ran.macs == standard.work.macs, "what runs inside a branch belongs to the module that it calls"


KEYS = ("a 'b' \"c\"", "ü/\\[0]", "x@1", "\n", "class", "%s", " ")


def _chained(m: Any, x: torch.Tensor) -> torch.Tensor:
    for key in KEYS:
        x = m.parts[key](x)
    return x


def test_names_of_modules_may_contain_any_character(tmp_path: Path) -> None:
    model = Odd(_chained, parts=nn.ModuleDict({key: nn.Linear(4, 4) for key in KEYS}))
    assert len(sardonyx.analyze(model, ROWS).forms) == 3
    decomposed = sardonyx.decompose(model, ROWS)
    assert torch.equal(decomposed(ROWS), model(ROWS))
    path = tmp_path / "model.onnx"
    assert sardonyx.export(model, ROWS, path).root_nodes == ()
    cut = sardonyx.extract(path, "parts.x%401", live=model, inputs=(ROWS,))
    assert cut.live is not None
    assert cut.live.passed


def _volume(m: Any, x: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(m.linear(x), torch.zeros(2, 3, 3, 3, 3), align_corners=True)


VOLUME = torch.randn(2, 1, 4, 4, 4, generator=torch.Generator().manual_seed(0))


def test_the_tracer_uses_the_lowest_opset_that_works() -> None:
    made = sardonyx.export(Odd(_volume), VOLUME, exporter="torchscript")
    assert made.result.opsets[""] == 20
    assert any(note.startswith("opset 20, because at 18:") for note in made.notes)


def test_a_requested_opset_is_used() -> None:
    with pytest.raises(ModelError, match="at opset 16") as caught:
        sardonyx.export(Odd(_volume), VOLUME, exporter="torchscript", opset=16)
    assert caught.value.hint == "use `opset=20`, which works"


def test_an_operator_without_any_opset_is_refused_without_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match="aten::fft_fft"):
        sardonyx.export(Odd(lambda m, x: torch.fft.fft(m.linear(x)).abs()), ROWS, exporter="torchscript")
    assert capfd.readouterr().out == ""


def test_complex_inputs_and_outputs_are_pairs_of_real_numbers() -> None:
    made = sardonyx.export(Odd(lambda _m, x: x * 2), torch.complex(ROWS, ROWS))
    assert made.inputs[0].shape == (2, 4, 2)
    assert made.verdict is not None
    assert made.verdict.passed


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda _m, x: torch.eye(4).to_sparse() @ x.T, "sparse_coo tensors"),
        (lambda m, x: torch.nested.nested_tensor([m.linear(x), x[:1]]).sum(), "nested tensors"),
    ],
)
def test_tensors_without_plain_memory_are_refused_by_name(
    work: Callable[[Any, torch.Tensor], Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        sardonyx.analyze(Odd(work), ROWS)


def test_sparse_weights_have_a_fingerprint() -> None:
    module = Odd(lambda m, x: m.linear(x))
    module.register_buffer("table", torch.eye(4).to_sparse_csr())
    assert len(state_sha256(module)) == 64


def test_a_module_without_inputs_is_exported() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.weight * 2

    assert sardonyx.export(Constant(), ()).inputs == ()


def test_a_compiled_forward_is_traced_as_the_original() -> None:
    module: Any = Wrapped()
    module.forward = torch.compile(module.forward, backend="eager")
    assert sardonyx.export(module, ROWS, exporter="torchscript").verdict is not None


def test_a_module_that_runs_only_inside_a_transform_is_compared_with_the_whole_model(tmp_path: Path) -> None:
    module = Odd(lambda m, x: torch.vmap(lambda row: m.linear(row).sum())(x))
    sardonyx.export(module, ROWS, tmp_path / "model.onnx", exporter="torchscript")
    extraction = sardonyx.extract(tmp_path / "model.onnx", "linear", live=module, inputs=(ROWS,))
    assert any("plain tensors" in note for note in extraction.notes)


def test_a_live_module_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    module: Any = Wrapped()
    sardonyx.export(module, ROWS, tmp_path / "model.onnx", exporter="torchscript")
    module.linear = nn.Linear(5, 4)
    with pytest.raises(SardonyxError, match="does not run on these inputs"):
        sardonyx.extract(tmp_path / "model.onnx", "linear", live=module, inputs=(ROWS,))


def test_reasons_have_no_addresses_and_may_be_empty() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("nothing to say")

    assert reason(Mute()) == "Mute"
    assert reason(ValueError(f"{object()!r} is odd")) == "ValueError: <object> is odd"


def test_an_operation_with_a_negative_axis_does_not_affect_others() -> None:
    def work(_: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(x, 2, dim=-1).unsqueeze(0).softmax(-1)

    made = sardonyx.export(Odd(work), (ROWS,), exporter="torchscript")
    assert made.verdict is not None
    assert made.verdict.passed


@pytest.mark.parametrize("axis", [-3, -2, -1, 1])
def test_windows_are_unfolded_over_any_axis(axis: int) -> None:
    """Torch itself writes the new axis of a negative one in the wrong place."""
    made = sardonyx.export(
        Odd(lambda _, x: x.reshape(2, 3, 4).unfold(axis, 2, 1)), torch.randn(4, 6), exporter="torchscript"
    )
    assert made.verdict is not None
    assert made.verdict.passed


@pytest.mark.parametrize("dynamic", [None, {"x": {0: "rows"}}])
@pytest.mark.parametrize("sizes", [(-1, -1, 4), (-1, 0, 4), (3, -1, -1, 4)])
def test_an_empty_tensor_is_expanded(sizes: tuple[int, ...], dynamic: Any) -> None:
    """Torch itself infers that it has an element, and computes the sizes of later views from that."""

    def work(_: Any, x: torch.Tensor) -> torch.Tensor:
        rows = x.unsqueeze(-2).expand(*sizes[:-3], -1, -1, -1)
        joined = torch.cat([rows, torch.zeros(1, 0, 4).expand(*sizes[:-3], x.shape[0], *sizes[-2:])], -2)
        return joined.reshape(*joined.shape[:-1], 2, 2)

    made = sardonyx.export(Odd(work), (ROWS,), exporter="torchscript", dynamic=dynamic)
    assert made.verdict is not None
    assert made.verdict.passed


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_3d_convolution_may_lack_a_bias(exporter: Exporter, bias: bool) -> None:
    """Torch itself writes a bias of shape (channels, 2), which its own optimizer removes."""
    module = nn.Conv3d(4, 6, (2, 3, 1), stride=(1, 2, 1), padding=1, dilation=(2, 1, 1), groups=2, bias=bias).eval()
    exported = sardonyx.export(module, torch.randn(2, 4, 5, 6, 3), exporter=exporter)
    (node,) = exported.to_proto().graph.node
    assert [node.op_type, len(node.input)] == ["Conv", 3 if bias else 2]


class Checked(nn.Module):
    """Branches on a number among its inputs, after checks of values as in transformers' models."""

    def __init__(self, checked: bool) -> None:
        super().__init__()
        self.checked = checked

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        number = count.item()
        if self.checked:
            torch_compilable_check(x > -1e9, "a value is too small")
            torch_compilable_check(number > 0, "there is nothing")
        return x * number if number > 0 else x


def test_checks_of_numbers_become_assumptions_of_torch() -> None:
    example = (ROWS, torch.tensor(3))
    with pytest.raises(ModelError, match="control flow depends on values"):
        sardonyx.export(Checked(False), example)
    exported = sardonyx.export(Checked(True), example)
    assert "Mul" in {node.op_type for node in exported.to_proto().graph.node}


def test_recurrences_keep_a_dynamic_length() -> None:
    """Torch runs their steps to know the shapes of the results, and again if the module writes into one of them."""

    def work(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.second(m.first(x)[0].transpose(0, 1))[0]
        y[:, 0] = 1.0
        return m.linear(y)

    model = Odd(work, first=nn.LSTM(6, 8, bidirectional=True, batch_first=True), second=nn.GRU(16, 4))
    made = sardonyx.export(model, torch.randn(3, 7, 6), dynamic={"x": {0: "batch", 1: "length"}})
    assert made.verdict is not None
    assert {"LSTM", "GRU"} <= {node.op_type for node in made.to_proto().graph.node}
    assert len({trial.dims["length"] for trial in made.verdict.trials}) > 1
    assert made.notes == ()


class Converting(nn.Module):
    """Converts a layer to the type of its input, which it has already."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer = self.layer.to(x.dtype)
        return self.layer.to("cpu")(x)


def test_a_forward_may_convert_a_layer_that_has_the_type_already() -> None:
    made = sardonyx.export(Converting(), torch.randn(2, 4))
    assert made.verdict is not None
    assert made.verdict.passed
    assert made.counts.nodes == 1
