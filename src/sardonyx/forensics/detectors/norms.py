"""Normalizations and activations that an exporter spelled out in arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.forensics.survey import Finding, Survey

SQUARE = 2


def layer_norms(survey: Survey) -> Iterator[Finding]:
    """(x - mean(x)) / sqrt(mean((x - mean(x))²) + eps), spelled out."""
    for found, squared in _root_mean_squares(survey):
        centred = survey.maker(survey.above(squared, "Cast"), "Sub")
        mean = None if centred is None else survey.maker(centred.inputs[1], "ReduceMean")
        if centred is not None and mean is not None and _same(survey, mean.inputs[0], centred.inputs[0]):
            yield mean, centred, *found


def rms_norms(survey: Survey) -> Iterator[Finding]:
    """x / sqrt(mean(x²) + eps), spelled out."""
    for found, squared in _root_mean_squares(survey):
        centred = survey.maker(survey.above(squared, "Cast"), "Sub")
        if centred is None or survey.maker(centred.inputs[1], "ReduceMean") is None:
            yield found


def _same(survey: Survey, one: ir.Value | None, other: ir.Value | None) -> bool:
    return survey.above(one, "Cast", "Identity") is survey.above(other, "Cast", "Identity")


def _root_mean_squares(survey: Survey) -> Iterator[tuple[Finding, ir.Value]]:
    """sqrt(mean(x²) + eps) and the x that goes in, however root and square are written."""
    for mean in survey.of("ReduceMean"):
        square = survey.maker(mean.inputs[0], "Pow", "Mul")
        added = survey.user(mean, "Add")
        root = survey.user(added, "Sqrt", "Pow")
        if square is None or added is None or root is None or not _is_square(square, survey):
            continue
        squared = square.inputs[0]
        if squared is not None:
            yield (square, mean, added, root), squared


def _is_square(node: ir.Node, survey: Survey) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    return survey.facts.scalar(node.inputs[1]) == SQUARE


def gelus(survey: Survey) -> Iterator[Finding]:
    """x * (1 + erf(x / √2)) / 2, or its form with tanh, spelled out."""
    for bend in survey.of("Erf", "Tanh"):
        added = survey.user(bend, "Add")
        product = survey.user(added, "Mul")
        if added is None or product is None:
            continue
        if any(survey.facts.scalar(value) == 1 for value in added.inputs):
            yield bend, added, product
