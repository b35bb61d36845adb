"""Predicted peaks against every allocation and release that torch's profiler saw: activations alone, within 1 %.

Weights and inputs are left out, so that they hide no error. An eager model is compared using the recorded lifetimes of
its Python values, a graph of single operators using last uses alone.
"""

from __future__ import annotations

import copy
import platform

import pytest
import torch
from torch import nn

import architectures
import zoo
from allocations import on_cpu
from analysis.attention_choice import set_attention
from memory import operators
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.verbs.analyze.costs.peak_memory import liveness
from sardonyx.verbs.analyze.recorder import record

# What kernels take while they run was measured on x86. On ARM, oneDNN copies the weights of a Linear and most operands
# of a convolution, by rules that `recording/recorder.py` does not know.
pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="workspaces of kernels are known for x86 alone"
)
MODELS = ["bert", "gpt2", "llama", "qwen3", "t5", "bart", "whisper", "vit", "clip", "wav2vec2", "swin"]
MODELS += [pytest.param(name, marks=pytest.mark.campaign) for name in ("roberta", "distilbert", "deit")]  # alike


@pytest.fixture(autouse=True)
def _without_shortcuts():
    """Turn off torch's fused attention modules, as the recording does."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def truth(module: nn.Module, args: tuple, kwargs: dict) -> int:
    """The peak of a second run: the first one may allocate permanent memory."""
    with torch.no_grad():
        module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    args, kwargs = copy.deepcopy((args, kwargs))
    return on_cpu(lambda: module(*args, **kwargs)).peak


def compare_with_truth(module: nn.Module, args: tuple, kwargs: dict, *, as_run: bool) -> None:
    predicted = liveness(record(module, args, kwargs), as_run=as_run).at().bytes
    assert predicted == pytest.approx(truth(module, args, kwargs), rel=0.01)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_an_eager_model(name: str, attention: str) -> None:
    case = architectures.build(name)
    set_attention(case.module, attention)
    compare_with_truth(case.module, case.args, dict(case.kwargs), as_run=True)


@pytest.mark.parametrize("name", ["mobilenet-v3", "cnn-mlp", "cnn-attention", "transformer-encoder", "gpt2-past"])
def test_an_eager_model_of_another_kind(name: str) -> None:
    case = architectures.build(name)
    compare_with_truth(case.module, case.args, dict(case.kwargs), as_run=True)


@pytest.mark.parametrize("name", [*MODELS, "cnn-attention"])
def test_a_decomposed_graph_as_it_runs_and_as_single_operators(name: str) -> None:
    case = architectures.build(name)
    if hasattr(case.module, "set_attn_implementation"):
        set_attention(case.module, "sdpa")
    kwargs = dict(case.kwargs)
    graph = decompose(case.module, case.args, kwargs=kwargs)
    compare_with_truth(graph, case.args, kwargs, as_run=True)
    single = operators(graph, case.args, kwargs)
    compare_with_truth(single, case.args, kwargs, as_run=False)
    compare_with_truth(single, case.args, kwargs, as_run=True)


def test_a_model_of_real_size() -> None:
    torch.manual_seed(0)
    model = zoo.torchvision().models.vit_b_16(weights=None).eval()
    compare_with_truth(model, (torch.randn(1, 3, 224, 224),), {}, as_run=True)


CONVOLUTIONS = [  # input, weight, stride, padding, groups
    ((2, 3, 16, 16), (32, 3, 3, 3), 1, 1, 1),
    ((2, 20, 16, 16), (32, 20, 3, 3), 1, 1, 1),
    ((2, 64, 16, 16), (20, 64, 1, 1), 1, 0, 1),
    ((2, 24, 9, 9), (24, 1, 3, 3), 1, 1, 24),
    ((2, 48, 9, 9), (48, 12, 3, 3), 2, 1, 4),
    ((1, 16, 16, 16), (32, 16, 3, 3), 1, 1, 1),
    ((1, 16, 16, 16), (32, 16, 1, 1), 1, 0, 1),
    ((1, 3, 64, 64), (48, 3, 16, 16), 16, 0, 1),
    ((2, 80, 60), (48, 80, 3), 1, 1, 1),
    ((1, 1, 16000), (64, 1, 10), 5, 0, 1),
    ((2, 8, 5, 16, 16), (16, 8, 3, 3, 3), 1, 1, 1),
]


@pytest.fixture
def _two_threads():
    """Run on two threads: on one, torch multiplies in place of a pointwise convolution, which needs no workspace."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_the_workspace_of_a_convolution(case: tuple) -> None:
    shape, weight, stride, padding, groups = case
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(shape) - 3]
    layer = kind(shape[1], weight[0], weight[2:], stride=stride, padding=padding, groups=groups)
    compare_with_truth(layer, (torch.randn(shape),), {}, as_run=True)


@pytest.mark.parametrize("lengths", [(11, 11), (100, 700), (200, 40), (800, 900)], ids=str)
def test_the_workspace_of_fused_attention(lengths: tuple[int, int]) -> None:
    class Attending(nn.Module):
        def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(query, key, key)

    query, key = (torch.randn(2, 3, length, 24) for length in lengths)
    compare_with_truth(Attending(), (query, key), {}, as_run=True)
