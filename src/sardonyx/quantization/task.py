"""What the outputs of a model are (scores of classes, embeddings, or other numbers), and the budget that follows.

The graph says which outputs are normalized: by Softmax to probabilities, or by their norm to embeddings. The last
product of a network gives either logits or an embedding; the numbers tell them apart, because the largest logit of a
trained classifier stands out among the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.ir.facts import Facts
from sardonyx.ir.ops import ALL_CONVOLUTIONS, ALL_PRODUCTS, SOFTMAXES
from sardonyx.ir.scopes import operand
from sardonyx.ir.storage import Array

Role = Literal["classes", "embeddings", "numbers"]
_TOP1, _CLASSES_LOSS, _COSINE, _LOSS = "top1>=0.99", "relative_l2<=0.05", "cosine>=0.999", "relative_l2<=0.01"
_KEEP_ROWS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_INDICES = frozenset({"ArgMax", "TopK"})
_NORMS = frozenset({"ReduceL2", "Sqrt"})
_BEFORE_NORMS = frozenset({"Add", "Clip", "Expand", "Max"})  # between a norm and the division by it
_LONGEST_CHAIN = 8
_MOST = 1 << 17  # numbers of one output of one sample that are looked at
_EMBEDDING = 64  # numbers of a row of an embedding, at least
_STANDS_OUT = 1.5  # the gap between the two largest numbers of a row, relative to that of normally distributed ones


class Task(Struct, frozen=True):
    """The default budget of a model, why it is the one, and the outputs whose rows are scores of classes."""

    limits: tuple[str, ...]
    reason: str
    classes: frozenset[str]


def find_task(model: ir.Model, outputs: Iterable[Mapping[str, Array]]) -> Task:
    """Return the task of a model, given its outputs on some samples."""
    facts = Facts(model)
    facts.infer()
    rows: dict[str, list[Array]] = {}
    for sample in outputs:
        for name, array in sample.items():
            if array.dtype.kind == "f" and array.ndim and array.shape[-1] > 1 and array.size:
                kept = array.reshape(-1, array.shape[-1])
                most = max(1, _MOST // array.shape[-1])
                rows.setdefault(name, []).append(kept[:: -(-len(kept) // most)].astype(np.float32))
    outputs_of = {value.name or "": value for value in model.graph.outputs}
    floats = {name: value for name, value in outputs_of.items() if _is_float(value, facts)}
    if not floats:
        names = list(outputs_of)
        return Task((_TOP1,), f"{_list(names)} are integers, which are equal or not", frozenset(names))
    return _task({name: _role(value, facts, rows.get(name, ())) for name, value in outputs_of.items()})


def _task(roles: Mapping[str, Role]) -> Task:
    named = {role: [name for name, each in roles.items() if each == role] for role in ("classes", "embeddings")}
    classes = frozenset(named["classes"])
    if len(classes) == len(roles):
        return Task((_TOP1, _CLASSES_LOSS), f"rows of {_list(named['classes'])} are scores of classes", classes)
    if len(named["embeddings"]) == len(roles):
        return Task((_COSINE,), f"rows of {_list(named['embeddings'])} are embeddings", classes)
    if classes:
        return Task((_LOSS, _TOP1), f"rows of {_list(named['classes'])} are scores of classes, others are not", classes)
    return Task((_LOSS,), "the outputs are neither scores of classes nor embeddings", classes)


def _is_float(value: ir.Value, facts: Facts) -> bool:
    dtype = facts.dtype(value)
    return dtype is None or dtype.is_floating_point()


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names[:2])) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _role(value: ir.Value, facts: Facts, rows: Sequence[Array]) -> Role:
    source = _computed(value, facts)
    node = source.producer()
    if node is not None and node.op_type in _INDICES:
        return "classes"
    if node is not None and node.op_type in SOFTMAXES:
        rank = facts.rank(source)
        axis = node.attributes.get_int("axis", -1 if facts.opset(node) >= 13 else 1)
        return "classes" if axis == -1 or (rank is not None and axis == rank - 1) else "numbers"
    if node is not None and (node.op_type == "LpNormalization" or _is_divided_by_norm(node)):
        return "embeddings"
    if _is_last_product(node, facts) and _stand_out(rows):
        return "classes"
    shape = facts.shape(value)
    width = None if shape is None or len(shape) != 2 else shape[-1]
    return "embeddings" if isinstance(width, int) and width >= _EMBEDDING else "numbers"


def _computed(value: ir.Value, facts: Facts) -> ir.Value:
    """Return what the rows of a value are copied from."""
    for _ in range(_LONGEST_CHAIN):
        node = value.producer()
        inner = None if node is None or node.op_type not in _KEEP_ROWS else operand(node, 0)
        if inner is None:
            break
        outer_shape, inner_shape = facts.shape(value), facts.shape(inner)
        if not outer_shape or not inner_shape or outer_shape[-1] != inner_shape[-1]:
            break
        value = inner
    return value


def _is_divided_by_norm(node: ir.Node) -> bool:
    """Return whether a node is x / |x|, where the norm may be clipped and expanded."""
    if node.op_type != "Div":
        return False
    value = operand(node, 1)
    for _ in range(_LONGEST_CHAIN):
        producer = None if value is None else value.producer()
        if producer is None:
            return False
        if producer.op_type in _NORMS:
            return True
        if producer.op_type not in _BEFORE_NORMS:
            return False
        value = operand(producer, 0)
    return False


def _is_last_product(node: ir.Node | None, facts: Facts) -> bool:
    """Return whether a node is a product with a constant weight, or adds a constant to one."""
    if node is not None and node.op_type == "Add":
        others = [value for value in node.inputs if facts.tensor(value) is None]
        node = others[0].producer() if len(others) == 1 and others[0] is not None else None
    if node is None or node.op_type not in ALL_PRODUCTS | ALL_CONVOLUTIONS:
        return False
    weight = operand(node, 1)
    producer = None if weight is None else weight.producer()
    if producer is not None and producer.op_type == "Transpose":
        weight = operand(producer, 0)
    return facts.tensor(weight) is not None


def _stand_out(samples: Sequence[Array]) -> bool:
    """Return whether the largest number of most rows is further from the next than among normal numbers.

    What all rows have in common is left out: the bias of a product can be larger than what is added to it.
    """
    if not samples:
        return False
    rows = np.concatenate(samples)
    rows = rows[np.isfinite(rows).all(-1)]
    rows = rows - rows.mean(0) if len(rows) > 1 else rows
    largest, deviation = np.partition(rows, -2, axis=-1)[:, -2:], rows.std(-1)
    usual = 1 / math.sqrt(2 * math.log(rows.shape[-1]))
    gaps = (largest[:, 1] - largest[:, 0]) / np.where(deviation > 0, deviation, 1)
    return bool(gaps.size) and float(np.median(gaps)) > _STANDS_OUT * usual
