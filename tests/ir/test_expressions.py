"""Expressions of constants: what is stored is the exact value, rounded once, and the nodes compute the same."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from sardonyx.ir.expressions import Expression, definition_of, known, literal
from sardonyx.ir.precision import FORMATS, Impossible, rounded, rounding_units, scaled
from sardonyx.ir.tensors import ConcatTensor, ExpressionTensor, reshaped, transposed

_D = ir.DataType
TYPES = [_D.FLOAT16, _D.BFLOAT16, _D.FLOAT, _D.DOUBLE]
numbers = st.floats(2.0**-6, 2.0**6, width=16) | st.floats(-(2.0**6), -(2.0**-6), width=16)


def leaf(values: list[float], dtype: ir.DataType) -> Expression:
    return known(ir.Tensor(np.array(values).astype(dtype.numpy()), dtype=dtype))


@st.composite
def expressions(draw: st.DrawFn, dtype: ir.DataType, depth: int = 4) -> Expression:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return leaf(draw(st.lists(numbers, min_size=3, max_size=3)), dtype)
    name = draw(st.sampled_from(("Add", "Sub", "Mul", "Div", "Neg")))
    operands = [draw(expressions(dtype, depth - 1)) for _ in range(1 if name == "Neg" else 2)]
    return Expression(name, tuple(operands))


def exact(operand: Expression | ir.TensorProtocol) -> list[Fraction]:
    if not isinstance(operand, Expression):
        return [Fraction(float(number)) for number in operand.numpy().astype(np.float64)]
    values = [exact(each) for each in operand.operands]
    match operand.op_type:
        case "Cast":
            return values[0]
        case "Neg":
            return [-a for a in values[0]]
        case name:
            apply = {"Add": Fraction.__add__, "Sub": Fraction.__sub__, "Mul": Fraction.__mul__}
            return [apply.get(name, Fraction.__truediv__)(a, b) for a, b in zip(*values, strict=True)]


def unit_of(number: Fraction, dtype: ir.DataType) -> Fraction:
    """The distance of floats around a number that is not 0."""
    exponent = math.floor(math.log2(abs(number)))
    exponent += (abs(number) >= Fraction(2) ** (exponent + 1)) - (abs(number) < Fraction(2) ** exponent)
    return max(Fraction(2) ** exponent * Fraction(2 * FORMATS[dtype].roundoff), Fraction(FORMATS[dtype].least))


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=60)
@given(data=st.data())
def test_stored_numbers_are_within_the_stated_units_of_the_exact_ones(dtype: ir.DataType, data: st.DataObject) -> None:
    expression = data.draw(expressions(dtype))
    try:
        stored, wanted = rounded(expression, dtype), exact(expression)
    except (Impossible, ZeroDivisionError):
        return
    terms = [exact(each) for each in expression.operands] if expression.op_type in ("Add", "Sub") else []
    units = rounding_units(stored)
    assert units <= 0.6 or dtype is _D.DOUBLE or not terms_are_simple(expression)
    for index, number in enumerate(stored.numpy().astype(np.float64)):
        size = max(abs(each[index]) for each in (wanted, *terms))
        if size and math.isfinite(units):
            assert abs(Fraction(float(number)) - wanted[index]) <= Fraction(units) * unit_of(size, dtype)


def terms_are_simple(expression: Expression) -> bool:
    """Whether no sum is inside, whose terms may cancel."""
    inner = [each for each in expression.operands if isinstance(each, Expression)]
    return all(each.op_type not in ("Add", "Sub") and terms_are_simple(each) for each in inner)


def test_one_number_that_is_not_rounded_once_is_seen() -> None:
    """The bound is not a constant: a sum that cancels inside makes it larger."""
    one, tiny = literal(np.array([1.0])), literal(np.array([2.0**-40 / 3]))
    assert rounding_units(rounded((one + tiny - one) * one, _D.FLOAT)) > 1.0
    assert rounding_units(rounded(tiny * one, _D.FLOAT)) < 0.51


def test_the_nodes_compute_what_is_stored() -> None:
    rng = np.random.default_rng(0)
    weight = ir.Tensor(rng.standard_normal((4, 6)).astype(np.float32), name="w")
    scale = ir.Tensor(rng.standard_normal(6).astype(np.float32), name="s")
    factor = known(scale) / (known(scale) * known(scale) + literal(np.float32(1e-5))).root()
    product = scaled(weight, factor.reshaped([1, -1]))
    view = reshaped(transposed(product, (1, 0)), (6, 2, 2))
    joined = ConcatTensor([view, view])
    named = {id(weight): "w", id(scale): "s"}
    definition = definition_of(joined)
    assert definition is not None
    nodes = definition.nodes("y", lambda tensor: named.get(id(tensor)))
    assert {name for node in nodes for name in node.input} & {"w", "s"} == {"w", "s"}
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("w", "s")]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 20)]
    )
    (computed,) = ReferenceEvaluator(model).run(None, {"w": weight.numpy(), "s": scale.numpy()})
    np.testing.assert_array_equal(computed, joined.numpy())
    np.testing.assert_array_equal(definition.numpy(), joined.numpy())
    assert 0.5 < rounding_units(product) < 0.51
    assert rounding_units(view) == 0.0  # moved, not computed


def test_large_values_are_computed_when_they_are_read() -> None:
    reads = list[int]()

    class Counted(ir.Tensor):
        def numpy(self) -> np.ndarray:
            reads.append(1)
            return super().numpy()

    weight = Counted(np.ones((8, 8), np.float32))
    product = scaled(weight, literal(np.full((1, 8), 0.5)))
    before = len(reads)
    assert isinstance(product, ExpressionTensor)
    assert product.numpy()[0, 0] == 0.5
    assert len(reads) == before + 1


def test_every_value_of_an_expression_has_its_own_name() -> None:
    """A shared operand is read twice: under a name that another node took over, it would be another value."""
    x = known(ir.Tensor(np.array([2.0, 3.0], np.float32)))
    nodes = ((x * x + x) / x).nodes("y", lambda _: None)
    outputs = [name for node in nodes for name in node.output]
    assert outputs[-1] == "y"
    assert len(set(outputs)) == len(outputs)
