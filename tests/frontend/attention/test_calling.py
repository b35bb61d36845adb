"""An exported graph has the arguments and results of the model, with any nesting."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import architectures
import attention
from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.attention.calling import tensors_in
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.roles import decomposition_of
from sardonyx.frontend.attention.torch_export import decompose_exported
from sardonyx.frontend.tracing.structure import Fixed, Flat, Shape, rebuilt


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Answer:
    mixed: Any
    more: Any = None


_LEAVES = st.integers(0, 9).map(lambda number: torch.full((2,), float(number))) | st.none() | st.integers() | st.text()
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner),
        st.dictionaries(st.sampled_from("abc"), inner).map(OrderedDict),
        st.tuples(inner, inner).map(lambda both: Pair(*both)),
        st.tuples(inner, inner).map(lambda both: Answer(*both)),
    ),
    max_leaves=6,
)


def shape_of(value: Any) -> Shape:
    return Flat(value).shape


@given(_VALUES)
def test_a_value_is_rebuilt_with_other_tensors(value: Any) -> None:
    shape = pickle.loads(pickle.dumps(shape_of(value)))
    tensors = tensors_in(shape, value, "x")
    assert Flat(value, "x").tensors == tensors
    again = rebuilt(shape, iter([tensor + 1 for tensor in tensors]))
    assert type(again) is type(value)
    assert shape_of(again) == shape
    assert all(torch.equal(one, other + 1) for one, other in zip(tensors_in(shape, again, "x"), tensors, strict=True))


@given(_VALUES, _VALUES)
def test_a_value_of_another_shape_is_refused(one: Any, other: Any) -> None:
    if shape_of(one) == shape_of(other):
        tensors_in(shape_of(one), other, "x")
    else:
        with pytest.raises(UsageError):
            tensors_in(shape_of(one), other, "x")


def test_values_that_are_no_tensors_are_listed() -> None:
    marker = object()
    assert Flat({"a": [marker], "b": None}, "x").others == [("x.a.0", marker)]
    assert Flat((1, None, torch.ones(1))).others == [("0", 1)]
    assert shape_of(object) == Fixed(object)


class Nested(nn.Module):
    """Arguments and results are tensors in containers; the shape of one tensor decides."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, both: Pair, *rest: torch.Tensor, options: Mapping[str, Any], **named: torch.Tensor) -> Any:
        x = both.left + sum(rest) if both.right.shape[1] > 2 else both.left
        mixed, weights = self.attend(x, both.right, both.right, attn_mask=named["bias"] * options["scale"])
        return Answer(mixed, {"weights": (weights, options["name"]), "none": None})


def test_containers_and_variable_arguments() -> None:
    torch.manual_seed(0)
    model = Nested().eval()
    both = Pair(torch.randn(2, 3, 8), torch.randn(2, 5, 8))
    rest = (torch.randn(2, 3, 8), torch.randn(8))
    named: dict[str, Any] = {"options": {"scale": torch.tensor(0.5), "name": "half"}, "bias": torch.randn(3, 5)}
    result = decompose(model, (both, *rest), kwargs=named)
    for module in (result, copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        got, wanted = module(both, *rest, **named), model(both, *rest, **named)
        assert type(got) is Answer
        torch.testing.assert_close(got.mixed, wanted.mixed, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(got.more["weights"][0], wanted.more["weights"][0], rtol=1e-5, atol=1e-6)
        assert (got.more["weights"][1], got.more["none"]) == ("half", None)
    decomposition = decomposition_of(result)
    assert decomposition is not None
    assert [each.written_as for each in decomposition.attentions] == ["nn.MultiheadAttention"]
    with pytest.raises(UsageError, match=r"options\.name is fixed at 'half'"):
        result(both, *rest, **{**named, "options": {**named["options"], "name": "whole"}})
    with pytest.raises(UsageError, match="both must be a Pair, not tuple"):
        result(tuple(both), *rest, **named)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_caches_are_returned_in_the_class_of_the_model(name: str) -> None:
    """Language models return their cache by default."""
    case = architectures.build(name)
    subject = attention.Subject(case.module, (), {**case.kwargs, "use_cache": True})
    result = decompose(case.module, dict(subject.kwargs))
    got, wanted = result(**copy.deepcopy(subject.kwargs)), case.module(**copy.deepcopy(subject.kwargs))
    assert type(got) is type(wanted)
    assert type(got.past_key_values) is type(wanted.past_key_values)
    assert got.past_key_values.get_seq_length() == wanted.past_key_values.get_seq_length() > 0
    assert attention.worst(attention.outputs(result, subject), attention.outputs(case.module, subject)) <= 1e-5


def layer(length: int) -> SimpleNamespace:
    return SimpleNamespace(keys=torch.randn(1, 2, length, 4), values=torch.randn(1, 2, length, 4))


class Reads(nn.Module):
    """Control flow on a size, which symbolic tracing cannot follow."""

    def forward(self, x: torch.Tensor, past: Any) -> torch.Tensor:
        own, other = past.self_attention_cache.layers[0], past.cross_attention_cache.layers[0]
        scores = x if x.shape[-1] == 4 else x[..., :4]
        return (scores @ own.keys.mT).softmax(-1) @ own.values + other.values.sum(-2, keepdim=True)


def test_dimensions_of_a_cache_with_two_parts_are_dynamic_under_the_names_of_an_export() -> None:
    def past(length: int) -> Any:
        return SimpleNamespace(
            self_attention_cache=SimpleNamespace(layers=[layer(length)]),
            cross_attention_cache=SimpleNamespace(layers=[layer(6)]),
        )

    model, x = Reads(), torch.randn(1, 2, 3, 4)
    dynamic = {f"past.0.decoder.{part}": {2: "past"} for part in ("key", "value")}
    result = decompose(model, {"x": x, "past": past(5)}, dynamic=dynamic)
    longer = past(9)
    torch.testing.assert_close(result(x, longer), model(x, longer))


def test_a_result_that_a_graph_cannot_return_is_refused() -> None:
    class Strange(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, Odd(x * 2)

    class Odd:
        def __init__(self, content: torch.Tensor) -> None:
            self.content = content

    with pytest.raises(ModelError, match="the model returns a Odd, which a graph cannot return"):
        decompose_exported(Strange(), (torch.ones(2),), {}, {}, "")


class Partly(nn.Module):
    """A part is computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.free = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = self.frozen(x).sin()
        return self.free(x) * fixed


@pytest.mark.parametrize("enabled", [True, False])
def test_only_the_part_without_gradients_has_none(enabled: bool) -> None:
    model, x = Partly(), torch.randn(3, 4)
    result = decompose_exported(model, (x,), {}, {}, "")
    with torch.set_grad_enabled(enabled):
        assert torch.equal(result(x), model(x))
        assert torch.is_grad_enabled() is enabled
        assert result(x).requires_grad is enabled
    result(x).sum().backward()
    assert model.frozen.weight.grad is None
    assert model.free.weight.grad is not None
