"""What a graph computes about itself: sizes of its tensors, and results that no input changes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.forensics.survey import Finding, Survey

_ARITHMETIC = (
    *("Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Identity", "Where", "Equal"),
    *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "ReduceProd", "ConstantOfShape", "Range", "Floor", "Ceil"),
)


def shape_chains(survey: Survey) -> Iterator[Finding]:
    """A Shape that is read at run time, and the arithmetic that follows from it alone."""
    for start in survey.of("Shape", "Size"):
        chain, edge = {start: None}, [start]
        while edge:
            readers = {use.node: None for node in edge for value in node.outputs for use in value.uses()}
            edge = [reader for reader in readers if reader not in chain and _is_arithmetic(reader, survey)]
            chain.update(dict.fromkeys(edge))
        yield tuple(chain)


def _is_arithmetic(node: ir.Node, survey: Survey) -> bool:
    """Whether a node works on sizes: a small tensor of integers, not the data."""
    if node.domain or node.op_type not in _ARITHMETIC:
        return False
    dtype = survey.facts.dtype(node.inputs[0])
    return dtype is not None and dtype.is_integer() and survey.facts.rank(node.inputs[0]) in (0, 1)


def unfolded(survey: Survey) -> Iterator[Finding]:
    """Results that are the same in every run, computed in every run: counted where they are used."""
    fixed = survey.fixed_nodes()
    for last in survey.nodes:
        if last in fixed and _is_used_elsewhere(last, survey):
            region: dict[ir.Node, None] = {last: None}
            edge: list[ir.Node] = [last]
            while edge:
                makers = {value.producer(): None for node in edge for value in node.inputs if value is not None}
                edge = [maker for maker in makers if maker is not None and maker in fixed and maker not in region]
                region.update(dict.fromkeys(edge))
            yield tuple(reversed(region))


def _is_used_elsewhere(node: ir.Node, survey: Survey) -> bool:
    fixed = survey.fixed_nodes()
    return any(value.is_graph_output() or any(use.node not in fixed for use in value.uses()) for value in node.outputs)
