"""Evaluate ONNX nodes without rounding, so that a rewrite is decided and not estimated."""

from sardonyx.exact.call import Invalid, Undecided

__all__ = ["Invalid", "Undecided"]
