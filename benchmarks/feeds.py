"""Inputs to run a file on at sizes that one chooses, drawn as the proof draws them, and what two answers differ by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.inputs.generator import Inputs, Style, TrialPlan
from sardonyx.ir import io

SEED = 7


def several(path: str, sizes: Sequence[Mapping[str, int]]) -> Iterator[dict[str, Any]]:
    """Feeds at each of the sizes; once only where the file leaves no dim open."""
    for number, chosen in enumerate(sizes):
        model = io.load(path)
        if number and not open_dims(model):
            return
        yield at_size(model, chosen)


def at_size(model: ir.Model, sizes: Mapping[str, int], seed: int = SEED) -> dict[str, Any]:
    """Feeds for a model whose open dims get these sizes; a dim that has none here gets 1."""
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape(dim if isinstance(dim, int) else sizes.get(_name(dim), 1) for dim in value.shape)
    return Inputs(model).generate(TrialPlan(seed, 0, Style.NORMAL)).feeds


def open_dims(model: ir.Model) -> set[str]:
    """The dims of the inputs that a caller chooses."""
    return {_name(dim) for value in model.graph.inputs for dim in value.shape or () if not isinstance(dim, int)}


def _name(dim: Any) -> str:
    return str(getattr(dim, "value", None) or "?")


def input_names(path: str) -> list[str]:
    """The inputs that have no default."""
    graph = io.load(path).graph
    return [value.name or "" for value in graph.inputs if value.name not in graph.initializers]


def output_names(path: str) -> list[str]:
    """The outputs in order."""
    return [value.name or "" for value in io.load(path).graph.outputs]


def distance(expected: np.ndarray, got: np.ndarray) -> float:
    """The largest difference as a share of the largest number expected; infinite for another shape or other NaN."""
    if expected.shape != got.shape:
        return float("inf")
    one, other = expected.astype(np.float64), got.astype(np.float64)
    known = ~np.isnan(one)
    if (known == np.isnan(other)).any():
        return float("inf")
    if not known.any():
        return 0.0
    one, other = one[known], other[known]
    return float(np.abs(one - other).max() / (np.abs(one).max() or 1.0))
