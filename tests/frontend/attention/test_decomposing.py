"""Which method captures a model and why, with which inputs, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from frontend.attention.comparing import close
from sardonyx.errors import ModelError, UsageError
from sardonyx.frontend.attention.decompose import decompose
from sardonyx.frontend.attention.roles import Decomposition, decomposition_of

WIDTH = 8


def decomposition(module: fx.GraphModule) -> Decomposition:
    result = decomposition_of(module)
    assert result is not None
    return result


class Layer(nn.Module):
    """A layer with an optional mask that it only passes on."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.attend(x, x, x, attn_mask=mask, need_weights=False)[0]


class Choosing(Layer):
    """Its code branches on which arguments are given."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, twice: bool = False) -> torch.Tensor:
        x = x * 3 if mask is None else x
        return super().forward(x * 2 if twice else x, mask)


class Looking(Layer):
    """Its code branches on whether there is a mask, unnoticed by a symbolic trace."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x * 3 if mask is None else x, mask)


class Deciding(Layer):
    """Its code branches on the values of a tensor."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x, mask)


class Holding(nn.Module):
    """Code around a layer that symbolic tracing cannot trace."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden_states) if hidden_states.shape[0] else hidden_states


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 5, WIDTH)


@pytest.fixture
def mask() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(5, 5)


def test_traces_symbolically_if_possible_without_inputs(x: torch.Tensor, mask: torch.Tensor) -> None:
    layer = Layer().eval()
    result = decompose(layer)
    assert (decomposition(result).method, decomposition(result).why) == ("symbolic-trace", "")
    close(result(x), layer(x))
    close(result(x, mask=mask), layer(x, mask))  # the mask is only passed on, so it stays an optional argument
    other = torch.randn(2, 9, WIDTH)
    close(result(other), layer(other))


@pytest.mark.parametrize("kind", [Choosing, Looking])
def test_code_that_branches_on_an_optional_argument_is_traced_for_its_default(
    kind: type[Layer], x: torch.Tensor, mask: torch.Tensor
) -> None:
    """Symbolic tracing alone would take the branch with a mask, which is wrong for a call without one."""
    layer = kind().eval()
    result = decompose(layer)
    assert decomposition(result).method == "symbolic-trace"
    close(result(x), layer(x))
    with pytest.raises(AssertionError, match="mask has been specialized to have value None"):
        result(x, mask=mask)


def test_an_example_determines_which_arguments_are_given(x: torch.Tensor, mask: torch.Tensor) -> None:
    layer = Choosing().eval()
    result = decompose(layer, (x, mask), kwargs={"twice": True})
    assert decomposition(result).method == "symbolic-trace"
    close(result(x, mask, twice=True), layer(x, mask, twice=True))
    with pytest.raises(AssertionError, match="twice has been specialized"):
        result(x, mask)


@pytest.mark.parametrize("by_name", [False, True])
def test_exports_if_tracing_stops(by_name: bool, x: torch.Tensor) -> None:
    model = Holding(Layer()).eval()
    result = decompose(model, {"hidden_states": x} if by_name else x)
    assert decomposition(result).method == "torch-export"
    assert "symbolic tracing stopped" in decomposition(result).why
    assert [(each.module, each.written_as) for each in decomposition(result).attentions] == [
        ("inner.attend", "nn.MultiheadAttention")
    ]
    close(result(x), model(x))


class Viewing(nn.Module):
    """Relies on the memory layout of torch's fused attention."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        heads = hidden_states.unflatten(2, (2, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2)
        return mixed.view(hidden_states.shape).view(torch.int32).view(dtype=torch.float32)


@pytest.mark.parametrize("model", [Viewing(), Holding(Viewing())], ids=["symbolic-trace", "torch-export"])
def test_a_view_of_an_attention_may_copy(model: nn.Module, x: torch.Tensor) -> None:
    close(decompose(model, x)(x), model(x))


def test_the_fast_path_is_off_only_while_exporting(x: torch.Tensor) -> None:
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 2).eval()
    with torch.no_grad():
        result = decompose(Holding(layers).eval(), x)
        assert len(decomposition(result).attentions) == 2
        close(result(x), layers(x))
    assert torch.backends.mha.get_fastpath_enabled()


def test_exports_if_tracing_cannot_enter_a_function(x: torch.Tensor) -> None:
    model = Wrapping().eval()
    result = decompose(model, x)
    assert decomposition(result).method == "torch-export"
    assert decomposition(result).why.startswith("symbolic tracing cannot trace into ")
    assert "hidden_attention" in decomposition(result).why
    assert [each.written_as for each in decomposition(result).attentions] == ["by hand"]
    close(result(x), model(x))


def test_without_inputs_the_trace_lists_the_functions_it_could_not_enter() -> None:
    result = decompose(Wrapping().eval())
    assert decomposition(result).method == "symbolic-trace"
    assert len(decomposition(result).opaque) == 1


@fx.wrap
def hidden_attention(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x.transpose(-2, -1) * 0.3, -1) @ x


class Wrapping(nn.Module):
    def forward(self, thing: torch.Tensor) -> torch.Tensor:
        return hidden_attention(thing)


def test_inputs_are_derived_if_they_are_needed() -> None:
    class Text(Holding):
        def __init__(self) -> None:
            super().__init__(Layer())
            self.table = nn.Embedding(30, WIDTH)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return super().forward(self.table(input_ids))

    model = Text().eval()
    result = decompose(model, dynamic="auto")
    assert len(decomposition(result).attentions) == 1
    ids = torch.randint(0, 30, (4, 9))
    close(result(ids), model(ids))


def test_an_error_asks_for_inputs_if_none_can_be_derived() -> None:
    class Strange(Holding):
        def forward(self, hidden_states: torch.Tensor, how: str) -> torch.Tensor:
            return super().forward(hidden_states) if how == "plain" and hidden_states.shape[0] else hidden_states

    with pytest.raises(ModelError, match=r"symbolic tracing stopped: .*torch.export needs example inputs") as caught:
        decompose(Strange(Layer()))
    assert caught.value.hint == "give example inputs"


def test_code_that_branches_on_values_is_refused_with_its_module(x: torch.Tensor) -> None:
    with pytest.raises(ModelError, match=r"torch.export cannot trace module 'inner': GuardOnDataDependent") as caught:
        decompose(Holding(Deciding()), x)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_refuses_what_it_cannot_read() -> None:
    with pytest.raises(ModelError, match="a scripted model has no Python code"):
        decompose(torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(UsageError, match="the model has no input 'y'"):
        decompose(Holding(Layer()), torch.randn(2, 3, WIDTH), dynamic={"y": {0: "batch"}})


def test_a_compiled_model_is_treated_as_the_model_it_wraps(x: torch.Tensor) -> None:
    layer = Layer().eval()
    compiled = torch.compile(layer, backend="eager")
    assert isinstance(compiled, nn.Module)
    result = decompose(compiled)
    assert [id(each) for each in result.parameters()] == [id(each) for each in layer.parameters()]
    close(result(x), layer(x))
