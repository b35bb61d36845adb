"""Compare the interfaces of two models: the graph's inputs and outputs, which no rewrite may change."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.ir.functions import called_first
from sardonyx.ir.ops import RANDOM
from sardonyx.ir.scopes import bodies, declared_shape, values_read


def interface_changes(a: ir.Model, b: ir.Model) -> list[str]:
    """Return one line for every difference between the inputs and outputs of `a` and those of `b`."""
    changes = _value_changes("input", a.graph.inputs, b.graph.inputs)
    return changes + _value_changes("output", a.graph.outputs, b.graph.outputs)


def _value_changes(kind: str, before: Sequence[ir.Value], after: Sequence[ir.Value]) -> list[str]:
    names, new_names = [v.name for v in before], [v.name for v in after]
    if names != new_names:
        return [f"{kind}s were {_listed(names)} and are {_listed(new_names)}"]
    changes: list[str] = []
    for old, new in zip(before, after, strict=True):
        if old.type != new.type:
            changes.append(f"{kind} '{old.name}' was {old.type} and is {new.type}")
        elif declared_shape(old) != declared_shape(new):
            changes.append(f"{kind} '{old.name}' was of shape {_shape_text(old)} and is of shape {_shape_text(new)}")
    return changes


def _shape_text(value: ir.Value) -> str:
    shape = declared_shape(value)
    return "unknown" if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def _listed(names: Sequence[str | None]) -> str:
    return "(" + ", ".join(str(n) for n in names[:8]) + (", …)" if len(names) > 8 else ")")


def random_outputs(model: ir.Model) -> frozenset[str]:
    """Return the names of the graph outputs that depend on a random operator: two correct runs may differ there."""
    random_functions: set[ir.OperatorIdentifier] = set()
    for function in called_first(model):
        if any(_is_random(node, random_functions) for node in function):
            random_functions.add(function.identifier())
    if not random_functions and not any(_is_random(node, set()) for node in model.graph.all_nodes()):
        return frozenset()
    dependent: set[ir.Value] = set()
    grew = True
    while grew:
        size = len(dependent)
        for node in model.graph:
            if _is_random(node, random_functions) or any(v in dependent for v in values_read(node)):
                dependent.update(node.outputs)
        grew = len(dependent) > size
    return frozenset(v.name for v in model.graph.outputs if v in dependent and v.name is not None)


def _is_random(node: ir.Node, random_functions: set[ir.OperatorIdentifier]) -> bool:
    if node.op_identifier() in random_functions or (not node.domain and node.op_type in RANDOM):
        return True
    if node.op_type == "Dropout" and _may_train(node):
        return True
    return any(_is_random(inner, random_functions) for _, body in bodies(node) for inner in body)


def _may_train(node: ir.Node) -> bool:
    """Return whether the training_mode input of a Dropout, without which it is deterministic, may be true."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return False
    mode = ir.convenience.get_const_tensor(node.inputs[2])
    return mode is None or bool(mode.numpy().any())
