"""Random options of `nn.MultiheadAttention` and SDPA: the decomposed model computes what torch computes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.attention import comparing, random_modules
from sardonyx.frontend.attention.capture.tracer import trace


@pytest.fixture(autouse=True)
def _plain_kernels() -> Any:
    """Torch's own road through the same steps; the fast one has a test of its own."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def _check(model: torch.nn.Module, inputs: Mapping[str, Any], dtype: torch.dtype, *, grad: bool) -> None:
    traced = trace(model)
    expected = comparing.run(model, inputs, grad=grad)
    truth = None
    if dtype == torch.bfloat16:
        truth = comparing.run(copy.deepcopy(model).double(), comparing.doubled(inputs), grad=grad)
    comparing.agree(comparing.run(traced, inputs, grad=grad), expected, truth)


@settings(max_examples=300)
@given(random_modules.multiheads(), st.booleans())
def test_multihead_attention_does_the_same_spelled_out(case: random_modules.Multihead, grad: bool) -> None:
    _check(random_modules.Attend(case), random_modules.inputs_of(case), case.dtype, grad=grad)


@settings(max_examples=250)
@given(random_modules.sdpas(), st.booleans())
def test_sdpa_does_the_same_spelled_out(case: random_modules.Sdpa, grad: bool) -> None:
    with random_modules.kernel(case):
        _check(random_modules.Sdpas(case), random_modules.sdpa_inputs(case), case.dtype, grad=grad)


@settings(max_examples=60)
@given(random_modules.multiheads(dtype=torch.float32))
def test_the_fast_path_does_the_same_too(case: random_modules.Multihead) -> None:
    """What torch's fast kernels do with rows that are masked whole is not what its slow ones do: these are left out."""
    case = replace(case, keys=None, key_width=None, value_width=None, training=False, empty_row=False)
    model, inputs = random_modules.Attend(case), random_modules.inputs_of(case)
    torch.backends.mha.set_fastpath_enabled(True)
    expected = comparing.run(model, inputs, grad=False)
    comparing.agree(comparing.run(trace(model), inputs, grad=False), expected)
