"""`nn.Transformer` and its layers: traced, decomposed, and equal to torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frontend.attention import comparing
from frontend.attention.comparing import random_tensor, random_weights
from sardonyx.frontend.attention.decompose import trace
from sardonyx.frontend.attention.roles import decomposition_of


def _count(traced: nn.Module) -> int:
    decomposition = decomposition_of(traced)
    assert decomposition is not None
    return len(decomposition.attentions)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_whole_transformer(training: bool, batch_first: bool, norm_first: bool, grad: bool) -> None:
    # Dropout depends on the memory layout, and torch's attention returns a batch that is transposed in memory.
    dropout = 0.0 if batch_first else 0.2
    model = nn.Transformer(
        8, 2, 2, 2, 16, dropout=dropout, activation=F.gelu, batch_first=batch_first, norm_first=norm_first
    )
    model = random_weights(model).train(training)
    traced = trace(model)
    assert _count(traced) == 2 + 2 * 2
    batch, source, target = 3, 5, 4
    lengths = ((batch, source), (batch, target)) if batch_first else ((source, batch), (target, batch))
    padding = torch.zeros(batch, source, dtype=torch.bool)
    padding[0, 3:] = True
    inputs = {
        "src": random_tensor(*lengths[0], 8),
        "tgt": random_tensor(*lengths[1], 8, seed=2),
        "tgt_mask": torch.ones(target, target, dtype=torch.bool).triu(1),
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expected = comparing.run(model, inputs, grad=grad)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    comparing.agree(comparing.run(traced, inputs, grad=grad), expected)


class Encoder(nn.Module):
    """An encoder inside a model, called with the arguments of the model."""

    def __init__(self, nested: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=nested)

    def forward(self, x: Any, mask: Any = None, padding: Any = None) -> Any:
        return self.encoder(x, mask=mask, src_key_padding_mask=padding)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("mask", [None, torch.ones(5, 5, dtype=torch.bool).triu(1)])
def test_an_encoder_with_torchs_fast_path(mask: torch.Tensor | None, nested: bool) -> None:
    """Padded positions are not compared, because torch may write zeros there.

    Float masks are not used, because the fast path of torch's encoder layer treats them as boolean.
    """
    model = random_weights(Encoder(nested)).eval()
    traced = trace(model)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for given in (None, padding):
        inputs = {"x": random_tensor(2, 5, 8), "mask": mask, "padding": given}
        with torch.no_grad():
            expected, actual = model(**inputs), traced(**inputs)
        kept = torch.ones(2, 5, dtype=torch.bool) if given is None else ~given
        comparing.agree([actual[kept]], [expected[kept]])


def test_a_subclass_of_a_layer_is_traced_with_its_own_code() -> None:
    class Reversed(nn.TransformerEncoderLayer):
        """The feed-forward block first."""

        def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = False):
            src = self.norm2(src + self._ff_block(src))
            return self.norm1(src + self._sa_block(src, src_mask, src_key_padding_mask))

    class Doubled(nn.TransformerEncoderLayer):
        """Torch's forward pass with a replaced block and another operation after it."""

        def _ff_block(self, x: Any) -> Any:
            return super()._ff_block(x) * 2

        def forward(self, src: Any, **named: Any) -> Any:
            return super().forward(src, **named) + 1

    for kind in (Reversed, Doubled):
        model = random_weights(nn.TransformerEncoder(kind(8, 2, 16), 2, enable_nested_tensor=False)).eval()
        traced = trace(model)
        assert _count(traced) == 2
        inputs = {"src": random_tensor(5, 3, 8)}
        comparing.agree(comparing.run(traced, inputs, grad=True), comparing.run(model, inputs, grad=True))


def test_a_layer_alone_keeps_its_signature_and_refuses_another_option() -> None:
    model = random_weights(nn.TransformerEncoderLayer(8, 2, 16)).eval()
    traced = trace(model)
    inputs = {"src": random_tensor(5, 3, 8), "src_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)}
    comparing.agree(comparing.run(traced, inputs, grad=False), comparing.run(model, inputs, grad=False))
    with pytest.raises(AssertionError, match="is_causal"):
        traced(**inputs, is_causal=True)
