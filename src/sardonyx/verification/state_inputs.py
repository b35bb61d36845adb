"""Which inputs are what an earlier run of the model answered: past keys and values, the state of a recurrence.

Random numbers there are no state that the model could be in; a trained language model answers them with noise that
grows from layer to layer. So they are made by running the model once, from an empty or zero state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.ir.ops import CASTS, LOOKUPS, REARRANGES, SELECTS
from sardonyx.verification.interface import dims

# Not operators that repeat elements or look them up: their result is not the state itself.
_MOVES = REARRANGES | CASTS | SELECTS - LOOKUPS
# Operators that answer with a state that is an operand, continued: which operand each of their outputs continues.
_CONTINUES: dict[str, dict[int, int]] = {
    "Attention": {1: 4, 2: 5},
    "MultiHeadAttention": {1: 6, 2: 7},
    "GroupQueryAttention": {1: 3, 2: 4},
    "LSTM": {1: 5, 2: 6},
    "GRU": {1: 5},
    "RNN": {1: 5},
    "ScatterND": {0: 0},
    "ScatterElements": {0: 0},
    "TensorScatter": {0: 0},
}
_FARTHEST = 200  # values looked at on the way back from one output
_BEFORE = re.compile(r"past|prev(ious)?|in(put)?|init(ial)?|old|0$")
_AFTER = re.compile(r"present|next|new|out(put)?|n$|cur(rent)?|final")


@dataclass(frozen=True, slots=True)
class State:
    """An input that is an output of the run before."""

    name: str
    output: int  # its place among the outputs
    axis: int | None  # that grows from run to run; None where the shape stays


def find_state(model: ir.Model, inputs: Sequence[ir.Value]) -> tuple[State, ...]:
    """The state inputs of a model, each with the output that continues it."""
    found: dict[str, State] = {}
    for place, output in enumerate(model.graph.outputs):
        for value, grows in (*_continued(output), *_called_alike(output, inputs)):
            name = value.name or ""
            if name not in found and any(value is one for one in inputs) and _is_alike(value, output):
                found[name] = State(name, place, _growing_axis(value, output) if grows else None)
                break
    return tuple(found.values())


def _continued(output: ir.Value) -> Iterator[tuple[ir.Value, bool]]:
    """The values that an output is made of by joining or updating them, nearest first, and whether it may be longer."""
    queue: list[tuple[ir.Value | None, bool | None]] = [(output, None)]
    seen: set[ir.Value] = set()
    while queue and len(seen) < _FARTHEST:
        value, grows = queue.pop(0)
        if value is None or value in seen:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            if grows is not None:
                yield value, grows
            continue
        op, operand = node.op_type, _CONTINUES.get(node.op_type, {}).get(value.index() or 0)
        if operand is not None and operand < len(node.inputs):
            queue.append((node.inputs[operand], bool(grows) or op.endswith("Attention")))
        elif op == "Concat":
            queue.extend((one, True) for one in node.inputs)
        elif op in _MOVES:
            queue.append((node.inputs[0], grows))


def _called_alike(output: ir.Value, inputs: Sequence[ir.Value]) -> Iterator[tuple[ir.Value, bool]]:
    """Inputs whose names differ from the output's only in words for before and after, where the graph hides the tie."""
    name = (output.name or "").lower()
    if not _AFTER.search(name):
        return
    after = _stem(_AFTER, name)
    for value in inputs:
        before = (value.name or "").lower()
        if after in (_stem(_BEFORE, before), before) and value.producer() is None:
            yield value, dims(value) != dims(output)


def _stem(words: re.Pattern[str], name: str) -> str:
    """A name without those words: `past_key_values.0.key` and `present.0.key` are both `0key`."""
    return re.sub(r"[^a-z0-9]|key_values|kv_?cache", "", words.sub("", name.replace("key_values", "")))


def _is_alike(value: ir.Value, output: ir.Value) -> bool:
    one, other = dims(value), dims(output)
    if value.dtype is None or not value.dtype.is_floating_point():
        return False
    if output.dtype not in (value.dtype, ir.DataType.FLOAT):  # a copy that computes in float32 answers in it
        return False
    if one is None or other is None or len(one) != len(other):
        return False
    return all(a == b or not isinstance(a, int) or not isinstance(b, int) for a, b in zip(one, other, strict=True))


def _growing_axis(value: ir.Value, output: ir.Value) -> int | None:
    """The one dynamic axis on which they differ."""
    one, other = dims(value) or (), dims(output) or ()
    pairs = enumerate(zip(one, other, strict=True))
    different = [axis for axis, (a, b) in pairs if not isinstance(a, int) and (a != b or a is None)]
    return different[-1] if different else None
