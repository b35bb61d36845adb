"""`sardonyx.export`: verification against PyTorch, the record, the content of the file, and the arguments."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import models
import sardonyx
from narrowing import array
from reporting.written import in_terminal
from sardonyx.errors import ModelError, OutputError, UsageError, VerificationFailed
from sardonyx.frontend.inputs.examples import Inputs
from sardonyx.frontend.models import state_sha256
from sardonyx.frontend.tracing.adapter import ModuleCall
from sardonyx.frontend.tracing.engine import TorchEngine
from sardonyx.frontend.tracing.traced import Exporter
from sardonyx.ir import io
from sardonyx.records import provenance as p
from sardonyx.records.export import Export
from sardonyx.records.input_specs import Spec
from sardonyx.reporting.export import export_document
from sardonyx.runtime import Session
from sardonyx.verification import Oracle

EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")
both = pytest.mark.parametrize("exporter", EXPORTERS)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.inner(x)) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(x if scale is None else x * scale), "pooled": x.mean(1)}


IDS = torch.tensor([[1, 5, 3], [19, 0, 7]])


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    net = Net()
    for parameter in net.parameters():  # the tracer merges two equal weights
        nn.init.normal_(parameter, 0.0, 0.3)
    return net


class Branching(nn.Module):
    """Branches on its data, which a tracer does not see."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.min() > 0 else x - 3


class Baked(nn.Module):
    """Computes with a size outside of torch, which a tracer treats as a constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / math.sqrt(x.shape[1])


def test_a_branch_lost_in_tracing_fails_verification_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed, match="does not compute what the module does") as failure:
        sardonyx.export(Branching(), torch.ones(2, 3), tmp_path / "x.onnx", exporter="torchscript")
    assert failure.value.exit_code == 3
    assert not list(tmp_path.iterdir())


def test_a_size_fixed_in_tracing_fails_at_another_size(tmp_path: Path) -> None:
    given = {"inputs": torch.randn(2, 5), "output": tmp_path / "x.onnx", "exporter": "torchscript"}
    sardonyx.export(Baked(), **given)
    with pytest.raises(VerificationFailed):
        sardonyx.export(Baked(), **given, force=True, dynamic={"x": {1: "length"}})


def test_control_flow_on_data_is_refused_in_one_line() -> None:
    with pytest.raises(ModelError, match="torch cannot export the model") as refusal:
        sardonyx.export(Branching(), torch.ones(2, 3))
    assert "\n" not in refusal.value.message
    assert re.search(rf"control flow depends on values: {Path(__file__).name}:\d+: .*min", refusal.value.message)
    assert "torch.where" in (refusal.value.hint or "")
    assert "exporter" not in (refusal.value.hint or "")  # the tracer keeps one branch


class Choosing(nn.Module):
    """A branch that torch keeps: both sides are in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.relu(self.up(x)), lambda x: torch.tanh(self.down(x)), (x,))


def test_a_branch_kept_by_torch_belongs_to_the_module_with_the_condition() -> None:
    made = sardonyx.export(nn.Sequential(Choosing(), nn.Linear(3, 2)), torch.randn(2, 3))
    assert made.model is not None
    choice = next(node for node in made.model.graph if node.op_type == "If")
    inner = [node for name in ("then_branch", "else_branch") for node in choice.attributes[name].as_graph()]
    assert {node.op_type for node in inner} >= {"Relu", "Tanh"}
    assert {node.metadata_props[p.MODULE_PATH] for node in inner} == {"0"}
    assert made.coverage.root == 0


@both
def test_the_file_computes_what_the_module_does(net: Net, exporter: Exporter, tmp_path: Path) -> None:
    made = sardonyx.export(net, IDS, tmp_path / "net.onnx", exporter=exporter, dynamic={"ids": {0: "batch", 1: "time"}})
    assert made.verdict is not None
    assert made.verdict.passed
    assert {tuple(trial.dims.values()) for trial in made.verdict.trials if trial.dims} >= {(2, 7), (1, 16)}
    ids = np.random.default_rng(0).integers(0, 20, (4, 9))
    logits, pooled = Session(tmp_path / "net.onnx").run({"ids": ids})
    with torch.no_grad():
        truth = net.eval()(torch.as_tensor(ids))
    np.testing.assert_allclose(array(logits), truth["logits"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(array(pooled), truth["pooled"], rtol=1e-4, atol=1e-5)
    assert made.outputs == ("logits", "pooled")


@both
def test_every_node_and_weight_has_a_module(net: Net, exporter: Exporter, tmp_path: Path) -> None:
    made = sardonyx.export(net, IDS, tmp_path / "net.onnx", exporter=exporter)
    proto = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(proto, full_check=True)
    tags = {_props(node)[p.MODULE_PATH] for node in proto.graph.node}
    assert tags >= {"table", "blocks.0", "blocks.0.inner", "blocks.1.norm", "head", ""}
    assert all(p.SOURCE_MODULE in _props(node) for node in proto.graph.node)
    total = len(proto.graph.node)
    assert (made.coverage.direct + made.coverage.inherited, made.coverage.root) == (total, 0)
    values = io.load(tmp_path / "net.onnx").graph.initializers.values()
    assert all(p.MODULE_PATH in value.metadata_props for value in values)
    shared = [value.metadata_props[p.MODULE_PATHS] for value in values if p.MODULE_PATHS in value.metadata_props]
    assert shared == ['["head", "table"]']
    assert [sorted(weight.modules) for weight in made.tied] == [["head", "table"]]
    assert (made.operators is not None) == (exporter == "dynamo")
    if made.operators is not None:
        assert 0 < made.operators.distinct < made.operators.all_values == made.operators.operators


def test_the_record_hashes_the_weights_and_the_files(net: Net, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    made = sardonyx.export(net, IDS, path, exporter="torchscript", optimize=True)
    assert made.module.sha256 == state_sha256(net)
    assert made.result.sha256 == io.sha256_of(path)
    assert made.optimized is not None
    assert made.optimized.verdict is not None
    assert made.optimized.verdict.passed
    assert made.optimized.source.sha256 not in (None, made.result.sha256)
    assert made.optimized.after.nodes < made.optimized.before.nodes
    again = Export.from_json(made.to_json())
    assert again.to_json() == made.to_json()
    with torch.no_grad():
        net.head.weight[0, 0] += 1
    assert state_sha256(net) != made.module.sha256


def test_the_graph_differs_from_that_of_torch_by_its_optimizer_only(net: Net) -> None:
    made = sardonyx.export(net, IDS, verify="off", optimize=True)
    plain: dict[bool, int] = {}
    for optimize in (False, True):
        program = torch.onnx.export(net, (IDS,), dynamo=True, optimize=optimize, verbose=False)
        assert program is not None
        plain[optimize] = sum(node.op_type != "Constant" for node in program.model.graph)
    assert made.plain_torch is not None
    assert (made.counts.nodes, made.plain_torch.nodes) == (plain[False], plain[True])
    assert plain[True] < plain[False]
    assert sardonyx.export(net, IDS, verify="off").plain_torch is None, "counted only to compare a result with it"


def test_the_exported_file_is_loaded_once_for_verification_and_optimization(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    load = io.load

    def counted(path: str | os.PathLike[str]) -> ir.Model:
        loaded.append(os.path.basename(path))
        return load(path)

    monkeypatch.setattr(io, "load", counted)
    monkeypatch.setattr("sardonyx.ir.io.files.load", counted)
    made = sardonyx.export(net, IDS, tmp_path / "net.onnx", dynamic="auto", optimize=True)
    assert made.verdict is not None
    assert made.optimized is not None
    assert made.optimized.verdict is not None
    assert loaded == ["exported.onnx"]


@both
def test_the_file_has_no_paths_of_this_machine_by_default(net: Net, exporter: Exporter, tmp_path: Path) -> None:
    home = os.fsencode(Path(torch.__file__).parents[1])
    sardonyx.export(net, IDS, tmp_path / "a.onnx", exporter=exporter)
    data = (tmp_path / "a.onnx").read_bytes()
    assert home not in data
    assert os.fsencode(Path(__file__).parent) not in data
    assert b"stack_trace" not in data


def test_threads_hold_for_pytorch_too_and_are_restored(net: Net) -> None:
    before, seen = torch.get_num_threads(), set[int]()
    hook = net.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    sardonyx.export(net, IDS, threads=before + 1)
    hook.remove()
    assert (seen, torch.get_num_threads()) == ({before + 1}, before)


def test_stack_traces_can_be_kept(net: Net, tmp_path: Path) -> None:
    sardonyx.export(net, IDS, tmp_path / "a.onnx", options=sardonyx.ExportOptions(keep_stack_traces=True))
    kept = [_props(node) for node in onnx.load(tmp_path / "a.onnx").graph.node]
    assert any("test_exporting.py" in props.get("pkg.torch.onnx.stack_trace", "") for props in kept)


def test_tags_are_short(small_model: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Compares the metadata of torch for a small BERT with ours."""
    module, inputs = models.build("bert")
    sardonyx.export(module, inputs, tmp_path / "ours.onnx", verify="off")
    theirs, ours = map(_metadata_bytes, (small_model("bert", "dynamo"), tmp_path / "ours.onnx"))
    assert ours <= 0.25 * theirs


@both
def test_tags_as_attributes_load_everywhere(net: Net, exporter: Exporter, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    sardonyx.export(net, IDS, path, exporter=exporter, options=sardonyx.ExportOptions(tag_attributes=True))
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    Session(path, optimize=True).run({"ids": IDS.numpy()})
    named = {a.name for node in proto.graph.node for a in node.attribute}
    assert {"__source_module", "__module_path"} <= named


def test_tags_may_include_torch_nn_modules(net: Net) -> None:
    made = sardonyx.export(
        net, IDS, exporter="torchscript", options=sardonyx.ExportOptions(include_torch_nn=True), verify="off"
    )
    assert made.model is not None
    tags = {node.metadata_props[p.SOURCE_MODULE] for node in made.model.graph}
    assert {"/Net/Block.0/Linear", "/Net/Block.1/LayerNorm", "/Net/Embedding"} <= tags


@pytest.mark.parametrize(
    "inputs", [IDS, (IDS,), {"ids": IDS}, {"ids": IDS.numpy()}, {"ids": Spec("ids", "int64", (2, 3))}]
)
def test_example_inputs_are_accepted_in_every_form(net: Net, inputs: Inputs) -> None:
    made = sardonyx.export(net, inputs, exporter="torchscript", verify="off")
    assert [str(each) for each in made.inputs] == ["ids=int64[2,3]"]


def test_keyword_and_positional_inputs_together(net: Net) -> None:
    made = sardonyx.export(net, IDS, kwargs={"scale": torch.tensor(2.0)}, exporter="torchscript")
    assert [each.name for each in made.inputs] == ["ids", "scale"]


def test_the_module_is_unchanged(net: Net) -> None:
    net.train()
    net.blocks[0].eval()
    flags = [module.training for module in net.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    for exporter in EXPORTERS:
        sardonyx.export(net, IDS, exporter=exporter, verify="off")
    assert [module.training for module in net.modules()] == flags
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()] == hooks
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types(exporter: Exporter, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    made = sardonyx.export(Block(4).to(dtype), torch.randn(2, 4, dtype=dtype), exporter=exporter)
    assert made.inputs[0].dtype == str(dtype).removeprefix("torch.")


@both
def test_a_dynamic_dim_that_the_model_fixes_is_refused_with_its_size(exporter: Exporter) -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 6) + torch.ones(2, 6)

    fixed, untried = "x:0 ('batch') cannot be dynamic: the model fixes it at 2", "accepted no other size"
    with pytest.raises(ModelError) as refusal:
        sardonyx.export(Fixed(), torch.randn(2, 6), exporter=exporter, dynamic={"x": {0: "batch"}})
    assert (fixed if exporter == "dynamo" else untried) in refusal.value.message


@pytest.fixture(scope="module")
def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(50_000, 8))


def test_long_sums_may_be_added_in_another_order(wide: nn.Module) -> None:
    """Torch and the runtime differ by more than the rounding of the result: they add in different orders."""
    made = sardonyx.export(wide, torch.randn(2, 50_000), exporter="torchscript")
    assert made.verdict is not None
    assert made.verdict.passed


def test_a_slightly_wrong_weight_is_not_taken_for_rounding(wide: nn.Module) -> None:
    x = torch.randn(2, 50_000)
    model = sardonyx.export(wide, x, exporter="torchscript", verify="off").model
    assert model is not None
    weight = next(value for value in model.graph.initializers.values() if value.name == "0.weight")
    assert weight.const_value is not None
    weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1 + 1e-4))
    engine = TorchEngine(ModuleCall(wide.eval(), (x,), {}))
    assert not Oracle(model, inputs={"input": x.numpy()}, trials=1, engine=engine).check(model).passed


class Pair(NamedTuple):
    linear: torch.Tensor
    weight: torch.Tensor


class Named(nn.Module):
    """Inputs and outputs with names that exporters use themselves, and an output that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0))

    def forward(self, add: torch.Tensor, mul: torch.Tensor) -> tuple[Pair, torch.Tensor, torch.Tensor]:
        out = add * mul * self.weight + 1
        return Pair(out, out), add, self.weight


@both
def test_interface_names_are_those_of_the_call(exporter: Exporter, tmp_path: Path) -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    made = sardonyx.export(Named(), (x, y), tmp_path / "x.onnx", exporter=exporter)
    assert [each.name for each in made.inputs] == ["add", "mul"]
    assert made.outputs == ("output_0.linear", "output_0.weight", "output_1", "output_2")
    graph = onnx.load(tmp_path / "x.onnx").graph
    assert [value.name for value in graph.input] == ["add", "mul"]
    assert [value.name for value in graph.output] == list(made.outputs)
    onnx.checker.check_model(str(tmp_path / "x.onnx"), full_check=True)
    single = sardonyx.export(Single(), x, tmp_path / "y.onnx", exporter=exporter)
    assert single.outputs == ("linear", "weight")


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3) / 3)

    def forward(self, linear_in: torch.Tensor) -> Pair:
        first = nn.functional.linear(linear_in, self.weight)
        return Pair(nn.functional.linear(first, self.weight), first)


@pytest.mark.parametrize(("exporter", "opset"), [("dynamo", 18), ("dynamo", 23), ("torchscript", 14)])
def test_the_requested_opset_is_used(net: Net, exporter: Exporter, opset: int) -> None:
    made = sardonyx.export(net, IDS, exporter=exporter, opset=opset)
    assert made.result.opsets[""] == opset
    assert made.coverage.root == 0
    assert made.coverage.own < made.coverage.direct / 2  # torch converts the graph, which must keep all tags


def test_an_opset_that_torch_does_not_support_is_refused(net: Net) -> None:
    with pytest.raises(ModelError, match="opset 18 and later, not 17"):
        sardonyx.export(net, IDS, opset=17)


def test_unknown_names_and_existing_files_are_refused_before_any_work(net: Net, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no input 'idz'"):
        sardonyx.export(net, IDS, dynamic={"idz": {0: "batch"}})
    with pytest.raises(UsageError, match="no axis 5"):
        sardonyx.export(net, IDS, dynamic={"ids": {5: "batch"}})
    (tmp_path / "net.onnx").write_text("mine")
    with pytest.raises(OutputError):
        sardonyx.export(net, IDS, tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").read_text() == "mine"


def _props(thing: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in thing.metadata_props}


def _metadata_bytes(path: Path) -> int:
    nodes = onnx.load(path).graph.node
    return sum(len(entry.key) + len(entry.value) for node in nodes for entry in node.metadata_props)


@pytest.mark.parametrize("optimize", [False, True])
def test_data_that_another_model_uses_is_kept_and_named(optimize: bool, tmp_path: Path) -> None:
    net, x, path = torch.nn.Linear(64, 64), torch.ones(2, 64), tmp_path / "net.onnx"
    settings: Any = {"exporter": "torchscript", "verify": "off"}
    sardonyx.export(net, x, path, options=sardonyx.ExportOptions(external=True), **settings)
    (tmp_path / "other.onnx").write_bytes(path.read_bytes())
    made = sardonyx.export(net, x, path, optimize=optimize, force=True, **settings)
    note = "kept net.onnx.data, a data file of the replaced model: other.onnx uses it"
    assert note in made.notes
    assert note in in_terminal(export_document, made)
    onnx.load(tmp_path / "other.onnx")


@pytest.mark.parametrize("verb", ["optimize", "export", "extract"])
def test_a_way_to_verify_that_does_not_exist_is_refused(verb: str) -> None:
    """False was `off` once; it must not pass for "end" in silence."""
    with pytest.raises(sardonyx.UsageError, match="verify is False"):
        getattr(sardonyx, verb)("model.onnx", verify=False, **({"module": "a"} if verb == "extract" else {}))
