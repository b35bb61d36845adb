"""Definitions agree with the node cases of the standard, and those of ONNX Runtime's operators with its kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from backend.cases import Case, node_cases
from exact.evaluation import numbers, same, value
from sardonyx import runtime
from sardonyx.ir.exact import Undecided
from sardonyx.ir.exact.evaluate import Evaluator

# Their expected values are rounded: to whole numbers of a step, or to four digits.
ROUNDED = (
    "test_dynamicquantizelinear",
    "test_mod_float_edge_cases",
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
)
DECIDED = 346  # kinds of cases; the others have operators, attributes or types that have no definition


def check(chosen: Sequence[Case]) -> int:
    """Evaluate cases and return how many have a definition; all of these must agree."""
    decided, wrong = 0, list[str]()
    for case in chosen:
        for feeds, expected in case.data:
            try:
                results = Evaluator(case.model, numbers()).run({name: value(array) for name, array in feeds.items()})
            except Undecided:
                continue
            decided += 1
            if not all(map(same, expected, results)):
                wrong.append(case.name)
    assert not wrong
    return decided


def kind(case: Case) -> tuple[object, ...]:
    """The operator of a case with its version and which attributes and operands it has."""
    node = case.model.graph.node[0]
    return node.op_type, case.model.opset_import[0].version, *sorted(a.name for a in node.attribute), len(node.input)


def elements(case: Case) -> int:
    """How many numbers it takes and returns."""
    arrays = (a for feeds, expected in case.data for a in (*feeds.values(), *expected))
    return sum(a.size for a in arrays if isinstance(a, np.ndarray))


def known_cases() -> list[Case]:
    """The node cases, small ones first."""
    return sorted((case for case in node_cases() if not case.name.startswith(ROUNDED)), key=elements)


def test_one_case_of_each_kind_agrees() -> None:
    kinds: dict[tuple[object, ...], list[Case]] = {}
    for case in known_cases():
        if "expanded" not in case.name:
            kinds.setdefault(kind(case), []).append(case)
    assert sum(any(check([case]) for case in cases) for cases in kinds.values()) >= DECIDED


@pytest.mark.campaign
def test_all_node_cases_agree() -> None:
    assert check(known_cases()) >= 1440


CONTRIB = {
    "FusedConv": '<pads = [1, 1, 1, 1], activation = "Relu"> (image, kernel, channels, image)',
    "FusedConv, HardSigmoid": '<activation = "HardSigmoid", activation_params = [0.3, 0.4]> (image, kernel)',
    "FusedConv, LeakyRelu": '<activation = "LeakyRelu", activation_params = [0.1]> (image, kernel, channels)',
    "FusedGemm": '<transB = 1, alpha = 0.5, activation = "Tanh"> (matrix, matrix, row)',
    "FusedMatMul": "<transB = 1, alpha = 0.25> (matrix, matrix)",
    "BiasGelu": "(states, row)",
    "FastGelu": "(states, row)",
    "QuickGelu": "<alpha = 1.5> (states)",
    "SkipLayerNormalization": "<epsilon = 0.01> (states, states2, row, row2, row)",
    "SkipSimplifiedLayerNormalization": "<epsilon = 0.01> (states, states2, row)",
    "Attention": "<num_heads = 2> (states, packed, biases, , , mask)",
}
SHAPES = {
    "image": (1, 3, 5, 5), "kernel": (3, 3, 3, 3), "channels": (3,), "matrix": (4, 4), "row": (4,), "row2": (4,),
    "states": (2, 3, 4), "states2": (2, 3, 4), "packed": (4, 12), "biases": (12,), "mask": (2, 1, 3, 3),
}  # fmt: skip


@pytest.mark.parametrize("form", CONTRIB)
def test_an_operator_of_the_runtime_agrees_with_its_kernel(form: str) -> None:
    rng = np.random.default_rng(0)
    text = CONTRIB[form]
    used = [name for name in SHAPES if name in text.replace("(", " ").replace(")", " ").replace(",", " ").split()]
    feeds = {name: rng.standard_normal(SHAPES[name]).astype(np.float32) for name in used}
    inputs = ", ".join(f"float{list(SHAPES[name])} {name}" for name in used)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g ({inputs}) => (float[?] y)'
        f"{{ y = com.microsoft.{form.split(',')[0]} {text} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (expected,) = runtime.Session(model).run(feeds)
    (result,) = Evaluator(model, numbers()).run({name: value(array) for name, array in feeds.items()})
    assert same(expected, result)
