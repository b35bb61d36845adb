"""Matrix products and convolutions with what follows them: a bias, a normalization, an activation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.forensics.survey import Finding, Survey
from sardonyx.passes.shared.views import VIEWS

FLAT = 2  # the rank that Gemm takes
TRIPLE = 3
CONVOLUTIONS = ("Conv", "ConvTranspose")
ACTIVATIONS = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish")


def flat_products(survey: Survey) -> Iterator[Finding]:
    """x @ W + b of a matrix x: one Gemm."""
    return (found for found in _biased(survey) if survey.facts.rank(found[0].outputs[0]) == FLAT)


def deep_products(survey: Survey) -> Iterator[Finding]:
    """x @ W + b of an x with three or more dims, which Gemm does not take as it is."""
    return (found for found in _biased(survey) if survey.facts.rank(found[0].outputs[0]) != FLAT)


def _biased(survey: Survey) -> Iterator[Finding]:
    for add in survey.of("Add"):
        for value, other in (add.inputs, reversed(add.inputs)):
            product = survey.maker(value, "MatMul")
            if product is None or not survey.fixed(other) or survey.user(product, "Add") is not add:
                continue
            if survey.fixed(product.inputs[0]) != survey.fixed(product.inputs[1]):
                yield product, add
                break


def shared_input(survey: Survey) -> Iterator[Finding]:
    """Three or more products of one value with weights, as query, key and value are."""
    groups: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for product in survey.of("MatMul", "Gemm"):
        source = survey.above(product.inputs[0], *VIEWS)
        if source is not None and survey.fixed(product.inputs[1]) and not survey.fixed(source):
            groups[source].append(product)
    return (tuple(group) for group in groups.values() if len(group) >= TRIPLE)


def normalized(survey: Survey) -> Iterator[Finding]:
    """A BatchNormalization right after the layer whose weights could hold it."""
    for norm in survey.of("BatchNormalization"):
        layer = survey.maker(norm.inputs[0], *CONVOLUTIONS, "MatMul", "Gemm")
        if layer is not None and survey.user(layer, "BatchNormalization") is norm:
            yield layer, norm


def activated(survey: Survey) -> Iterator[Finding]:
    """A convolution and the activation that alone reads it."""
    for layer in survey.of("Conv"):
        activation = survey.user(layer, *ACTIVATIONS)
        if activation is not None:
            yield layer, activation
