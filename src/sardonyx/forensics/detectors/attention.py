"""Attention and what goes with it, spelled out in products and slices."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.forensics.survey import Finding, Survey

# What may stand between the scores and the Softmax: scale, mask, cap, type; and between it and the last product.
_SCORING = ("Add", "Mul", "Div", "Sub", "Where", "Cast", "Tanh", "Reshape", "Identity")
_WEIGHING = ("Cast", "Where", "Reshape", "Identity", "Dropout", "Mul")
_PARTS = ("Slice", "Split", "Gather")
_STEPS = 8


def cores(survey: Survey) -> Iterator[Finding]:
    """softmax(q @ kᵀ · scale + mask) @ v, spelled out."""
    for softmax in survey.of("Softmax"):
        above, below = _scores(softmax, survey), _weighed(softmax, survey)
        if above is not None and below is not None:
            yield *above, softmax, *below


def _scores(softmax: ir.Node, survey: Survey) -> Finding | None:
    """The nodes from the product of queries and keys to the Softmax, by the shortest way: the mask's is not one."""
    ways: list[Finding] = [(softmax,)]
    for _ in range(_STEPS):
        further: list[Finding] = []
        for way in ways:
            for value in way[0].inputs:
                maker = survey.maker(value, "MatMul", *_SCORING)
                if maker is None:
                    continue
                if _is_of_data(maker, survey):
                    return maker, *way[:-1]
                if maker.op_type != "MatMul":
                    further.append((maker, *way))
        ways = further
    return None


def _weighed(softmax: ir.Node, survey: Survey) -> Finding | None:
    """The nodes from the Softmax to the product with the values."""
    path: list[ir.Node] = []
    node: ir.Node | None = softmax
    for _ in range(_STEPS):
        readers = [] if node is None else survey.users(node, "MatMul", *_WEIGHING)
        product = next((reader for reader in readers if _is_of_data(reader, survey)), None)
        if product is not None:
            return *path, product
        node = next((reader for reader in readers if reader.op_type != "MatMul"), None)
        path += [node] if node is not None else []
    return None


def _is_of_data(node: ir.Node, survey: Survey) -> bool:
    """Whether it is a product of two things that are both computed."""
    return node.op_type == "MatMul" and not any(map(survey.fixed, node.inputs))


def rotations(survey: Survey) -> Iterator[Finding]:
    """Concat(-second half, first half), the rotation in rotary embeddings."""
    for concat in survey.of("Concat"):
        if len(concat.inputs) != 2:
            continue
        negated = survey.maker(concat.inputs[0], "Neg")
        parts = None if negated is None else (negated.inputs[0], concat.inputs[1])
        makers = [] if parts is None else [survey.maker(part, *_PARTS) for part in parts]
        if negated is None or len(makers) != 2 or makers[0] is None or makers[1] is None:
            continue
        if makers[0].inputs[0] is makers[1].inputs[0]:
            yield *dict.fromkeys((makers[0], makers[1])), negated, concat
