"""Where knowledge comes from: what a file declares, and the makers of a value in the order they must be asked."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import onnx_ir as ir

from sardonyx.graph.shapes import expr
from sardonyx.graph.shapes.ask import Typed
from sardonyx.graph.shapes.expr import Expr, Size


def is_tensor(value: ir.Value) -> bool:
    """Whether it may be one: sequences and optional values have an element type and a shape in the file too."""
    return value.type is None or isinstance(value.type, ir.TensorType)


def declared_type(value: ir.Value, unknown: Callable[[], Expr]) -> Typed:
    """What the file says, each dim without a name being its own."""
    if not is_tensor(value):
        return None, None
    if value.shape is None:
        return value.dtype, None
    dims: list[Size] = []
    for dim in value.shape:
        if isinstance(dim, int) and dim >= 0:  # some writers put -1 for "any"
            dims.append(dim)
        elif isinstance(dim, int) or not dim.value:
            dims.append(unknown())
        else:
            dims.append(_sum(str(dim.value), value) or expr.symbol(str(dim.value)))
    return value.dtype, tuple(dims)


def _sum(text: str, value: ir.Value) -> Size | None:
    """`past + new` on a graph's input, where both are dims of its inputs: exporters declare a mask's length so."""
    terms = [term.strip() for term in text.split("+")]
    if len(terms) < 2 or not value.is_graph_input() or value.graph is None:
        return None
    shapes = [each.shape for each in value.graph.inputs if each.shape is not None]
    names = {dim.value for shape in shapes for dim in shape if not isinstance(dim, int)}
    if not all(term.isdecimal() or (term.isidentifier() and term in names) for term in terms):
        return None
    return expr.total(int(term) if term.isdecimal() else expr.symbol(term) for term in terms)


def makers_first(value: ir.Value, known: Container[ir.Value]) -> Iterator[ir.Value]:
    """What a value is made from and is not known, from the far end, so that no question about it goes deep."""
    path, met = [value], {value}
    while path:
        node = path[-1].producer()
        missing = [
            made
            for made in (() if node is None else node.inputs)
            if made is not None and made not in known and made not in met and made.producer() is not None
        ]
        if missing:
            met.update(missing)
            path.extend(missing)
        else:
            made = path.pop()
            if made is not value:
                yield made
