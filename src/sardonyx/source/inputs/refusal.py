"""Which parameter of a forward a refusal is about: the one whose values the failing expression reads.

The module is run once more on the inputs that it refused. Every tensor carries the names of the parameters it was
computed from, so the innermost frame of the traceback that reads one of them names the parameter.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sardonyx.source.running import Probe

_MARK = "_sardonyx_parameters"  # attribute of a tensor: names of the parameters it was computed from


def parameters_at_fault(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], named: Mapping[str, Any], probe: Probe
) -> list[str]:
    """Names of the parameters that the failing expression reads, in the order of `named`; none where none is known.

    Args:
        module: refuses these arguments.
        args: by position.
        kwargs: by name.
        named: the same values by the names of their parameters.
        probe: runs the module and returns the exception it raises, if any.
    """
    for name, value in named.items():
        _mark(value, frozenset([name]))
    try:
        with _Marking():
            refusal = probe(module, args, kwargs)
    finally:
        for value in named.values():
            if hasattr(value, _MARK):
                delattr(value, _MARK)
    frames = list(_frames(refusal.__traceback__)) if refusal is not None else []
    for trace in reversed(frames):
        for names in _names_read(trace):
            held = [trace.tb_frame.f_locals[name] for name in names if name in trace.tb_frame.f_locals]
            found = _marks(held) | {name for name, value in named.items() if any(each is value for each in held)}
            if found:
                return [name for name in named if name in found]
    return []


class _Marking(TorchFunctionMode):
    """Marks results with the parameters of their operands."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if marks := _marks([args, kwargs]):
            _mark(result, marks)
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[Any, Any]", value).values():
            yield from _tensors(each)
    elif isinstance(value, (tuple, list)):
        for each in cast("Sequence[Any]", value):
            yield from _tensors(each)


def _mark(value: Any, names: frozenset[str]) -> None:
    for tensor in _tensors(value):
        if not isinstance(tensor, nn.Parameter):  # of the module, which stays as it is
            setattr(tensor, _MARK, names)


def _marks(values: Iterable[Any]) -> frozenset[str]:
    none = frozenset[str]()
    return none.union(*(getattr(tensor, _MARK, none) for tensor in _tensors(list(values))))


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _names_read(trace: TracebackType) -> Iterator[list[str]]:
    """Local names that the failing expression reads; then those of its whole lines, where an unpacking fails."""
    instructions = list(dis.get_instructions(trace.tb_frame.f_code))
    failing = next((each.positions for each in instructions if each.offset == trace.tb_lasti), None)
    if failing is None or failing.lineno is None or failing.end_lineno is None:
        return
    start, end = (failing.lineno, failing.col_offset or 0), (failing.end_lineno, failing.end_col_offset or 0)
    inside: list[str] = []
    beside: list[str] = []
    for each in instructions:
        place = each.positions
        if place is None or place.lineno is None or not each.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            continue
        loaded = cast("str | tuple[str, ...]", each.argval)  # a tuple where one instruction loads two
        names = [loaded] if isinstance(loaded, str) else list(loaded)
        if start <= (place.lineno, place.col_offset or 0) <= end:
            inside += names
        elif start[0] <= place.lineno <= end[0]:
            beside += names
    yield inside
    yield beside
