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

from sardonyx.common.temporary import temporary_folder
from sardonyx.ir.facts import Facts
from sardonyx.ir.scopes import operator
from sardonyx.ir.storage import Array
from sardonyx.runtime import Feeds
from sardonyx.runtime.observe import Observed
from sardonyx.verbs.quantize.recipe import PRODUCTS, Product, Reversed, is_large, matrix_product
from sardonyx.verbs.quantize.scales import Moments
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
    observed = _observed(source.model, group)
    with Subject(observed.model).session(threads=threads, optimize=True) as engine:
        for feeds in samples:
            results = [np.asarray(value) for value in observed.split(engine.run(feeds))[1]]
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


def _observed(source: ir.Model, group: Mapping[str, int]) -> Observed:
    """Return the source with xᵀx and the number of rows of each activation as additional outputs."""
    observed = Observed(source.clone())
    for name, size in group.items():
        rows = observed.compute("Reshape", observed.value(name), observed.constant(np.array([-1, size])))
        square = observed.compute("MatMul", observed.compute("Transpose", rows, perm=[1, 0]), rows)
        observed.add(square, ir.DataType.FLOAT, [size, size])
        observed.add(observed.compute("Shape", rows), ir.DataType.INT64, [2])
    observed.remove_unused()
    return observed
