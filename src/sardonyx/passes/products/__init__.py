"""Fuse arithmetic into the matrix products and convolutions next to it."""

from __future__ import annotations

from sardonyx.passes.base import Pass
from sardonyx.passes.products.fuse_batch_norm import FuseBatchNorm
from sardonyx.passes.products.fuse_conv_affine import FuseConvAffine
from sardonyx.passes.products.fuse_matmul_add import FuseMatMulAdd
from sardonyx.passes.products.fuse_pointwise_conv import FusePointwiseConv
from sardonyx.passes.products.fuse_product_scale import FuseProductScale

PRODUCTS: tuple[Pass, ...] = (
    FuseBatchNorm(),
    FuseConvAffine(),
    FuseMatMulAdd(),
    FuseProductScale(),
    FusePointwiseConv(),
)
