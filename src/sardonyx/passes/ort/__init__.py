"""Fusions into ONNX Runtime's own operators, for the `ort` target."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.ort.fuse_bias_gelu import FuseBiasGelu
from sardonyx.passes.ort.fuse_conv_add import FuseConvAdd
from sardonyx.passes.ort.fuse_conv_hard_swish import FuseConvHardSwish
from sardonyx.passes.ort.fuse_conv_relu import FuseConvRelu
from sardonyx.passes.ort.fuse_gemm_activation import FuseGemmActivation
from sardonyx.passes.ort.fuse_matmul_transpose import FuseMatMulTranspose
from sardonyx.passes.ort.fuse_packed_attention import FusePackedAttention
from sardonyx.passes.ort.fuse_quick_gelu import FuseQuickGelu
from sardonyx.passes.ort.fuse_skip_bias import FuseSkipBias
from sardonyx.passes.ort.fuse_skip_layer_norm import FuseSkipLayerNorm
from sardonyx.passes.ort.fuse_skip_rms_norm import FuseSkipRmsNorm
from sardonyx.passes.ort.group_attention_queries import GroupAttentionQueries

ORT: tuple[Pass, ...] = (
    FuseConvAdd(),
    FuseConvHardSwish(),
    FuseConvRelu(),
    FuseGemmActivation(),
    FuseMatMulTranspose(),
    FuseBiasGelu(),
    FuseQuickGelu(),
    FusePackedAttention(),
    FuseSkipLayerNorm(),
    FuseSkipRmsNorm(),
    FuseSkipBias(),
    GroupAttentionQueries(),
)
