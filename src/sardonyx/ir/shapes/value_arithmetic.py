"""Rules for arithmetic, comparisons and selections on small tensors that hold sizes, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from sardonyx.ir.scopes import operand
from sardonyx.ir.shapes import expr
from sardonyx.ir.shapes.attributes import attributes, number
from sardonyx.ir.shapes.expr import Size
from sardonyx.ir.shapes.queries import Contents, ShapeQueries

Rule = Callable[[ir.Node, ShapeQueries], Contents | None]
Maybe = Size | None
_DOUBLE = 2**53  # double precision represents every integer up to this
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _broadcast_operands(node: ir.Node, ask: ShapeQueries) -> list[Contents] | None:
    """Return the contents of the operands, scalars repeated to the common length; None if unknown."""
    parts: list[Contents] = []
    count = 1
    for value in node.inputs:
        part = ask.contents(value)
        if part is None:
            return None
        parts.append(part)
        count = max(count, len(part))
    if any(len(part) not in (1, count) for part in parts):
        return None
    return [part * count if len(part) == 1 else part for part in parts]


def _combined(combine: Callable[[Size, Size], Maybe]) -> Rule:
    """Return the rule that applies `combine` element by element, over two or more operands."""

    def rule(node: ir.Node, ask: ShapeQueries) -> Contents | None:
        operands = _broadcast_operands(node, ask)
        if operands is None or len(operands) < 2:
            return None
        result = operands[0]
        for part in operands[1:]:
            pairs = zip(result, part, strict=True)
            result = tuple([None if one is None or other is None else combine(one, other) for one, other in pairs])
        return result

    return rule


def _quotient(one: Size, other: Size) -> Maybe:
    """Return the quotient of integers, which ONNX rounds towards zero: down if both are non-negative."""
    if isinstance(one, int) and isinstance(other, int) and other:
        whole = abs(one) // abs(other)
        return whole if (one < 0) == (other < 0) else -whole
    return expr.floor_quotient(one, other) if other != 0 and expr.at_least(one, 0) and expr.at_least(other, 0) else None


def _rounded_down(one: Size, other: Size) -> Maybe:
    return expr.floor_quotient(one, other) if expr.at_least(other, 1) else None


def _rounded_up(one: Size, other: Size) -> Maybe:
    down = _rounded_down(expr.multiply(one, -1), other)
    return None if down is None else expr.multiply(down, -1)


def _float_quotient(one: Size, other: Size) -> Maybe:
    """Return the quotient of floats if it is exact; a float division by zero is not an error."""
    return expr.exact_quotient(one, other) if _is_never_zero(other) else None


def _is_never_zero(size: Size) -> bool:
    return size != 0 if isinstance(size, int) else expr.at_least(size, 1)


_whole_quotients, _float_quotients = _combined(_quotient), _combined(_float_quotient)


def _div(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    return (_float_quotients if ask.dtype(node.inputs[0]) in _FLOATS else _whole_quotients)(node, ask)


def _rounded(rounding: Callable[[Size, Size], Maybe]) -> Rule:
    """Return the rule for Floor or Ceil, which rounds a Div of floats that hold integers."""
    quotients = _combined(rounding)

    def rule(node: ir.Node, ask: ShapeQueries) -> Contents | None:
        value = node.inputs[0]
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type == "Div" and not producer.domain:
            return quotients(producer, ask)
        return ask.contents(value)

    return rule


def _positive_remainder(one: Size, other: Size) -> Maybe:
    return expr.remainder(one, other) if other != 0 and expr.at_least(other, 0) else None


def _remainder_of_positive(one: Size, other: Size) -> Maybe:
    """Return the remainder of a non-negative dividend, which runtimes compute in double precision."""
    if expr.magnitude(one) > _DOUBLE or expr.magnitude(other) > _DOUBLE:
        return None
    return _positive_remainder(one, other) if expr.at_least(one, 0) else None


def _float_remainder(one: Size, other: Size) -> Maybe:
    return _remainder_of_positive(one, other) if expr.at_least(other, 1) else None


_by_divisor, _by_dividend = _combined(_positive_remainder), _combined(_remainder_of_positive)
_of_floats = _combined(_float_remainder)


def _mod(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    """Return the remainder with the sign of the divisor, or of the dividend if `fmod` is set."""
    if ask.dtype(node.inputs[0]) in _FLOATS:
        return _of_floats(node, ask)
    return (_by_dividend if number(node, "fmod", 0) else _by_divisor)(node, ask)


def _power(one: Size, other: Size) -> Maybe:
    return expr.product([one] * other) if isinstance(other, int) and 0 <= other <= 3 else None


def _clip(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    if contents is None or "min" in attributes(node) or "max" in attributes(node):
        return None
    for index, bound in ((1, expr.larger), (2, expr.smaller)):
        if operand(node, index) is not None:
            (limit,) = ask.contents(operand(node, index)) or (None,)
            contents = tuple([None if item is None or limit is None else bound(item, limit) for item in contents])
    return contents


def _truth(test: Callable[[Size, Size], bool | None]) -> Callable[[Size, Size], Maybe]:
    def truth(one: Size, other: Size) -> Maybe:
        answer = test(one, other)
        return None if answer is None else int(answer)

    return truth


def _negated(test: Callable[[Size, Size], bool | None]) -> Callable[[Size, Size], bool | None]:
    def negation(one: Size, other: Size) -> bool | None:
        answer = test(one, other)
        return None if answer is None else not answer

    return negation


def _greater(one: Size, other: Size) -> bool | None:
    return expr.less(other, one)


def _not(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    return None if contents is None else tuple(1 - item if isinstance(item, int) else None for item in contents)


def _both(one: Size, other: Size) -> Maybe:
    return int(bool(one) and bool(other)) if isinstance(one, int) and isinstance(other, int) else None


def _either(one: Size, other: Size) -> Maybe:
    return int(bool(one) or bool(other)) if isinstance(one, int) and isinstance(other, int) else None


def _negative(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    return None if contents is None else tuple(None if item is None else expr.multiply(item, -1) for item in contents)


def _abs(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    contents = ask.contents(node.inputs[0])
    if contents is None:
        return None
    return tuple(item if item is not None and expr.at_least(item, 0) else None for item in contents)


def _where(node: ir.Node, ask: ShapeQueries) -> Contents | None:
    operands = _broadcast_operands(node, ask)
    if operands is None:
        return None
    return tuple((one if condition else other) if isinstance(condition, int) else _agreed(one, other)
                 for condition, one, other in zip(*operands, strict=True))  # fmt: skip


def _agreed(one: Maybe, other: Maybe) -> Maybe:
    return one if one is not None and one == other else None


RULES: Mapping[str, Rule] = {
    "Where": _where,
    "Add": _combined(expr.add),
    "Sum": _combined(expr.add),
    "Sub": _combined(expr.subtract),
    "Mul": _combined(expr.multiply),
    "Max": _combined(expr.larger),
    "Min": _combined(expr.smaller),
    "Mod": _mod,
    "Div": _div,
    "Floor": _rounded(_rounded_down),
    "Ceil": _rounded(_rounded_up),
    "Pow": _combined(_power),
    "Clip": _clip,
    "Equal": _combined(_truth(expr.equal)),
    "Less": _combined(_truth(expr.less)),
    "Greater": _combined(_truth(_greater)),
    "LessOrEqual": _combined(_truth(_negated(_greater))),
    "GreaterOrEqual": _combined(_truth(_negated(expr.less))),
    "Not": _not,
    "And": _combined(_both),
    "Or": _combined(_either),
    "Neg": _negative,
    "Abs": _abs,
}
