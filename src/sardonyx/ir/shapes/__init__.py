"""Sizes that follow from a graph: symbolic shapes, and the contents of the small integer tensors that hold sizes.

`terms` and `expr` are the algebra, `engine` asks and remembers. What operators do to shapes is in `operators`,
`windows`, `attention`, `views`, `picking` and `bodies`; to sizes held in tensors in `contents` and `arithmetic`; to
element types in `dtypes`. `standard` asks onnx about the rest.
"""

from sardonyx.ir.shapes.engine import INTEGERS, Shapes
from sardonyx.ir.shapes.expr import Expr, Size
from sardonyx.ir.shapes.queries import Contents, Shape
from sardonyx.ir.shapes.value_propagation import COMPUTES_SIZES

__all__ = ["COMPUTES_SIZES", "INTEGERS", "Contents", "Expr", "Shape", "Shapes", "Size"]
