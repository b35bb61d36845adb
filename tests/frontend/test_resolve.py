"""A source gives the right module with non-trivial weights; every wrong source is an error with a hint."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sardonyx.errors import UsageError
from sardonyx.frontend.models import randomize, resolve, seeded

TINY = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24,vocab_size=50"


def test_a_config_class_takes_values_and_gives_the_bare_model() -> None:
    module = resolve(f"hf-config:BertConfig?{TINY}").module
    config: Any = module.config
    assert type(module).__name__ == "BertModel"
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (16, 1, 50)
    assert not module.training


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("AutoModelForMaskedLM", "BertForMaskedLM"),
        ("BertForTokenClassification", "BertForTokenClassification"),
    ],
)
def test_the_task_selects_the_head(task: str, kind: str) -> None:
    assert type(resolve(f"hf-config:BertConfig?{TINY}", task=task).module).__name__ == kind


def test_a_model_class_needs_no_task() -> None:
    assert type(resolve(f"hf-config:BertForMaskedLM?{TINY}").module).__name__ == "BertForMaskedLM"
    with pytest.raises(UsageError, match="already has a head"):
        resolve(f"hf-config:BertForMaskedLM?{TINY}", task="fill-mask")


def test_a_saved_model_is_loaded_from_its_folder_or_built_from_its_config(tmp_path: Path) -> None:
    saved: Any = resolve(f"hf-config:BertForMaskedLM?{TINY}").module
    saved.save_pretrained(tmp_path)
    loaded = resolve(f"hf:{tmp_path}").module
    assert type(loaded) is type(saved)
    assert all(torch.equal(loaded.state_dict()[key], value) for key, value in saved.state_dict().items())
    for place in (tmp_path, tmp_path / "config.json"):
        rebuilt: Any = resolve(f"hf-config:{place}?num_hidden_layers=2").module
        assert type(rebuilt) is type(saved)
        assert rebuilt.config.num_hidden_layers == 2
        assert rebuilt.config.hidden_size == 16


def test_nested_values_and_lists_reach_the_config() -> None:
    small = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=24"
    text = ",".join(f"text_config.{part}" for part in small.split(","))
    vision = ",".join(f"vision_config.{part}" for part in (*small.split(","), "image_size=32"))
    config: Any = resolve(f"hf-config:CLIPConfig?{text},{vision},projection_dim=8").module.config
    assert config.text_config.hidden_size == config.vision_config.hidden_size == 16
    swin: Any = resolve("hf-config:SwinConfig?depths=[1,2],embed_dim=8,num_heads=[2,4],qkv_bias=false").module.config
    assert (list(swin.depths), swin.embed_dim, list(swin.num_heads), swin.qkv_bias) == ([1, 2], 8, [2, 4], False)


def test_weights_depend_on_the_seed_and_the_generator_is_unchanged() -> None:
    source = f"hf-config:BertConfig?{TINY}"
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (resolve(source, seed=seed).module.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_no_weight_or_statistic_stays_constant() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2))
    nn.init.zeros_(module.get_parameter("4.weight"))
    randomize(module)
    floats = [tensor for tensor in module.state_dict().values() if tensor.is_floating_point()]
    assert len(floats) == 10
    assert all(tensor.std() > 1e-3 for tensor in floats)
    assert (module.get_buffer("1.running_var") > 0).all()


def test_the_generator_is_restored_after_a_failure() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded(3):
        torch.matmul(torch.rand(1), torch.rand(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("source", "task", "message", "hint"),
    [
        ("bert", None, "not a model source", "hf-config:"),
        ("hf:", None, "not a model source", "hf-config:"),
        ("gopher:bert", None, "unknown kind 'gopher'", "torchvision:NAME"),
        ("missing.py:make", None, "missing.py does not exist", "file.py:factory"),
        ("hf-config:BertConfg", None, "no config or model 'BertConfg'", "BertConfig"),
        ("hf-config:missing/config.json", None, "does not exist", "config.json"),
        ("hf-config:BertConfig?num_hidden_layer=1", None, "has no 'num_hidden_layer'", "num_hidden_layers"),
        ("hf-config:BertConfig?hidden_size", None, "not a config value", "key=value"),
        ("hf-config:BertConfig?hidden_size=15,num_attention_heads=2", None, "cannot be built", "key=value"),
        ("hf-config:BertConfig?hidden_size=wide", None, "does not accept these values", "hf-config"),
        (f"hf-config:BertConfig?{TINY}", "text-clasification", "no task", "text-classification"),
        (f"hf-config:BertConfig?{TINY}", "AutoModelForCTC", "has no model for AutoModelForCTC", "`task`"),
        ("torchvision:resnet50", "fill-mask", "a task selects", "leave out `task`"),
        ("hf:not an id", None, "neither a folder nor", "hf:owner/name"),
    ],
)
def test_a_wrong_source_is_one_line_and_a_hint(source: str, task: str | None, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(source, task=task)
    assert message in caught.value.message
    assert "\n" not in caught.value.message
    assert hint in (caught.value.hint or "")


def test_an_unreachable_hub_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> None:
        raise socket.gaierror

    for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(UsageError, match="is not reachable") as caught:
        resolve("hf:nobody/no-such-model-anywhere")
    assert "local folder" in (caught.value.hint or "")


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_the_error_for_a_missing_catalogue_explains_how_to_install_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match="is not installed") as caught:
        resolve(f"{package}:resnet50")
    assert caught.value.hint == f"pip install {package}"


@pytest.mark.parametrize("package", ["torchvision", "timm"])
def test_a_catalogue_builds_by_name_without_weights(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def make(name: str, **options: Any) -> nn.Module:
        asked.append(options)
        return nn.BatchNorm2d(3).train()

    def builder(name: str) -> Any:
        def build(*, weights: Any = "some", weights_backbone: Any = "some", progress: bool = True) -> None: ...

        return build

    def names() -> list[str]:
        return ["resnet50", "resnet18", "swin_t"]

    catalogue = SimpleNamespace(list_models=names, get_model=make, create_model=make, get_model_builder=builder)
    catalogue.models = catalogue
    monkeypatch.setitem(sys.modules, package, catalogue)
    module = resolve(f"{package}:resnet50").module
    assert isinstance(module, nn.BatchNorm2d)
    assert not module.training
    assert module.running_mean is not None
    assert module.running_mean.any()
    nothing = {"weights": None, "weights_backbone": None} if package == "torchvision" else {"pretrained": False}
    assert asked == [nothing]
    with pytest.raises(UsageError, match="no model 'resnet5'") as caught:
        resolve(f"{package}:resnet5")
    assert "resnet50" in (caught.value.hint or "")


FACTORY = """
from dataclasses import dataclass
import torch
from neighbour import WIDTH

@dataclass
class Box:
    x: int

def module(): return torch.nn.Linear(WIDTH, 2)
def with_tensor(): return module(), torch.ones(3, 4)
def with_tuple(): return module(), (torch.ones(3, 4),)
def with_dict(): return module(), {"input": torch.ones(3, 4)}
def with_junk(): return module(), 7
def seeded(seed, width=4): return torch.nn.Linear(width, seed)
def triple(): return 1, 2, 3
def text(): return "no module"
def breaks():
    number = 0
    return 1 / number
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 4\n")
    path = tmp_path / "json.py"  # a name that must not shadow the standard library
    path.write_text(FACTORY)
    return path


def test_a_factory_gives_a_module_with_or_without_inputs(script: Path) -> None:
    import json

    bare = resolve(f"{script}:module")
    assert (bare.args, bare.kwargs, bare.module.training) == (None, None, False)
    for name in ("with_tensor", "with_tuple"):
        made = resolve(f"{script}:{name}")
        assert made.args is not None
        assert made.args[0].shape == (3, 4)
        assert made.kwargs == {}
    named = resolve(f"{script}:with_dict")
    assert named.args == ()
    assert named.kwargs is not None
    assert list(named.kwargs) == ["input"]
    assert sys.modules["json"] is json
    assert str(script.parent) not in sys.path


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("modul", "has no function 'modul'", "did you mean module? it defines "),
        ("zzz", "has no function 'zzz'", "it defines "),
        ("breaks", "json.py:20: breaks() failed: ZeroDivisionError: division by zero", "see the traceback"),
        ("text", "returned str, not a module", "torch.nn.Module"),
        ("triple", "returned 3 values", "torch.nn.Module"),
        ("with_junk", "returned int as example inputs", "a tensor"),
    ],
)
def test_the_error_for_a_wrong_factory_has_the_place(script: Path, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(f"{script}:{name}")
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("nets.py", "'nets.py' names no factory", "write nets.py:FACTORY; it defines Net, build"),
        ("nets:build", "unknown kind 'nets'", "did you mean nets.py:build?"),
        ("nest.py:build", "nest.py does not exist", "did you mean nets.py:build?"),
        ("torchvison:resnet18", "unknown kind 'torchvison'", "did you mean torchvision:resnet18?"),
        ("empty.py", "names no factory", "it defines no function"),
        ("broken.py", "names no factory", "it is not valid Python"),
    ],
)
def test_a_wrong_source_is_answered_with_what_there_is(
    source: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("import torch\nclass Net(torch.nn.Module): ...\ndef _helper(): ...\ndef build(): ...\n")
    Path("empty.py").write_text("")
    Path("broken.py").write_text("def f(:\n")
    with pytest.raises(UsageError) as caught:
        resolve(source)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "message"),
    [("import torch\nimport no_such_package\n", ":2: it cannot be imported: ModuleNotFoundError"),
     ("x = 1\ndef f(:\n", ":2: it cannot be imported: SyntaxError")],
)  # fmt: skip
def test_the_error_for_a_file_that_cannot_be_imported_has_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    before = set(sys.modules)
    with pytest.raises(UsageError) as caught:
        resolve(f"{path}:f")
    assert message in caught.value.message
    assert not [name for name in set(sys.modules) - before if name.startswith("_sardonyx")]


def test_the_seed_reaches_a_factory(script: Path) -> None:
    before = torch.get_rng_state()
    weights = [resolve(f"{script}:module", seed=seed).module.state_dict()["weight"] for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), before)
    assert resolve(f"{script}:seeded", seed=3).module.state_dict()["weight"].shape == (3, 4)
