"""Sizes that follow from a graph: symbolic shapes, and the contents of the small integer tensors that hold sizes.

`expr` is the algebra, `engine` asks and remembers, `operators` and `views` say what each operator does to shapes,
`contents` what it does to sizes held in tensors, `dtypes` to element types, and `standard` asks onnx about the rest.
"""

from sardonyx.graph.shapes.contents import COMPUTES_SIZES
from sardonyx.graph.shapes.engine import INTEGERS, Contents, Shape, Shapes
from sardonyx.graph.shapes.expr import Expr, Size

__all__ = ["COMPUTES_SIZES", "INTEGERS", "Contents", "Expr", "Shape", "Shapes", "Size"]
