"""A model that no runtime loads gets a message that names the node and says what to do."""

from __future__ import annotations

import onnx
import pytest

import sardonyx
from sardonyx.errors import RuntimeFailure

HEAD = '<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>'


def message_of(text: str) -> str:
    with pytest.raises(RuntimeFailure) as caught:
        sardonyx.optimize(onnx.parser.parse_model(text))
    assert caught.value.hint
    assert "\n" not in caught.value.message
    return caught.value.message


def test_custom_operators_are_named() -> None:
    text = f"{HEAD} g (float[2,3] x) => (float[2,3] y) {{ a = Relu(x) b = my.ops.Swirl(a) y = my.ops.Fold(b) }}"
    assert message_of(text).endswith("does not know: my.ops::Swirl, my.ops::Fold")


def test_functions_of_the_model_are_not_custom_operators() -> None:
    text = f"""{HEAD} g (float[2,3] x) => (float[2,3] y) {{ a = my.ops.twice(x) y = my.ops.Swirl(a) }}
        <domain: "my.ops", opset_import: ["" : 18]> twice (x) => (y) {{ y = Add(x, x) }}"""
    assert message_of(text).endswith("does not know: my.ops::Swirl")


def test_shapes_that_do_not_fit_are_named() -> None:
    text = f"{HEAD} g (float[2,3] x, float[4,5] z) => (float[2,5] y) {{ a = Relu(x) y = MatMul(a, z) }}"
    assert "MatMul 'y' cannot be computed" in message_of(text)
    assert message_of(text).endswith("a [2, 3] and z [4, 5]")


@pytest.mark.parametrize("verify", ["end", "off"])
def test_a_cycle_is_named(verify: str) -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu(x) b = Neg(a) y = Abs(b) }}")
    model.graph.node[0].input[0] = "b"
    with pytest.raises(sardonyx.SardonyxError, match="the graph of the model has a cycle: Relu a ← Neg b ← Relu a"):
        sardonyx.optimize(model, verify=verify)  # pyright: ignore[reportArgumentType]  # a parametrized literal
