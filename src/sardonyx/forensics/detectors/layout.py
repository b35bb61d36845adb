"""Operators that move data or change its type to no effect, alone or one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.forensics.survey import Finding, Survey
from sardonyx.passes.shared.views import VIEWS


def idle_transposes(survey: Survey) -> Iterator[Finding]:
    """Transposes that leave every dim where it is, or move only dims of size one."""
    return ((node,) for node in survey.of("Transpose") if _is_idle(node, survey))


def _is_idle(node: ir.Node, survey: Survey) -> bool:
    shape = survey.facts.shape(node.inputs[0])
    perm = node.attributes.get_ints("perm", None)
    if perm is None:
        perm = None if shape is None else tuple(reversed(range(len(shape))))
    if perm is None:
        return False
    moved = [axis for axis in perm if shape is None or shape[axis] != 1]
    return moved == sorted(moved)


def idle_reshapes(survey: Survey) -> Iterator[Finding]:
    """Reshapes whose result has the shape they were given."""
    return ((node,) for node in survey.of(*VIEWS) if survey.facts.same_shape(node.inputs[0], node.outputs[0]))


def idle_expands(survey: Survey) -> Iterator[Finding]:
    """Expands that repeat nothing."""
    return ((node,) for node in survey.of("Expand", "Tile") if survey.facts.same_shape(node.inputs[0], node.outputs[0]))


def reshape_chains(survey: Survey) -> Iterator[Finding]:
    """Reshape, Squeeze, Unsqueeze and Flatten one after the other."""
    return survey.chains(survey.of(*VIEWS))


def transpose_chains(survey: Survey) -> Iterator[Finding]:
    """Transpose after Transpose."""
    return survey.chains(survey.of("Transpose"))


def cast_chains(survey: Survey) -> Iterator[Finding]:
    """Cast after Cast."""
    return survey.chains(survey.of("Cast"))


def idle_casts(survey: Survey) -> Iterator[Finding]:
    """Casts to the type that the value has."""
    for node in survey.of("Cast", "CastLike"):
        have = survey.facts.dtype(node.inputs[0])
        if have is not None and have == survey.facts.dtype(node.outputs[0]):
            yield (node,)
