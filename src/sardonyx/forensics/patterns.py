"""The patterns that are looked for, in the order they are shown: a new one is a detector and a line here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sardonyx.forensics.detectors import attention, layout, norms, products, sizes
from sardonyx.forensics.survey import Finding, Survey


@dataclass(frozen=True, slots=True)
class Pattern:
    """Something an optimizer looks for, or something it makes."""

    name: str
    what: str  # in the words of a table
    find: Callable[[Survey], Iterator[Finding]]
    made: bool = False  # what fusions make: more of it is better


def _operators(*op_types: str) -> Callable[[Survey], Iterator[Finding]]:
    return functools.partial(_each, op_types)


def _each(op_types: tuple[str, ...], survey: Survey) -> Iterator[Finding]:
    return ((node,) for node in survey.named(*op_types))


LAYER_NORM = ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization")
RMS_NORM = ("RMSNormalization", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization")
GELU = ("Gelu", "FastGelu", "BiasGelu", "QuickGelu")
ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention")

PATTERNS = (
    Pattern("attention-cores", "attention, spelled out", attention.cores),
    Pattern("attention-operators", "attention, one operator", _operators(*ATTENTION), made=True),
    Pattern("qkv-products", "three products of one input (Q, K, V)", products.shared_input),
    Pattern("rotary-rotations", "rotary rotation, spelled out", attention.rotations),
    Pattern("rotary-operators", "rotary embedding, one operator", _operators("RotaryEmbedding"), made=True),
    Pattern("layer-norms", "LayerNorm, spelled out", norms.layer_norms),
    Pattern("layer-norm-operators", "LayerNorm, one operator", _operators(*LAYER_NORM), made=True),
    Pattern("rms-norms", "RMSNorm, spelled out", norms.rms_norms),
    Pattern("rms-norm-operators", "RMSNorm, one operator", _operators(*RMS_NORM), made=True),
    Pattern("gelus", "GELU, spelled out", norms.gelus),
    Pattern("gelu-operators", "GELU, one operator", _operators(*GELU), made=True),
    Pattern("deep-products", "MatMul + Add, 3-D or more", products.deep_products),
    Pattern("flat-products", "MatMul + Add, 2-D", products.flat_products),
    Pattern("layer-batch-norms", "BatchNorm after a layer", products.normalized),
    Pattern("conv-activations", "Conv + activation", products.activated),
    Pattern("shape-chains", "shape chain", sizes.shape_chains),
    Pattern("unfolded-constants", "unfolded constant", sizes.unfolded),
    Pattern("reshape-chains", "Reshape after Reshape", layout.reshape_chains),
    Pattern("transpose-chains", "Transpose after Transpose", layout.transpose_chains),
    Pattern("cast-chains", "Cast after Cast", layout.cast_chains),
    Pattern("idle-reshapes", "Reshape that changes nothing", layout.idle_reshapes),
    Pattern("idle-transposes", "Transpose that changes nothing", layout.idle_transposes),
    Pattern("idle-expands", "Expand that repeats nothing", layout.idle_expands),
    Pattern("idle-casts", "Cast to the type it has", layout.idle_casts),
)
