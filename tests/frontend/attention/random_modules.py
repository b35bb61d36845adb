"""Random attentions: every option of `nn.MultiheadAttention` and SDPA, with inputs on which it has an effect."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class Multihead:
    """Options of a multi-head attention and of its call."""

    heads: int
    width: int  # of a head
    batch: int | None  # None: no batch axis
    length: int
    keys: int | None  # None: self-attention
    key_width: int | None  # None: the width of the query
    value_width: int | None
    batch_first: bool
    bias: bool
    bias_kv: bool
    zero: bool
    need_weights: bool
    average: bool
    attn_mask: str  # "none", "bool 2", "float 3", "causal bool", "causal float hint", …
    padding: str  # "none", "bool", "float"
    empty_row: bool  # a fully masked row
    late: bool  # masks that are None are still arguments of the traced model
    dropout: float
    training: bool
    dtype: torch.dtype
    seed: int

    @property
    def is_causal(self) -> bool:
        """Whether the `is_causal` hint is given."""
        return self.attn_mask.endswith("hint")


@st.composite
def multiheads(draw: st.DrawFn, dtype: torch.dtype | None = None) -> Multihead:
    """All combinations of options."""
    keys = draw(st.none() | st.integers(1, 5))
    square = ("causal bool", "causal float", "causal bool hint", "causal float hint") if keys is None else ()
    return Multihead(
        heads=draw(st.integers(1, 4)),
        width=draw(st.integers(1, 5)),
        batch=draw(st.none() | st.integers(1, 3)),
        length=draw(st.integers(1, 5)),
        keys=keys,
        key_width=None if keys is None else draw(st.none() | st.integers(1, 7)),
        value_width=None if keys is None else draw(st.none() | st.integers(1, 7)),
        batch_first=draw(st.booleans()),
        bias=draw(st.booleans()),
        bias_kv=draw(st.booleans()),
        zero=draw(st.booleans()),
        need_weights=draw(st.booleans()),
        average=draw(st.booleans()),
        attn_mask=draw(st.sampled_from(("none", "bool 2", "bool 3", "float 2", "float 3", *square))),
        padding=draw(st.sampled_from(("none", "bool", "float"))),
        empty_row=draw(st.booleans()),
        late=draw(st.booleans()),
        dropout=draw(st.sampled_from((0.0, 0.4))),
        training=draw(st.booleans()),
        dtype=dtype or draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 2**16)),
    )


class Attend(nn.Module):
    """A model that is one call of the random attention."""

    def __init__(self, case: Multihead) -> None:
        super().__init__()
        self.case = case
        self.attention = nn.MultiheadAttention(
            case.heads * case.width,
            case.heads,
            dropout=case.dropout,
            bias=case.bias,
            add_bias_kv=case.bias_kv,
            add_zero_attn=case.zero,
            kdim=case.key_width,
            vdim=case.value_width,
            batch_first=case.batch_first,
            dtype=case.dtype,
        )
        generator = torch.Generator().manual_seed(case.seed)
        for parameter in self.parameters():  # torch starts with zero biases, which hide a forgotten one
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_(noise * 0.5)
        self.train(case.training)

    def forward(self, query: Any, key: Any, value: Any, attn_mask: Any = None, key_padding_mask: Any = None) -> Any:
        case = self.case
        if case.keys is None:
            key = value = query
        return self.attention(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask if case.late or case.padding != "none" else None,
            need_weights=case.need_weights,
            attn_mask=attn_mask if case.late or case.attn_mask != "none" else None,
            average_attn_weights=case.average,
            is_causal=case.is_causal,
        )


def inputs_of(case: Multihead) -> dict[str, torch.Tensor | None]:
    """The arguments of the model."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    keys = case.length if case.keys is None else case.keys
    full = case.heads * case.width

    def tensor(length: int, width: int) -> torch.Tensor:
        shape = [length, width]
        if case.batch is not None:
            shape.insert(0 if case.batch_first else 1, case.batch)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

    return {
        "query": tensor(case.length, full),
        "key": tensor(keys, case.key_width or full),
        "value": tensor(keys, case.value_width or full),
        "attn_mask": _attn_mask(case, keys, generator),
        "key_padding_mask": _padding(case, keys, generator),
    }


def _attn_mask(case: Multihead, keys: int, generator: torch.Generator) -> torch.Tensor | None:
    if case.attn_mask == "none":
        return None
    shape = (case.length, keys)
    if case.attn_mask.startswith("causal"):
        gone = torch.ones(shape, dtype=torch.bool).triu(1)
    else:
        if case.attn_mask.endswith("3"):
            shape = ((case.batch or 1) * case.heads, *shape)
        gone = torch.rand(shape, generator=generator) < 0.4
        gone[..., 0] = False
        if case.empty_row:
            gone[..., 0, :] = True
    return _typed(gone, "bool" in case.attn_mask, case.dtype, generator, exact="causal" in case.attn_mask)


def _padding(case: Multihead, keys: int, generator: torch.Generator) -> torch.Tensor | None:
    if case.padding == "none":
        return None
    gone = torch.rand((case.batch or 1, keys), generator=generator) < 0.4
    gone[..., 0] = False
    if case.empty_row and case.attn_mask == "none":
        gone[0] = True
    gone = gone if case.batch is not None else gone[0]
    return _typed(gone, case.padding == "bool", case.dtype, generator, exact=False)


def _typed(
    gone: torch.Tensor, boolean: bool, dtype: torch.dtype, generator: torch.Generator, *, exact: bool
) -> torch.Tensor:
    if boolean:
        return gone
    bias = torch.randn(gone.shape, generator=generator, dtype=torch.float64) * (0 if exact else 1)
    return bias.masked_fill(gone, -torch.inf).to(dtype)


@dataclass(frozen=True)
class Sdpa:
    """A call of `scaled_dot_product_attention`."""

    leading: tuple[int, ...]  # axes before (length, width); the last are the heads where they are shared
    groups: int | None  # heads of key and value, if `enable_gqa`
    length: int
    keys: int
    width: int
    value_width: int
    mask: str  # "none", "causal", "bool", "float", "float32"
    mask_shape: tuple[bool, ...]  # which of the axes of the scores the mask has, from the last; the others are 1
    mask_rank: int
    empty_row: bool
    scale: float | None
    dropout: float
    dtype: torch.dtype
    seed: int


@st.composite
def sdpas(draw: st.DrawFn, dtype: torch.dtype | None = None) -> Sdpa:
    """All combinations of options."""
    leading = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    groups = draw(st.none() | st.integers(1, 2)) if leading else None
    if groups is not None:
        leading = (*leading[:-1], groups * draw(st.integers(1, 3)))
    rank = len(leading) + 2
    return Sdpa(
        leading=leading,
        groups=groups,
        length=draw(st.integers(1, 5)),
        keys=draw(st.integers(1, 5)),
        width=draw(st.integers(1, 6)),
        value_width=draw(st.integers(1, 6)),
        mask=draw(st.sampled_from(("none", "causal", "bool", "float", "float32"))),
        mask_shape=tuple(draw(st.lists(st.booleans(), min_size=rank, max_size=rank))),
        mask_rank=draw(st.integers(2, rank)),
        empty_row=draw(st.booleans()),
        scale=draw(st.sampled_from((None, 0.0, 0.3, -1.5))),
        dropout=draw(st.sampled_from((0.0, 0.0, 0.4))),
        dtype=dtype or draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 2**16)),
    )


class Sdpas(nn.Module):
    """A model that is one call of the random function."""

    def __init__(self, case: Sdpa) -> None:
        super().__init__()
        self.case = case
        self.dtyped = nn.Parameter(torch.ones((), dtype=case.dtype), requires_grad=False)  # otherwise it has no dtype

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        case = self.case
        return F.scaled_dot_product_attention(
            query * self.dtyped,
            key,
            value,
            attn_mask=None if case.mask in ("none", "causal") else mask,
            dropout_p=case.dropout,
            is_causal=case.mask == "causal",
            scale=case.scale,
            enable_gqa=case.groups is not None,
        )


def kernel(case: Sdpa) -> AbstractContextManager[object]:
    """The kernel to compare with. Torch's flash kernel masks before it scales, which gives NaN for a scale <= 0."""
    wrong = case.mask == "causal" and case.scale is not None and case.scale <= 0
    return sdpa_kernel(SDPBackend.MATH) if wrong else nullcontext()


def sdpa_inputs(case: Sdpa) -> dict[str, torch.Tensor | None]:
    """The arguments of the function."""
    generator = torch.Generator().manual_seed(case.seed)
    shared = case.leading if case.groups is None else (*case.leading[:-1], case.groups)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

    return {
        "query": tensor(*case.leading, case.length, case.width),
        "key": tensor(*shared, case.keys, case.width),
        "value": tensor(*shared, case.keys, case.value_width),
        "mask": _sdpa_mask(case, generator),
    }


def _sdpa_mask(case: Sdpa, generator: torch.Generator) -> torch.Tensor | None:
    if case.mask in ("none", "causal"):
        return None
    sizes = reversed((*case.leading, case.length, case.keys))
    shape = [size if kept else 1 for size, kept in zip(sizes, case.mask_shape, strict=True)]
    gone = torch.rand(shape[case.mask_rank - 1 :: -1], generator=generator) < 0.4
    gone[..., 0, :] = case.empty_row
    if case.mask == "bool":
        return ~gone
    return _typed(gone, False, torch.float32 if case.mask == "float32" else case.dtype, generator, exact=False)
