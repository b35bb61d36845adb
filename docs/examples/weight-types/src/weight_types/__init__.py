"""List the element types of the weights of a model.

Example:
  sardonyx weight-types model.onnx
  sardonyx weight-types model.onnx --smallest 1024 --json | jq .types

Counts the weights of each element type, and their bytes. No weight is read.

Exit: 0 done, 1 failed, 2 usage.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from sardonyx.cli.options import FORCE, MODEL, PRINTING, RECORD, Option
from sardonyx.cli.verb import Verb
from sardonyx.records.outside import OutsideRecord
from sardonyx.reporting.document import Document, Span, View, table_section
from sardonyx.reporting.formatting import name, plural, size


class WeightType(Struct, frozen=True):
    """The weights of one element type."""

    type: str
    weights: int
    bytes: int


class WeightTypes(OutsideRecord, frozen=True, tag="weight_types"):
    """The element types of the weights of a model."""

    title = "a list of weight types"  # in messages
    types: tuple[WeightType, ...]  # the most bytes first


def weight_types(model: str | Path, *, smallest: int = 0) -> WeightTypes:
    """Count the weights of a model by element type.

    Args:
        model: An ONNX file.
        smallest: Leave out weights of fewer bytes than this.
    """
    import onnx_ir  # here, since the module is also loaded for `sardonyx --help`

    counted: dict[str, tuple[int, int]] = {}
    for value in onnx_ir.load(model).graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= smallest:
            weights, octets = counted.get(tensor.dtype.name, (0, 0))
            counted[tensor.dtype.name] = weights + 1, octets + tensor.nbytes
    types = [WeightType(each, *counts) for each, counts in counted.items()]
    return WeightTypes(models=(str(model),), types=tuple(sorted(types, key=lambda one: (-one.bytes, one.type))))


def sentence(record: WeightTypes) -> str:
    """Return the result in one line."""
    return f"{plural(len(record.types), 'element type')} in the weights of {name(record.models[0])}"


def document(record: WeightTypes, view: View) -> Document:
    """Return what the command prints, and what a section of the page shows."""
    rows = [(each.type, str(each.weights), size(each.bytes)) for each in record.types]
    table = table_section("By element type", ("type", "weights", "size"), rows, most=None if view.verbose else 3)
    return Document((table,), title="Types of weights", sentence=Span(sentence(record)))


VERB = Verb(
    of=("weight_types:weight_types",),  # the function that is called, from which options take what they do not say
    options=(MODEL, Option("smallest", "BYTES", least=0), RECORD, FORCE, *PRINTING),
    returns=WeightTypes,
    document=document,
    sentence=sentence,
)
