"""The runtime's profile, read: its runs, and in each the calls of kernels in the order in which they ended.

The runtime keeps about a million events and drops those after; a run that lost some does not fit the graph any more,
and is left out by whoever puts the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sardonyx.errors import RuntimeFailure

MOST_EVENTS = 900_000  # of a profile that is sure to be whole
_KERNEL = "_kernel_time"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a kernel; microseconds."""

    name: str
    op_type: str
    provider: str
    start: float
    duration: float  # with the calls of the body it runs, if it runs one


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of the whole model; microseconds."""

    start: float
    duration: float
    calls: Sequence[Call]  # one that runs a body ends after all that is in it, and so stands after


class _Said(msgspec.Struct):
    op_name: str = ""
    provider: str = ""


class _Event(msgspec.Struct):
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Said = msgspec.field(default_factory=_Said)


def read(path: Path) -> list[Run]:
    """The runs in a profile that the runtime wrote, in order.

    Raises:
        RuntimeFailure: where it is not what the runtime writes.
    """
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    except (OSError, msgspec.MsgspecError) as error:
        raise RuntimeFailure(f"ONNX Runtime's profile cannot be read: {error}") from error
    runs: list[Run] = []
    calls: list[Call] = []
    for event in events:  # events are written as they end: a run's own comes right after all of its kernels'
        if event.cat == "Node" and event.name.endswith(_KERNEL):
            said = event.args
            name = event.name.removesuffix(_KERNEL)
            calls.append(Call(name, said.op_name, _short(said.provider), event.ts, event.dur))
        elif event.name == "model_run":
            runs.append(Run(event.ts, event.dur, calls))
            calls = []
    return runs


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()
