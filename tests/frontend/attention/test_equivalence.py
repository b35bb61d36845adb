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
from sardonyx.frontend.attention.decompose import trace


@pytest.fixture(autouse=True)
def _plain_kernels() -> Any:
    """Torch's kernels that take the same steps; the fast path has its own test."""
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
def test_decomposed_multihead_attention_computes_the_same(case: random_modules.Multihead, grad: bool) -> None:
    _check(random_modules.Attend(case), random_modules.inputs_of(case), case.dtype, grad=grad)


@settings(max_examples=250)
@given(random_modules.sdpas(), st.booleans())
def test_decomposed_sdpa_computes_the_same(case: random_modules.Sdpa, grad: bool) -> None:
    with random_modules.kernel(case):
        _check(random_modules.Sdpas(case), random_modules.sdpa_inputs(case), case.dtype, grad=grad)


@settings(max_examples=60)
@given(random_modules.multiheads(dtype=torch.float32))
def test_the_fast_path_computes_the_same_too(case: random_modules.Multihead) -> None:
    """Fully masked rows are left out: torch's fast kernels treat them differently from its slow ones."""
    case = replace(case, keys=None, key_width=None, value_width=None, training=False, empty_row=False)
    model, inputs = random_modules.Attend(case), random_modules.inputs_of(case)
    torch.backends.mha.set_fastpath_enabled(True)
    expected = comparing.run(model, inputs, grad=False)
    comparing.agree(comparing.run(trace(model), inputs, grad=False), expected)
