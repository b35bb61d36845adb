"""Evaluate ONNX nodes without rounding, so that a rewrite is decided and not estimated."""

from sardonyx.exact.call import Invalid
from sardonyx.exact.reals import Undecided

__all__ = ["Invalid", "Undecided"]
