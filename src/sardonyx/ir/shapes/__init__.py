"""Symbolic shape inference: the shapes of all values, and the contents of small integer tensors that hold sizes.

`expr` is the algebra; `engine` applies the rules and caches the results. Rules for the shapes of outputs are in
`operators`, `movement` and `control_flow`; for sizes held in tensors in `value_propagation`. `standard` uses onnx
for all other operators.
"""

from sardonyx.ir.shapes.engine import INTEGERS, Shapes
from sardonyx.ir.shapes.expr import Expr, Size
from sardonyx.ir.shapes.node_view import Contents, Shape
from sardonyx.ir.shapes.value_propagation import COMPUTES_SIZES

__all__ = ["COMPUTES_SIZES", "INTEGERS", "Contents", "Expr", "Shape", "Shapes", "Size"]
