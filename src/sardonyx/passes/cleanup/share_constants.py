"""w, v with equal bits => w once.

Equal type, shape and bytes, so +0 and -0, and NaNs with different payloads, stay separate. A body shares with the
graphs around it if its node lets it see them (If, Loop, Scan). Never applies to graph inputs and outputs. Helps because
exporters store the same scalar, axes or table once per use, and because equal nodes are only recognised on equal
inputs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import onnx_ir as ir

from sardonyx.ir.facts import SMALL_CONSTANT_BYTES
from sardonyx.ir.ops import CONTROL_FLOW
from sardonyx.ir.scopes import Scope
from sardonyx.ir.tensors import FileTensor, SparseTensor, TransposedTensor
from sardonyx.passes.base import Accuracy, Example, Facts, ModelPass, Share

_SAMPLE_BYTES = 1 << 12  # bytes read at three places of a large constant before all of it is read
_BLOCK_BYTES = 1 << 20  # bytes read at a time


class ShareConstants(ModelPass):
    """Initializers with equal bits."""

    accuracy = Accuracy.EXACT
    example = Example(
        before="""
            (float[N, 2] x) => (float[N, 2] y)
            <float[2] w = {1.0, 2.0}, float[2] v = {1.0, 2.0}> { a = Mul(x, w)  y = Add(a, v) }
        """,
        after="<float[2] w = {1.0, 2.0}> { a = Mul(x, w)  y = Add(a, w) }",
        near_miss="<float[2] w = {0.0, 2.0}, float[2] v = {-0.0, 2.0}> { a = Mul(x, w)  y = Add(a, v) }",
    )

    def propose(self, graph: Facts) -> Iterator[Share]:
        """Propose outer graphs first, so that a body finds an equal constant there before its own."""
        scopes = tuple(graph.live_scopes())
        equals = _equals_by_value(scopes)
        for scope in scopes:
            duplicates_of: dict[ir.Value, list[ir.Value]] = defaultdict(list)
            for value in scope.graph.initializers.values():
                survivor = next((other for other in equals.get(value, ()) if _reaches(other, scope, graph)), None)
                if survivor is not None and survivor is not value:
                    duplicates_of[survivor].append(value)
            yield from (Share(tuple(duplicates), survivor) for survivor, duplicates in duplicates_of.items())


def _equals_by_value(scopes: Sequence[Scope]) -> dict[ir.Value, list[ir.Value]]:
    """Return, for constants among which some are equal, all equal ones in order."""
    values = [value for scope in scopes for value in scope.graph.initializers.values()]
    shared = [value for value in values if not (value.is_graph_input() or value.is_graph_output())]
    by_type = _groups(shared, lambda tensor: (tensor.dtype, tuple(tensor.shape.numpy())))
    return {value: equals for candidates in by_type for equals in _equal(candidates) for value in equals}


def _equal(candidates: Sequence[ir.Value]) -> Iterator[list[ir.Value]]:
    """Return groups of equal constants; a large one is read only if samples of it agree with another one."""
    for sampled in _groups(candidates, _sample):
        tensors = [value.const_value for value in sampled if value.const_value is not None]
        is_whole = isinstance(tensors[0], ir.StringTensor) or tensors[0].nbytes <= SMALL_CONSTANT_BYTES
        if is_whole or len(set(map(_place, tensors))) == 1:
            yield sampled
        else:
            yield from _groups(sampled, _digest)


def _groups(
    values: Sequence[ir.Value], key: Callable[[ir.TensorProtocol], Hashable | None]
) -> Iterator[list[ir.Value]]:
    """Return the groups of several constants with an equal key; None is not one."""
    groups: dict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in values:
        if value.const_value is not None and (group_key := key(value.const_value)) is not None:
            groups[group_key].append(value)
    return (group for group in groups.values() if len(group) > 1)


def _sample(tensor: ir.TensorProtocol) -> Hashable | None:
    """Return all of a small constant, three samples of a large one, or None if even that is expensive."""
    if isinstance(tensor, ir.StringTensor):
        return tuple(tensor.string_data())
    if isinstance(tensor, SparseTensor):
        return None
    if tensor.nbytes <= SMALL_CONSTANT_BYTES:
        return tensor.tobytes()
    if isinstance(tensor, TransposedTensor):
        inner = _sample(tensor.source)
        return None if inner is None else (tensor.perm, inner)
    if isinstance(tensor, FileTensor):
        places = (0, tensor.length // 2, tensor.length - _SAMPLE_BYTES)
        return tuple(_read(tensor, place, _SAMPLE_BYTES) for place in places)
    return tensor.tobytes()[:_SAMPLE_BYTES] if isinstance(tensor, ir.Tensor) else None


def _digest(tensor: ir.TensorProtocol) -> Hashable:
    """Return a hash of the bytes of a large constant, read in blocks."""
    if isinstance(tensor, TransposedTensor):
        return tensor.perm, _digest(tensor.source)
    digest = hashlib.sha256()
    if isinstance(tensor, FileTensor):
        for start in range(0, tensor.length, _BLOCK_BYTES):
            digest.update(_read(tensor, start, min(_BLOCK_BYTES, tensor.length - start)))
    else:
        digest.update(tensor.tobytes())
    return digest.digest()


def _read(tensor: FileTensor, start: int, length: int) -> bytes:
    buffer = bytearray(length)
    tensor.file.check()
    tensor.file.read_into(memoryview(buffer), tensor.offset + start)
    return bytes(buffer)


def _place(tensor: ir.TensorProtocol) -> Hashable:
    """Return where the bytes are stored; equal places hold equal bytes."""
    if isinstance(tensor, FileTensor):
        return id(tensor.file), tensor.offset, tensor.length
    return (tensor.perm, _place(tensor.source)) if isinstance(tensor, TransposedTensor) else id(tensor)


def _reaches(value: ir.Value, scope: Scope, graph: Facts) -> bool:
    """Return whether a constant is visible in a scope."""
    if value.graph is scope.graph:
        return True
    while (holder := scope.holder) is not None and holder.domain == "" and holder.op_type in CONTROL_FLOW:
        assert holder.graph is not None
        scope = graph.scopes[holder.graph]
        if scope.graph is value.graph:
            return True
    return False
