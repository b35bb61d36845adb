"""Sizes that differ for every symbolic dim, so that a rewrite that confuses two dims is noticed."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from passes.util import assert_same, draw
from sardonyx.runtime import Session

SIZES = ({"B": 3, "S": 5, "N": 2}, {"B": 1, "S": 4, "N": 3}, {"B": 2, "S": 1, "N": 4}, {"B": 4, "S": 3, "N": 1})


def assert_same_on_uneven_sizes(text: str, model: ir.Model, *, exact: bool = True, rtol: float = 1e-5) -> None:
    """Both models compute the same in the runtime for sizes B, S and N that differ from each other."""
    for seed, dims in enumerate(SIZES):
        feeds = draw(onnx.parser.parse_model(text), seed, dims)
        Session(ir.to_proto(model), threads=1).run(
            feeds
        )  # assert_same may fall back to the evaluator, which broadcasts more
        assert_same(text, model, exact=exact, rtol=rtol, feeds=feeds)
