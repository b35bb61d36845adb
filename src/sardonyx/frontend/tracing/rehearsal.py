"""Finds the state of a module by calling it several times in a row, and whether its modes make a difference.

State can be an input and an output if it consists of tensors that are there before the first call and keep structure
and type. A number that counts calls, a tensor that the first call creates, or one that shares its memory cannot.
Calls with the state given to them must compute the same as calls in a row; then nothing else is carried between calls.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sardonyx.errors import ModelError
from sardonyx.frontend.module_state import (
    OperationMode,
    Seen,
    WriteUndo,
    fast_paths,
    is_control_flow,
    restoring_state,
    run_under_mode,
    unchanged,
)
from sardonyx.frontend.running import memory_key, memory_read, set_training
from sardonyx.frontend.tracing.adapter import ModuleCall, Path, Slot, State, eagerly, path_name, stored_values
from sardonyx.frontend.tracing.structure import Flat
from sardonyx.ir.metadata import numbered

StateMode = Literal["io", "fixed"]
MAX_CALLS = 3  # in a row; fewer if the module runs out of space for more
_PLAIN = (bool, int, float, complex, str, bytes)
_FILLS = (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_)  # overwrite their first operand
_PADDING = (
    "at padded positions the graph computes what the module does with gradients; "
    "without gradients PyTorch's fast path writes zeros there"
)
_TOLERANCE = 1e-4  # of the largest number: a kernel may round in another way for memory that is aligned in another way


class _Value(Struct, frozen=True, eq=False):
    """A stored value: its tensors by name, and everything else in it."""

    value: Any
    tensors: dict[str, Tensor]
    others: list[tuple[str, object]]

    @property
    def kinds(self) -> list[tuple[str, torch.dtype, int]]:
        """The names, types and ranks of the tensors."""
        return [(name, tensor.dtype, tensor.dim()) for name, tensor in self.tensors.items()]


def _values(module: nn.Module) -> dict[Path, _Value]:
    values: dict[Path, _Value] = {}
    for path, value in stored_values(module).items():
        flat = Flat(value, path_name(path))
        values[path] = _Value(value, {leaf.name: leaf.tensor for leaf in flat.leaves}, flat.others)
    return values


class _Row(Struct, frozen=True):
    """Calls in a row: their inputs and outputs, copies of the values that they may have changed, and what they read."""

    inputs: list[tuple[Tensor, ...]]
    outputs: list[tuple[Tensor, ...]]
    after: list[dict[Path, _Value]]
    read: set[Path]  # values that a call read before it overwrote them


class _ReadFirst(OperationMode):
    """Records which memory is read, except memory that an operation has wholly overwritten before."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        self._overwritten: set[int] = set()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note what the operation reads and overwrites, and run it."""
        if is_control_flow(func):
            return func(*run_under_mode(self, args), **kwargs)
        fills = func.overloadpacket in _FILLS and args[0].nbytes == args[0].untyped_storage().nbytes()
        returned = func._schema.returns
        is_view = bool(returned) and all(each.alias_info and not each.alias_info.is_write for each in returned)
        if not is_view:
            leaves = cast("Iterable[Any]", tree_leaves((args[1:] if fills else args, kwargs)))
            memory = {memory_key(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
            self.read |= memory - self._overwritten
        if fills:
            self._overwritten.add(memory_key(args[0]))
        return func(*args, **kwargs)


def with_state(call: ModuleCall, mode: StateMode) -> tuple[ModuleCall, tuple[str, ...]]:
    """Return the call with the module's state as inputs and outputs, and notes.

    Args:
        mode: "io", or "fixed" for the first call alone.

    Raises:
        ModelError: If the module keeps state that cannot be an input and an output.
    """
    before = _values(call.module)
    with restoring_state(call.module):  # and the random number generators
        row = _call_in_a_row(call, before)
        changed = _changed(before, row)
        slots = _carried(before, row, changed)
        later = [
            [each for slot in slots for each in after.get(slot.paths[0], before[slot.paths[0]]).tensors.values()]
            for after in row.after
        ]
        state = State(slots, later, row.inputs) if slots and mode == "io" else None
        stateful = call if state is None else call.with_state(state)
        if not changed or _computes(stateful, row):
            return stateful, ()
    carried = {path for slot in slots for path in slot.paths} if mode == "io" else set[Path]()
    suspects = [path for path in changed if path not in carried and _may_matter(path, before, row)]
    listed = ", ".join(map(path_name, suspects or changed))
    if mode == "fixed":
        return call, (f"every run is a first call, because state is fixed: {listed}",)
    raise ModelError(
        f"forward keeps state that cannot be an input and an output: {listed}",
        hint='keep it in buffers that exist before the first call, or export the first call alone: `state="fixed"`',
    )


def mode_notes(call: ModuleCall, *, training: bool) -> tuple[str, ...]:
    """Return notes on what the caller's module computes in another way than the exported one.

    Args:
        training: Whether the caller's module is in training mode.
    """
    notes = _training_note(call) if training else ()
    if not any(getattr(child, "use_nested_tensor", False) for child in call.module.modules()):
        return notes  # else torch may pack sequences without their padding when it needs no gradients
    packing = torch.ops.aten._nested_tensor_from_mask.default
    used = Seen(lambda func: func is packing)
    with contextlib.suppress(Exception), fast_paths(enabled=True), used:  # a forward may raise anything
        call.run(call.tensors)
    return (_PADDING, *notes) if used.seen else notes


def _training_note(call: ModuleCall) -> tuple[str, ...]:
    note = ("the module was in training mode, and is exported in eval mode; `training=True` exports training mode",)
    try:
        evaluated = call.run(call.tensors)
        with restoring_state(call.module):
            set_training(call.module, training=True)
            trained = call.run(call.tensors)
    except Exception:  # training mode may refuse the example, such as a batch of one
        return note
    return () if all(map(_is_close, trained, evaluated)) else note


def _call_in_a_row(call: ModuleCall, before: Mapping[Path, _Value]) -> _Row:
    """Call the module several times without restoring it in between, or once if the first call changes nothing.

    A module that does not run here (in half precision on a CPU, say) may still be exported.
    """
    row, module, held = _Row([], [], [], set()), call.module, [before]  # memory that is kept has an identity

    def run(tensors: Sequence[Tensor]) -> None:
        _seed(len(row.outputs))
        with _ReadFirst() as used:
            outputs = call.forward([tensor.clone() for tensor in tensors])
        row.inputs.append(tuple(tensors))
        row.outputs.append(tuple(output.clone() for output in outputs))
        row.read.update(
            path
            for path, value in held[-1].items()
            if not used.read.isdisjoint(map(memory_key, value.tensors.values()))
        )
        touched = _touched(module, before, undo)
        held.append({**before, **touched})
        row.after.append({  # copied
            path: _Value(None, {name: tensor.clone() for name, tensor in value.tensors.items()}, value.others)
            for path, value in touched.items()
        })  # fmt: skip

    with unchanged(module) as undo, eagerly():
        try:
            call.read = memory_read(lambda: run(call.tensors))
            for number in range(1, MAX_CALLS if row.after[0] else 0):
                varied = [  # other values that the module probably accepts: smaller, or in another order
                    each * 0.5**number if each.is_floating_point() else each.roll(number, -1) if each.dim() else each
                    for each in call.tensors
                ]
                run(varied if _accepts(call, varied) else call.tensors)
        except Exception:  # a forward may raise anything; exporters and verification report it
            return row
    if len(row.outputs) == 1:
        call.was_rehearsed(undo)
    return row


def _accepts(call: ModuleCall, tensors: Sequence[Tensor]) -> bool:
    """Return whether the module runs on these tensors in its current state, which stays."""
    try:
        call.run(tensors)
    except Exception:  # values may depend on each other
        return False
    return True


def _seed(number: int) -> None:
    torch.manual_seed(number)  # pyright: ignore[reportUnknownMemberType]  # torch's own types have gaps


def _touched(module: nn.Module, before: Mapping[Path, _Value], undo: WriteUndo) -> dict[Path, _Value]:
    """Return the values that were replaced, written to or created, and None for those that were deleted."""
    now = _values(module)
    for path in before.keys() - now.keys():
        now[path] = _Value(None, {}, [])
    return {
        path: value
        for path, value in now.items()
        if (was := before.get(path)) is None
        or list(was.tensors) != list(value.tensors)
        or any(tensor is not was.tensors[name] for name, tensor in value.tensors.items())
        or not _are_equal(was.others, value.others)
        or any(undo.covers(tensor) for tensor in value.tensors.values())
    }


def _are_equal(a: Sequence[tuple[str, object]], b: Sequence[tuple[str, object]]) -> bool:
    return len(a) == len(b) and all(
        name == other and (value is after or (isinstance(value, _PLAIN) and value == after))
        for (name, value), (other, after) in zip(a, b, strict=True)
    )


def _changed(before: Mapping[Path, _Value], row: _Row) -> list[Path]:
    """Return the values that differ after some call, in order of the module; the module is restored by now."""

    def differs(path: Path, after: _Value) -> bool:
        was = before.get(path) or _Value(None, {}, [])
        if after.kinds != was.kinds or not _are_equal(was.others, after.others):
            return True
        return any(not _is_equal(tensor, after.tensors[name]) for name, tensor in was.tensors.items())

    changed = {path for after in row.after for path, value in after.items() if differs(path, value)}
    created = sorted(changed - before.keys(), key=path_name)
    return [*(path for path in before if path in changed), *created]


def _may_matter(path: Path, before: Mapping[Path, _Value], row: _Row) -> bool:
    """Return whether a changed value may matter to the next call: not tensors never read, nor computed only once."""
    first, *later = [after[path] for after in row.after if path in after]
    if not first.tensors:
        return True
    pairs = (zip(first.tensors.values(), value.tensors.values(), strict=False) for value in later)
    once = path not in before and all(_is_equal(a, b) for row_pairs in pairs for a, b in row_pairs)
    return path in row.read and not once


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _carried(before: Mapping[Path, _Value], row: _Row, changed: Iterable[Path]) -> list[Slot]:
    """Return the changed values that can be inputs and outputs, with all of their paths; not those never read."""
    holders: defaultdict[int, set[int]] = defaultdict(set)  # memory -> values with a tensor in it
    paths: defaultdict[int, list[Path]] = defaultdict(list)  # value -> its paths
    for path, value in before.items():
        paths[id(value.value)].append(path)
        for tensor in value.tensors.values():
            holders[memory_key(tensor)].add(id(value.value))

    def is_kept(path: Path) -> bool:
        """Return whether a value has the same structure after every call."""
        after = [values[path] for values in row.after if path in values]
        was = before.get(path)
        return was is not None and all(
            value.kinds == was.kinds and _are_equal(was.others, value.others) for value in after
        )

    def is_alone(value: _Value) -> bool:
        return all(len(holders[memory_key(tensor)]) == 1 for tensor in value.tensors.values())

    kept = {path for path in row.read.intersection(changed) if is_kept(path) and is_alone(before[path])}
    slots: dict[int, Slot] = {}
    for path in before:
        value = before[path].value
        if path in kept and kept.issuperset(paths[id(value)]):
            slots[id(value)] = Slot(tuple(paths[id(value)]), value)
    return list(slots.values())


def _computes(call: ModuleCall, row: _Row) -> bool:
    """Return whether single calls, with the state before them, compute the same as the calls in a row."""
    state = call.state
    for number, (inputs, expected) in enumerate(zip(row.inputs, row.outputs, strict=True)):
        before, after = (state.steps[number : number + 2]) if state is not None else ([], [])
        _seed(number)
        try:
            outputs = call.run([*inputs, *before])
        except Exception:  # a forward may raise anything
            return False
        pairs = zip(outputs, (*expected, *after), strict=True)
        if not all(_is_close(a, b) for a, b in pairs):
            return False
    return True


def _is_close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not b.numel() or not b.is_floating_point():
        return _is_equal(a, b)
    scale = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)


class CallsInARow:
    """Several calls of a module with state, one after another, as one call: the reference for a graph in a row."""

    def __init__(self, call: ModuleCall) -> None:
        assert call.state is not None
        self._call, self.module, self.state = call, call.module, call.state
        self.inputs = [numbered(name, number) for number in range(self.state.calls) for name in call.arguments]
        self.tensors = tuple(tensor for tensors in self.state.inputs for tensor in tensors)

    def with_module(self, module: nn.Module) -> CallsInARow:
        """Return the same calls of another module."""
        return CallsInARow(self._call.with_module(module))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs of all calls, and the state after the last; inputs and state are unchanged."""
        call, size, outputs = self._call, len(self._call.arguments), list[Tensor]()
        doubled = any(weight.dtype == torch.float64 for weight in self.module.parameters())
        first = [each.double() if doubled and each.is_floating_point() else each for each in self.state.steps[0]]
        held = self.state.held(self.module, first)  # state outside buffers is not widened with the module
        with unchanged(self.module), eagerly(), held:
            for number in range(self.state.calls):
                row = tensors[number * size : (number + 1) * size]
                outputs += [output.clone() for output in call.forward([tensor.clone() for tensor in row])]
            return (*outputs, *(tensor.clone() for tensor in self.state.read(self.module)))
