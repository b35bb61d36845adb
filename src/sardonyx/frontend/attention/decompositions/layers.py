"""Traceable forwards of `nn.Transformer` and its layers.

Torch's own forwards inspect shapes and values of masks to choose a fast kernel, which a symbolic trace cannot follow.
These call the same submodules and the same overridable blocks without the fast path. Torch also compares a mask with a
causal one to avoid reading it; that is left out, since it changes only the gradient of such a mask. In eval mode
torch's fast path may skip padded positions and fill them with zeros; here, as in training, they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


def encoder_layer(
    self: nn.TransformerEncoderLayer,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    """Replace `nn.TransformerEncoderLayer.forward`."""
    blocks: Any = self  # the blocks are private, but subclasses override them
    x = src
    if self.norm_first:
        x = x + blocks._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal=is_causal)
        return x + blocks._ff_block(self.norm2(x))
    x = self.norm1(x + blocks._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal))
    return self.norm2(x + blocks._ff_block(x))


def encoder(
    self: nn.TransformerEncoder,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """Replace `nn.TransformerEncoder.forward`."""
    output = src
    for layer in self.layers:
        output = layer(output, src_mask=mask, is_causal=_hint(is_causal), src_key_padding_mask=src_key_padding_mask)
    return output if self.norm is None else self.norm(output)


def decoder(
    self: nn.TransformerDecoder,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """Replace `nn.TransformerDecoder.forward`."""
    output = tgt
    for layer in self.layers:
        output = layer(
            output,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=_hint(tgt_is_causal),
            memory_is_causal=memory_is_causal,
        )
    return output if self.norm is None else self.norm(output)


def transformer(
    self: nn.Transformer,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    src_is_causal: bool | None = None,
    tgt_is_causal: bool | None = None,
    memory_is_causal: bool = False,
) -> Any:
    """Replace `nn.Transformer.forward`."""
    memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
    return self.decoder(
        tgt,
        memory,
        tgt_mask=tgt_mask,
        memory_mask=memory_mask,
        tgt_key_padding_mask=tgt_key_padding_mask,
        memory_key_padding_mask=memory_key_padding_mask,
        tgt_is_causal=tgt_is_causal,
        memory_is_causal=memory_is_causal,
    )


def _hint(is_causal: Any) -> Any:
    """Return False without a hint: torch would inspect the mask, and applying the mask gives the same result."""
    return False if is_causal is None else is_causal


FORWARDS: Mapping[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
    nn.TransformerDecoder: decoder,
    nn.Transformer: transformer,
}
# The forward of nn.TransformerDecoderLayer can be traced without a replacement.
