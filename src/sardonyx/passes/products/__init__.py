"""Fuse arithmetic into the matrix products and convolutions next to it."""

from __future__ import annotations

from sardonyx.passes.base import family

PRODUCTS = family(__name__, "fuse_batch_norm fuse_conv_affine fuse_matmul_add fuse_product_scale fuse_pointwise_conv")
