"""Attributes that are parameters of the enclosing function, as in `Softmax <axis = @axis>`.

Their values differ from call to call. Reading one raises `UnknownAttribute`, so that no code takes it for a number: the
engine of shapes then infers "unknown", and the driver of rewrites skips the node.
"""

from __future__ import annotations

from typing import NoReturn

import onnx_ir as ir


class UnknownAttribute(ValueError):
    """The value of an attribute was read that only a call of the function determines."""


class Parameter(ir.Attr):
    """A reference to a parameter of the enclosing function."""

    def __init__(self, name: str, parameter: str, kind: ir.AttributeType, *, doc_string: str | None = None) -> None:
        super().__init__(name, kind, None, parameter, doc_string=doc_string)

    def _unknown(self) -> NoReturn:
        raise UnknownAttribute(f"{self.name} is a parameter of the function")

    as_float = as_int = as_string = as_tensor = as_graph = _unknown
    as_floats = as_ints = as_strings = as_tensors = as_graphs = _unknown
