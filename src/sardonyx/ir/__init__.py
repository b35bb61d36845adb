"""ONNX in memory and on disk, without torch and without a runtime."""

from sardonyx.ir import _sympy as _sympy  # before anything here imports onnx_ir: it keeps sympy out of start-up
