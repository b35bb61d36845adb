"""Upsample and Resize: since 11 a Resize says how it finds its samples, which before was understood."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.graph.build import Builder
from sardonyx.graph.opsets.adapter import CannotRaise, Rewrite, Step, rebuilt, rewritten

_NO_ROI = np.zeros(0, np.float32)
_BEFORE_11 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def upsample(step: Step) -> Rewrite | None:
    """The scales as an input since 9; a Resize since 10."""
    scales = step.node.attributes.get_floats("scales")
    if step.new < 10:
        return rewritten(step, {1: ("scales", _scales(scales))}, drop=["scales"]) if scales is not None else None

    def rewrite(op: Builder) -> Sequence[ir.Value]:
        factors = step.reads(1) if scales is None else op.constant(_scales(scales), "scales")
        return _resized(step, op, factors)

    return rewrite


def resize(step: Step) -> Rewrite | None:
    """Says what was understood before 11, and leaves out what is empty since that may be left out."""
    if step.passes(11):
        scales = step.graph.array(step.reads(1))
        if scales is None or (scales < 1).any():
            raise CannotRaise("before opset 11 nothing says how it shrinks")
        return lambda op: _resized(step, op, step.reads(1))
    if step.node.attributes.get_string("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        raise CannotRaise("opset 13 no longer has its coordinates")
    empty = [index for index in (1, 2) if _is_empty(step, index)]
    if step.reads(3) is not None and step.reads(2) is not None and 2 not in empty:
        raise CannotRaise("it has both scales and sizes")
    return rewritten(step, dict.fromkeys(empty, ("", None))) if empty else None


def _resized(step: Step, op: Builder, scales: ir.Value | None) -> Sequence[ir.Value]:
    source = step.reads(0)
    if step.new < 11:
        return rebuilt(op, step.node, [source, scales], op_type="Resize", drop=["scales"])
    roi = op.constant(_NO_ROI, "roi") if step.new < 13 else None
    return rebuilt(op, step.node, [source, roi, scales], op_type="Resize", drop=["scales"], **_BEFORE_11)


def _scales(numbers: Sequence[float]) -> np.ndarray:
    return np.array(numbers, np.float32)


def _is_empty(step: Step, index: int) -> bool:
    tensor = step.graph.tensor(step.reads(index))
    return tensor is not None and tensor.size == 0
