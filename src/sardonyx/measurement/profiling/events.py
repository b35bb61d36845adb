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
from sardonyx.measurement.profiling.steps import GraphStep, Steps

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


# Which step of the graph as it ran each call of a run is.
#
# The runtime runs the steps of the main graph in the order in which it saves them, so places tell, whatever the names
# are: in files of strangers those repeat, or are missing. In bodies of control flow names have to do.


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """One call of a step; `own` is its time without that of the steps in its body, in microseconds."""

    step: GraphStep
    call: Call
    own: float


def match(run: Run, graph: Steps) -> list[Match] | None:
    """The steps of a run's calls, in the order of the calls; None where the run does not fit the graph."""
    found: list[Match] = []
    at = 0
    for step in graph.steps:
        end = _step(run.calls, at, step, found)
        if end is None:
            return None
        at = end
    return found if at == len(run.calls) else None


def _step(calls: Sequence[Call], began: int, step: GraphStep, found: list[Match]) -> int | None:
    """Where one call of a step ends, with those of its bodies before it; None where it is not what was called."""
    before = len(found)
    at: int | None = began
    while step.bodies and at is not None and not _holds(calls, began, at, step):
        at = next((end for body in step.bodies.values() if (end := _body(calls, at, body, found)) is not None), None)
    if at is None or at >= len(calls) or not _is(calls[at], step):
        del found[before:]
        return None
    own = calls[at].duration - sum(each.own for each in found[before:])
    found.append(Match(step, calls[at], max(0.0, own)))
    return at + 1


def _body(calls: Sequence[Call], began: int, body: Steps, found: list[Match]) -> int | None:
    """Where one run of a body ends; an empty one cannot be seen.

    Bodies are saved in another order than they run in. Steps of the same operator without names cannot be told apart
    here; they are taken in the order of the file.
    """
    at, before, waiting = began, len(found), list(body.steps)
    while waiting:
        called = next(((step, end) for step in waiting if (end := _step(calls, at, step, found)) is not None), None)
        if called is None:
            del found[before:]
            return None
        waiting.remove(called[0])
        at = called[1]
    return at if at > began else None


def _holds(calls: Sequence[Call], began: int, at: int, step: GraphStep) -> bool:
    """Whether a call is that of a step whose body's calls, if any, were those since it began."""
    return at < len(calls) and _is(calls[at], step) and (at == began or calls[at].start <= calls[began].start)


def _is(call: Call, step: GraphStep) -> bool:
    """The runtime makes up names for steps that have none."""
    return call.op_type == step.op_type and (not step.name or call.name == step.name)
