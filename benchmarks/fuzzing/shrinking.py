"""Reduces a failing model to a few nodes, and finds the pass without which it does not fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzzing import judging, running
from fuzzing.draft import free_names
from fuzzing.judging import Finding
from fuzzing.running import Feed


@dataclass(frozen=True)
class Case:
    """A model, an input, and what is wrong with the result."""

    model: onnx.ModelProto
    feed: Feed
    finding: Finding


Fails = Callable[[onnx.ModelProto, Feed], Finding | None]


def fails_like(finding: Finding, **options: Any) -> Fails:
    """Whether a model has a finding of the same kind with the same setting."""

    def fails(model: onnx.ModelProto, feed: Feed) -> Finding | None:
        try:
            source = judging.Source(model, [(finding.feed_name, feed)])
        except running.Failed:
            return None
        if not source.answers:
            return None
        found = judging.judge(source, [finding.setting], **options).findings
        return next((each for each in found if each.kind == finding.kind), None)

    return fails


def responsible(case: Case) -> tuple[str, ...]:
    """The passes each of which, left out, mends the result."""
    fired = [name for name in case.finding.fired if name in judging.NAMES]
    return tuple(name for name in fired if fails_like(case.finding, skip=[name])(case.model, case.feed) is None)


def shrunk(case: Case, fails: Fails | None = None, seconds: float = 10.0) -> Case:
    """The case with as few nodes, outputs and inputs as the failure needs."""
    fails = fails or fails_like(case.finding)
    deadline = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for step in STEPS:
            for model, feed in step(case):
                if time.monotonic() > deadline:
                    return case
                pruned, kept = _pruned(model, feed)
                if _size(pruned) >= _size(case.model):
                    continue
                finding = fails(pruned, kept)
                if finding is not None:
                    case, progress = Case(pruned, kept, replace(finding, feed=kept)), True
                    break
    return case


def _size(model: onnx.ModelProto) -> tuple[int, int, int, int]:
    """Smaller in this order is simpler: nodes, outputs, inputs, bytes."""
    return _nodes(model.graph), len(model.graph.output), len(model.graph.input), model.ByteSize()


def _nodes(graph: onnx.GraphProto) -> int:
    inside = sum(_nodes(a.g) for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    return len(graph.node) + inside


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _pruned(model: onnx.ModelProto, feed: Feed) -> tuple[onnx.ModelProto, Feed]:
    """Without nodes, constants and inputs that no output needs, and without what is declared of inner values."""
    graph = model.graph
    needed = {each.name for each in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(free_names(node))
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for field in (graph.initializer, graph.input):
        for index in reversed(range(len(field))):
            if field[index].name not in needed:
                del field[index]
    called = {node.op_type for node in graph.node}
    for index in reversed(range(len(model.functions))):
        if model.functions[index].name not in called:
            del model.functions[index]
    names = {each.name for each in graph.input}
    return model, {name: array for name, array in feed.items() if name in names}


# ---------------------------------------------------------------------------------------------- steps

Candidates = Iterator[tuple[onnx.ModelProto, Feed]]


def _fewer_outputs(case: Case) -> Candidates:
    for kept in range(len(case.model.graph.output)):
        model = _copy(case.model)
        info = onnx.ValueInfoProto.FromString(model.graph.output[kept].SerializeToString())
        del model.graph.output[:]
        model.graph.output.append(info)
        yield model, case.feed
    for dropped in range(len(case.model.graph.output)):
        model = _copy(case.model)
        del model.graph.output[dropped]
        if model.graph.output:
            yield model, case.feed


def _earlier_output(case: Case) -> Candidates:
    """One inner value is the only output."""
    made = {name for node in case.model.graph.node for name in node.output}
    for name, array in running.values(case.model, case.feed).items():
        if name not in made:
            continue
        model = _copy(case.model)
        del model.graph.output[:]
        model.graph.output.append(_info(name, array, shaped=False))
        yield model, case.feed


def _cut(case: Case) -> Candidates:
    """What a node makes becomes an input."""
    values = running.values(case.model, case.feed)
    for index in reversed(range(len(case.model.graph.node))):
        made = [name for name in case.model.graph.node[index].output if name]
        if not made or any(name not in values or isinstance(values[name], list) for name in made):
            continue
        if any(each.name in made for each in case.model.graph.output):
            continue
        for shaped in (False, True):
            model = _copy(case.model)
            del model.graph.node[index]
            model.graph.input.extend(_info(name, values[name], shaped=shaped) for name in made)
            yield model, {**case.feed, **{name: values[name] for name in made}}


def _info(name: str, array: Any, *, shaped: bool) -> onnx.ValueInfoProto:
    kind = running.type_of(array)
    if not shaped and kind.HasField("tensor_type"):
        dims = [f"{name}_{axis}" for axis in range(array.ndim)]
        kind = helper.make_tensor_type_proto(kind.tensor_type.elem_type, dims)
    return helper.make_value_info(name, kind)


def _bypassed(case: Case) -> Candidates:
    """A node's consumers use one of its operands instead."""
    for index, node in enumerate(case.model.graph.node):
        for operand in dict.fromkeys(node.input):
            if operand and node.output[0] not in {each.name for each in case.model.graph.output}:
                model = _copy(case.model)
                del model.graph.node[index]
                _renamed(model.graph, node.output[0], operand)
                yield model, case.feed


def _renamed(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _renamed(attribute.g, old, new)
    for each in graph.output:
        if each.name == old:
            each.name = new


def _bodies(case: Case) -> Candidates:
    """A node of a body is left out."""
    for count in range(1, 40):
        model = _copy(case.model)
        if not _left_out(model.graph, [count], inside=False):
            return
        yield model, case.feed


def _left_out(graph: onnx.GraphProto, left: list[int], *, inside: bool) -> bool:
    """Remove the n-th node of a body, with its first operand in its place."""
    for index, node in enumerate(graph.node):
        if inside and node.input and node.input[0]:
            left[0] -= 1
            if left[0] == 0:
                old, new = node.output[0], node.input[0]
                del graph.node[index]
                _renamed(graph, old, new)
                return True
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH and _left_out(attribute.g, left, inside=True):
                return True
    return False


def _smaller(case: Case) -> Candidates:
    """A dynamic dimension has a smaller size."""
    symbols: dict[str, int] = {}
    for each in case.model.graph.input:
        for axis, dim in enumerate(each.type.tensor_type.shape.dim):
            if dim.dim_param and each.name in case.feed:
                symbols[dim.dim_param] = case.feed[each.name].shape[axis]
    for symbol, size in symbols.items():
        for less in range(1, min(size, 4)):
            feed = dict(case.feed)
            model = _copy(case.model)
            for each in model.graph.input:
                for axis, dim in enumerate(each.type.tensor_type.shape.dim):
                    if dim.dim_param == symbol and each.name in feed:
                        feed[each.name] = np.take(feed[each.name], range(less), axis=axis)
                        dim.dim_value = less
            for each in model.graph.output:
                if each.type.HasField("tensor_type"):
                    each.type.tensor_type.ClearField("shape")  # it may name the size that was
            yield model, feed


def _undeclared(case: Case) -> Candidates:
    """What the model declares of inner values is forgotten."""
    model = _copy(case.model)
    del model.graph.value_info[:]
    yield model, case.feed


STEPS = (_fewer_outputs, _earlier_output, _cut, _bypassed, _bodies, _undeclared, _smaller)


# ---------------------------------------------------------------------------------------------- on disk


def save(case: Case, folder: Path, text: str) -> None:
    """Write the model, its feed and a description."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model, folder / "model.onnx")
    arrays = {name: array.astype(str) if array.dtype == np.object_ else array for name, array in case.feed.items()}
    np.savez(folder / "feeds.npz", **arrays)
    (folder / "README").write_text(f"{text}\n\n{onnx.printer.to_text(case.model)}\n")
