"""Fusions into ONNX Runtime's own operators, for the `ort` target."""

from __future__ import annotations

from sardonyx.passes.base import family

ORT = family(
    __name__,
    """
    fuse_conv_add fuse_conv_hard_swish fuse_conv_relu fuse_gemm_activation fuse_matmul_transpose fuse_bias_gelu
    fuse_quick_gelu fuse_packed_attention fuse_skip_layer_norm fuse_skip_rms_norm fuse_skip_bias
    group_attention_queries
    """,
)
