"""What is said of one operator at given shapes, and the products that both worlds count by the same formulas.

Multiply-adds are counted as `torch.utils.flop_counter` counts them (its flops are two for each of ours): every product
over its full size, so a causal attention is not halved and padding is multiplied too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.costs.program import Kind, Value
from sardonyx.graph.shapes.expr import Size, add, multiply, product

ATTENTION_FLOPS = 6  # per score: scaled, and a softmax of five
_RECURRENT_FLOPS = {"lstm": 30, "gru": 23, "rnn": 4}


@dataclass(frozen=True, slots=True)
class Description:
    """What an operator is and costs."""

    kind: Kind
    macs: Size = 0
    other_flops: Size = 0
    known: bool = True  # False: in none of our tables, so its costs are missing and not zero


UNKNOWN = Description(Kind.OTHER, known=False)


def floating(value: Value, factor: int | Size) -> Size:
    """So many operations for each of a tensor's numbers; none where it has integers, since these are no flops."""
    return multiply(factor, value.elements) if value.dtype.startswith(("float", "bfloat", "complex")) else 0


def matrix_product(left: Value, result: Value, *, more: int = 0) -> Description:
    """A product over the last axis of `left`; `more` flops for each number that comes out (a bias is one)."""
    return matrix_product_over(left.shape[-1] if left.shape else 1, result, more=more)


def matrix_product_over(summed: Size, result: Value, *, more: int = 0) -> Description:
    """A product that sums over so many, however many axes are carried along."""
    return Description(Kind.MATMUL, multiply(summed, result.elements), floating(result, more))


def convolution(image: Value, weight: Value, result: Value, *, transposed: bool, more: int = 0) -> Description:
    """A filter laid on every place of the result, or, transposed, of the image; groups show in the weight's shape."""
    places = image if transposed else result
    return Description(Kind.CONVOLUTION, product((places.elements, *weight.shape[1:])), floating(result, more))


def attention(query: Value, key: Value, value: Value, *, mask: bool) -> Description:
    """Both products of an attention over the full lengths; queries have the heads that count."""
    return attention_of(query, query.shape[:-1], key.shape[-2], query.shape[-1], value.shape[-1], mask=mask)


def attention_of(
    query: Value, rows: Sequence[Size], keys: Size, width: Size, value_width: Size, *, mask: bool
) -> Description:
    """An attention by its sizes: `rows` are batch, heads and queries; the widths are those of one head."""
    scores = product((*rows, keys))
    flops = multiply(ATTENTION_FLOPS + mask, scores) if floating(query, 1) != 0 else 0
    return Description(Kind.ATTENTION, multiply(scores, add(width, value_width)), flops)


def recurrent(rows: Size, matrices: Sequence[Value], hidden: Size, cell: str) -> Description:
    """Every row of every step goes through all matrices; `hidden` counts the states that come out."""
    macs = product((rows, sum_of(matrices)))
    return Description(Kind.RECURRENT, macs, multiply(_RECURRENT_FLOPS[cell], hidden))


def sum_of(values: Sequence[Value]) -> Size:
    """The elements of several tensors together."""
    count: Size = 0
    for value in values:
        count = add(count, value.elements)
    return count


def einsum(equation: str, operands: Sequence[Value], result: Value) -> Description:
    """One multiply-add for each combination of all indices; more than two operands are multiplied in one go."""
    sizes: dict[str, Size] = {}
    spelled = equation.replace(" ", "").split("->")[0].split(",")
    for letters, operand in zip(spelled, operands, strict=True):
        _name_axes(letters, operand.shape, sizes)
    macs = multiply(product(tuple(sizes.values())), max(1, len(operands) - 1))
    summed = len(operands) > 1
    return Description(Kind.MATMUL if summed else Kind.REDUCTION, macs if summed else 0, 0 if summed else macs)


def _name_axes(letters: str, shape: tuple[Size, ...], sizes: dict[str, Size]) -> None:
    """Note the size of each index; the axes that an ellipsis stands for are counted from the right."""
    before, dots, after = letters.partition("...")
    hidden = len(shape) - len(before) - len(after)
    middle = [f".{hidden - place}" for place in range(hidden)] if dots else []
    for letter, size in zip([*before, *middle, *after], shape, strict=True):
        if sizes.get(letter, 1) == 1:  # an axis of one is spread over the other's
            sizes[letter] = size
