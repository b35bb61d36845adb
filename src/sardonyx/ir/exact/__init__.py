"""Evaluate ONNX nodes without rounding, so that a rewrite is decided and not estimated."""

from sardonyx.ir.exact.call import Invalid
from sardonyx.ir.exact.reals import Undecided

__all__ = ["Invalid", "Undecided"]
