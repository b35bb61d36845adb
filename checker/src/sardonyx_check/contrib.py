"""Operators of ONNX Runtime that Sardonyx writes, in terms of the standard's."""

from __future__ import annotations
