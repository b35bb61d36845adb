"""Modules of the kinds that people write themselves and no library model shows, with inputs of two sizes each."""
# ruff: noqa: D101, D102, D103  # names of classes and functions say what is special about a module

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, rnn

import handmade

Inputs = tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A module, example inputs, and inputs of other sizes and values."""

    kind: str
    module: nn.Module
    example: Inputs
    fresh: Inputs


CASES: dict[str, Callable[[], Case]] = {}


def case(kind: str) -> Callable[[Callable[[], tuple[Any, ...]]], None]:
    """Register a function that builds a module and its inputs; weights are seeded."""

    def register(build: Callable[[], tuple[Any, ...]]) -> None:
        @functools.wraps(build)
        def built() -> Case:
            torch.manual_seed(0)
            return Case(kind, *build())

        CASES[build.__name__.replace("_", "-")] = built

    return register


class Does(nn.Module):
    """A module with some layers whose forward is a function of itself and one tensor."""

    def __init__(self, work: Callable[[Any, Tensor], Any], **layers: Any) -> None:
        super().__init__()
        self.work = work
        for name, layer in layers.items():
            if isinstance(layer, Tensor) and not isinstance(layer, nn.Parameter):
                self.register_buffer(name, layer)
            else:
                setattr(self, name, layer)

    def forward(self, x: Tensor) -> Any:
        """Do it."""
        return self.work(self, x)


def rows(*features: int) -> tuple[tuple[Tensor], tuple[Tensor]]:
    """Two batches of different sizes."""
    return (torch.randn(3, *features),), (2 * torch.randn(5, *features) - 0.5,)


def linear(width: int = 8) -> nn.Linear:
    """A layer."""
    return nn.Linear(width, width)


# Arguments and results


class KeywordOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, *, left: Tensor, right: Tensor, scale: float = 2.0) -> Tensor:
        return self.a(left) * scale + self.b(right)


def left_and_right() -> list[Inputs]:
    """Inputs by name."""
    return [{"left": torch.randn(n, 8), "right": torch.randn(n, 8)} for n in (3, 5)]


@case("arguments")
def keyword_only():
    return KeywordOnly(), *left_and_right()


class AnyKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()

    def forward(self, **named: Tensor) -> Tensor:
        return self.a(named["x"]) + named["y"]


@case("arguments")
def any_keywords():
    return AnyKeywords(), *({"x": torch.randn(n, 8), "y": torch.randn(n, 8)} for n in (3, 5))


class AnyPositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()

    def forward(self, *parts: Tensor) -> Tensor:
        return self.a(torch.cat(parts, 0))


@case("arguments")
def any_positions():
    return AnyPositions(), *((torch.randn(n, 8), torch.randn(2, 8)) for n in (3, 5))


class NestedArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()

    def forward(self, batch: dict[str, Any]) -> Tensor:
        first, (second, third) = batch["x"], batch["pair"]
        return self.a(first) + second * third["deep"]


@case("arguments")
def nested_arguments():
    def inputs(n: int) -> Inputs:
        return ({"x": torch.randn(n, 8), "pair": (torch.randn(n, 8), {"deep": torch.randn(n, 8)})},)

    return NestedArguments(), inputs(3), inputs(5)


class OptionalNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(
        self, x: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        y = self.a(x) if bias is None else self.b(x) + bias
        return (y if mask is None else y.masked_fill(mask, 0.0)), None


@case("arguments")
def none_between_arguments():
    return OptionalNone(), *((torch.randn(n, 8), None, torch.rand(n, 8) > 0.5) for n in (3, 5))


class PythonArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = linear()

    def forward(self, x: Tensor, times: int, mode: str = "relu", negate: bool = False) -> Tensor:
        for _ in range(times):
            x = getattr(torch, mode)(self.a(x))
        return -x if negate else x


@case("python arguments")
def python_arguments():
    return PythonArguments(), *((torch.randn(n, 8), 3) for n in (3, 5))


@dataclass
class Answer:
    """A dataclass as a result."""

    scores: Tensor
    extra: Any = None


Pair = namedtuple("Pair", "first second")


@case("results")
def dataclass_result():
    return Does(lambda m, x: Answer(m.a(x), {"mean": x.mean(1), "none": None}), a=linear()), *rows(8)


@case("results")
def nested_result():
    def work(m: Any, x: Tensor) -> Any:
        return OrderedDict(b=[m.a(x), (x.sum(1), None)], a=Pair(torch.tanh(x), {"deep": x * 2}))

    return Does(work, a=linear()), *rows(8)


@case("results")
def result_with_numbers_and_none():
    return Does(lambda m, x: (m.a(x), None, 7, "text", x.shape[0]), a=linear()), *rows(8)


@case("results")
def same_tensor_twice():
    def work(m: Any, x: Tensor) -> Any:
        y = m.a(x)
        return y, x, y

    return Does(work, a=linear()), *rows(8)


@case("results")
def views_of_one_result():
    return Does(lambda m, x: (m.a(x)[:, :4], m.a(x).T, m.a(x)[..., None]), a=linear()), *rows(8)


# Writes


@case("in place")
def in_place_on_input():
    return Does(lambda m, x: m.a(x.add_(1.0).mul_(2.0)), a=linear()), *rows(8)


@case("in place")
def in_place_slices():
    def work(m: Any, x: Tensor) -> Tensor:
        y = m.a(x).clone()
        y[:, ::2] = torch.relu(y[:, 1::2])
        y[:, 0] += 1
        return y

    return Does(work, a=linear()), *rows(8)


@case("in place")
def in_place_relu_and_index_put():
    def work(m: Any, x: Tensor) -> Tensor:
        y = m.b(m.a(x))
        y[y > 1] = 1.0
        return y

    return Does(work, a=linear(), b=nn.ReLU(inplace=True)), *rows(8)


@case("state")
def counter_in_a_buffer():
    def work(m: Any, x: Tensor) -> Tensor:
        m.calls += 1
        return m.a(x) * m.calls

    return Does(work, a=linear(), calls=torch.zeros(())), *rows(8)


@case("state")
def running_mean_in_a_buffer():
    def work(m: Any, x: Tensor) -> Tensor:
        m.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return m.a(x - m.mean)

    return Does(work, a=linear(), mean=torch.zeros(8)), *rows(8)


@case("state")
def cache_in_a_buffer():
    def work(m: Any, x: Tensor) -> Tensor:
        m.cache.copy_(torch.cat([m.cache[1:], x.mean(0, keepdim=True)]))
        return m.a(x) + m.cache.sum(0)

    return Does(work, a=linear(), cache=torch.zeros(4, 8)), *rows(8)


@case("state")
def attribute_made_in_forward():
    def work(m: Any, x: Tensor) -> Tensor:
        if not hasattr(m, "table"):
            m.table = torch.arange(8.0) / 8
        return m.a(x) + m.table

    return Does(work, a=linear()), *rows(8)


# Hooks, parametrizations, wrappers


@case("hooks")
def forward_hooks():
    module = Does(lambda m, x: m.b(m.a(x)), a=linear(), b=linear())
    module.get_submodule("a").register_forward_hook(lambda _m, _i, y: torch.tanh(y) * 2)
    module.get_submodule("b").register_forward_pre_hook(lambda _m, inputs: (inputs[0] + 1,))
    module.register_forward_hook(lambda _m, _i, y: (y, y.sum(1)))
    return module, *rows(8)


@case("hooks")
def hooks_with_keywords():
    module = KeywordOnly()
    module.register_forward_pre_hook(lambda _m, args, named: (args, named | {"scale": 3.0}), with_kwargs=True)
    return module, *left_and_right()


@case("parametrizations")
def weight_norm():
    return Does(lambda m, x: m.a(x), a=parametrizations.weight_norm(linear())), *rows(8)


@case("parametrizations")
def old_weight_norm():
    return Does(lambda m, x: m.a(x), a=nn.utils.weight_norm(linear())), *rows(8)


@case("parametrizations")
def spectral_norm():
    return Does(lambda m, x: m.a(x), a=parametrizations.spectral_norm(linear())), *rows(8)


@case("parametrizations")
def orthogonal():
    return Does(lambda m, x: m.a(x), a=parametrizations.orthogonal(linear())), *rows(8)


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


@case("parametrizations")
def own_parametrization():
    layer = linear()
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return Does(lambda m, x: m.a(x), a=layer), *rows(8)


class LowRank(nn.Module):
    """Adds a low-rank update to a frozen layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), 0.5
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x)) * self.scale


@case("wrappers")
def low_rank_update():
    return Does(lambda m, x: m.b(torch.relu(m.a(x))), a=LowRank(linear()), b=LowRank(linear())), *rows(8)


@case("wrappers")
def data_parallel():
    return nn.DataParallel(nn.Sequential(linear(), nn.GELU(), linear())), *rows(8)


@case("wrappers")
def compiled_module():
    return torch.compile(nn.Sequential(linear(), nn.Tanh())), *rows(8)


@case("wrappers")
def compiled_submodule():
    inner = nn.Sequential(linear(), nn.SiLU())
    inner.compile()
    return Does(lambda m, x: m.b(m.a(x)), a=inner, b=torch.compile(linear())), *rows(8)


@case("wrappers")
def scripted_submodule():
    scripted = torch.jit.script(nn.Sequential(linear(), nn.ReLU()))
    return Does(lambda m, x: m.b(m.a(x)), a=scripted, b=linear()), *rows(8)


@case("wrappers")
def traced_module():
    return torch.jit.trace(nn.Sequential(linear(), nn.Hardswish()), torch.randn(3, 8)), *rows(8)


@case("wrappers")
def forward_replaced_on_the_instance():
    module = Does(lambda m, x: m.a(x), a=linear())
    before = module.forward
    module.forward = lambda x: before(x) * 2  # type: ignore[method-assign]
    return module, *rows(8)


@case("wrappers")
def shared_weights():
    first, second = linear(), linear()
    second.weight = first.weight
    return Does(lambda m, x: m.b(torch.tanh(m.a(x))), a=first, b=second), *rows(8)


# Sequences


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(6, 8, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


@case("sequences")
def packed_sequence():
    return Packed(), (torch.randn(3, 7, 6), torch.tensor([7, 4, 2])), (torch.randn(4, 9, 6), torch.tensor([5, 9, 1, 9]))


@case("sequences")
def lstm_with_state():
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 8, 2, batch_first=True)

        def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            return self.lstm(x, state)

    return Steps(), *((torch.randn(n, 7, 6), (torch.randn(2, n, 8), torch.randn(2, n, 8))) for n in (3, 5))


@case("sequences")
def cell_in_a_loop():
    def work(m: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 8)
        for step in range(5):
            state = m.cell(x[:, step], state)
        return state

    return Does(work, cell=nn.GRUCell(6, 8)), (torch.randn(3, 5, 6),), (torch.randn(4, 5, 6),)


class Masked(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x, x, x, key_padding_mask=hidden)[0]
        return self.layer(x, src_key_padding_mask=hidden)


def padded(n: int, length: int) -> Inputs:
    """Rows of tokens with padding at the end of some."""
    return torch.randn(n, length, 8), torch.arange(length) >= torch.randint(2, length + 1, (n, 1))


@case("masks")
def attention_with_key_padding_mask():
    return Masked(nn.MultiheadAttention(8, 2, batch_first=True)), padded(3, 7), padded(4, 9)


@case("masks")
def encoder_with_key_padding_mask():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Masked(nn.TransformerEncoder(layer, 1)), padded(3, 7), padded(4, 9)


@case("masks")
def causal_attention():
    def work(m: Any, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(2, (2, 4)).transpose(1, 2) for each in m.a(x).chunk(3, 2))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    return Does(work, a=nn.Linear(8, 24)), (torch.randn(2, 7, 8),), (torch.randn(3, 9, 8),)


@case("masks")
def transformer_decoder():
    class Decodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.layer(x, memory, tgt_mask=mask)

    return Decodes(), *((torch.randn(n, n + 2, 8), torch.randn(n, n + 5, 8)) for n in (3, 4))


# Control flow


@case("branches")
def torch_cond():
    def work(m: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: m.a(x), lambda x: m.b(x) * 2, (x,))

    return Does(work, a=linear(), b=linear()), (torch.ones(3, 8),), (-torch.ones(5, 8),)


@case("branches")
def branch_on_a_value():
    def work(m: Any, x: Tensor) -> Tensor:
        return m.a(x) if x.sum() > 0 else m.b(x)

    return Does(work, a=linear(), b=linear()), (torch.ones(3, 8),), (-torch.ones(5, 8),)


@case("branches")
def branch_on_a_size():
    def work(m: Any, x: Tensor) -> Tensor:
        return m.a(x) if x.shape[0] < 5 else m.b(x)

    return Does(work, a=linear(), b=linear()), *rows(8)


@case("branches")
def where_instead_of_a_branch():
    return Does(lambda m, x: torch.where(x.sum() > 0, m.a(x), m.b(x)), a=linear(), b=linear()), *rows(8)


@case("branches")
def loop_over_rows():
    return Does(lambda m, x: torch.stack([m.a(row) for row in x]), a=linear()), *rows(8)


# Numbers


@case("spectra")
def real_fft():
    return Does(lambda m, x: m.a(torch.fft.rfft(x).abs()), a=nn.Linear(9, 4)), *rows(16)


@case("spectra")
def complex_product():
    def work(m: Any, x: Tensor) -> Tensor:
        z = torch.view_as_complex(m.a(x).unflatten(1, (4, 2)))
        return torch.view_as_real(z * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(1)

    return Does(work, a=linear()), *rows(8)


@case("spectra")
def inverse_fft():
    return Does(lambda m, x: torch.fft.irfft(torch.fft.rfft(m.a(x)), n=8), a=linear()), *rows(8)


@case("spectra")
def stft():
    def work(m: Any, x: Tensor) -> Tensor:
        return torch.stft(x, 16, 8, window=m.window, return_complex=True).abs()

    return Does(work, window=torch.hann_window(16)), (torch.randn(3, 64),), (torch.randn(5, 64),)


class Clamped(torch.autograd.Function):
    """Has a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1) * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


@case("autograd")
def own_gradient():
    return Does(lambda m, x: Clamped.apply(m.a(x)), a=linear()), *rows(8)


@case("autograd")
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    return Does(lambda m, x: checkpoint(m.a, x, use_reentrant=False), a=linear()), *rows(8)


@case("autograd")
def functional_call():
    def work(m: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(m.a, {"weight": m.a.weight * 2, "bias": m.a.bias}, (x,))

    return Does(work, a=linear()), *rows(8)


@case("autograd")
def vmapped():
    return Does(lambda m, x: torch.func.vmap(m.a)(x), a=linear()), *rows(8)


@case("precision")
def autocast_inside():
    def work(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = m.a(x)
        return m.b(y.float())

    return Does(work, a=linear(), b=linear()), *rows(8)


class Int8Linear(nn.Module):
    """Weights of eight bits with a scale for each row, as weight-only quantizers store them."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(8, 8)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.get_buffer("weight").float() * self.get_buffer("scale"))


@case("precision")
def quantized_weights():
    return Does(lambda m, x: m.b(torch.relu(m.a(x))), a=Int8Linear(), b=Int8Linear()), *rows(8)


@case("precision")
def double_inside():
    return Does(lambda m, x: m.a(x.double()).float(), a=linear().double()), *rows(8)


# Images


@case("images")
def deformable_convolution():
    """Written with grid_sample: offsets move the points that a convolution reads."""

    def work(m: Any, x: Tensor) -> Tensor:
        moved = torch.tanh(m.offset(x)).permute(0, 2, 3, 1)
        height, width = torch.linspace(-1, 1, x.shape[2]), torch.linspace(-1, 1, x.shape[3])
        grid = torch.stack(torch.meshgrid(height, width, indexing="ij")[::-1], -1)
        return m.mix(F.grid_sample(x, grid + 0.1 * moved, align_corners=True))

    layers = {"offset": nn.Conv2d(3, 2, 3, padding=1), "mix": nn.Conv2d(3, 4, 1)}
    return Does(work, **layers), (torch.randn(2, 3, 8, 10),), (torch.randn(3, 3, 8, 10),)


@case("images")
def resized_to_another_input():
    def work(m: Any, x: Tensor) -> Tensor:
        small = m.a(F.avg_pool2d(x, 2))
        return F.interpolate(small, size=x.shape[2:], mode="bilinear", align_corners=False) + x

    return Does(work, a=nn.Conv2d(3, 3, 3, padding=1)), (torch.randn(2, 3, 8, 8),), (torch.randn(3, 3, 12, 10),)


@case("images")
def lazy_layers():
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)), *(
        (torch.randn(n, 3, 8, 8),) for n in (2, 3)
    )


def _handmade(kind: type[nn.Module], *inputs: Callable[[], tuple[Tensor]]) -> Callable[[], Case]:
    def built() -> Case:
        torch.manual_seed(0)
        return Case("arrangements", kind(), *(make() for make in inputs))

    return built


def _images(n: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(n, 3, 16, 16),)


CASES |= {
    "convolution-and-perceptron": _handmade(handmade.ConvolutionAndPerceptron, _images(2), _images(3)),
    "convolution-and-attention": _handmade(handmade.ConvolutionAndAttention, _images(2), _images(3)),
    "called-twice": _handmade(handmade.CalledTwice, lambda: (torch.randn(2, 12),), lambda: (torch.randn(4, 12),)),
    "two-names": _handmade(handmade.TwoNames, lambda: (torch.randn(2, 12),), lambda: (torch.randn(4, 12),)),
    "tagger": _handmade(
        handmade.Tagger, lambda: (torch.randint(0, 96, (2, 7)),), lambda: (torch.randint(0, 96, (3, 9)),)
    ),
}
