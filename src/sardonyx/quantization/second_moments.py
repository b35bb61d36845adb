"""Second moments of activations over samples: how the inputs of each product vary together.

For the rows x of an activation, H is the mean of xᵀx (inputs × inputs). A weight W that is rounded to Q changes the
result of its product by tr((W - Q)ᵀ H (W - Q)) on average, squared. The runtime computes xᵀx beside each activation, so
that no activation leaves it. Memory is bounded: the samples run once for each group of activations, and the results
wait in files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import operator
from sardonyx.ir.storage import Array
from sardonyx.quantization.error_compensation import Moments
from sardonyx.quantization.recipe import PRODUCTS, Product, Reversed, is_large, matrix_product
from sardonyx.runtime import Feeds
from sardonyx.temporary import temporary_folder
from sardonyx.verification.subject import Subject

_GROUP_BYTES = 1 << 26  # of the sums of one run; a larger one is a group of its own


def measure(source: Subject, samples: Sequence[Feeds], threads: int | None = None) -> dict[str, Moments]:
    """Return the second moments of the activation of every product with a constant weight, by the activation's name.

    Activations that are always zero, never finite, or too small to be squared have none.
    """
    found: dict[str, Moments] = {}
    folder = temporary_folder()  # deleted with the last of the moments
    for group in _groups(_activations(source.model)):
        for name, moments in _measured(source, group, samples, threads):
            measured = Moments(moments, folder)
            if measured.is_definite():
                found[name] = measured
    return found


def _measured(
    source: Subject, group: Mapping[str, int], samples: Iterable[Feeds], threads: int | None
) -> Iterator[tuple[str, Array]]:
    totals = {name: np.zeros((size, size), np.float32) for name, size in group.items()}
    counts = dict.fromkeys(group, 0)
    own = len(source.model.graph.outputs)
    with Subject(_model(source.model, group)).session(threads=threads, optimize=True) as engine:
        for feeds in samples:
            results = [np.asarray(value) for value in engine.run(feeds)[own:]]
            for name, square, shape in zip(group, results[::2], results[1::2], strict=True):
                if np.isfinite(square).all():
                    totals[name] += square
                    counts[name] += int(shape[0])
    for name, total in totals.items():
        if counts[name] and total.any():
            yield name, total / np.float32(counts[name])


def _activations(model: ir.Model) -> dict[str, int]:
    """Return the names of the activations of products in the main graph, and the sizes of their last axes."""
    facts = Facts(model)
    facts.infer()
    products = [matrix_product(node, facts) for node in model.graph if operator(node) in PRODUCTS]
    return {
        product.activation.name: product.matrix.rows
        for product in products
        if isinstance(product, Product)
        and not isinstance(product, Reversed)
        and product.activation.name
        and is_large(product.matrix.tensor)
        if facts.dtype(product.activation) is ir.DataType.FLOAT
    }


def _groups(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    group: dict[str, int] = {}
    for name, size in sizes.items():
        if group and sum(4 * other**2 for other in (*group.values(), size)) > _GROUP_BYTES:
            yield group
            group = {}
        group[name] = size
    if group:
        yield group


def _model(source: ir.Model, group: Mapping[str, int]) -> ir.Model:
    """Return the source with xᵀx and the number of rows of each activation as additional outputs.

    Its own outputs stay: ONNX Runtime's Attention fails if the updated cache is not used.
    """
    model = source.clone()
    graph = model.graph
    values = {value.name: value for value in (*graph.inputs, *(output for node in graph for output in node.outputs))}
    for number, (name, size) in enumerate(group.items()):
        shape = ir.Value(name=f"sardonyx_shape_{number}", const_value=ir.tensor(np.array([-1, size])))
        graph.register_initializer(shape)
        rows = ir.node("Reshape", [values[name], shape])
        columns = ir.node("Transpose", rows.outputs, {"perm": [1, 0]})
        square = ir.node("MatMul", [*columns.outputs, *rows.outputs])
        count = ir.node("Shape", rows.outputs)
        graph.extend([rows, columns, square, count])
        for node, dtype, dims in ((square, ir.DataType.FLOAT, [size, size]), (count, ir.DataType.INT64, [2])):
            output = node.outputs[0]
            output.name, output.dtype, output.shape = f"sardonyx_{node.op_type}_{number}", dtype, ir.Shape(dims)
            graph.outputs.append(output)
    RemoveUnusedNodesPass()(model)
    return model
