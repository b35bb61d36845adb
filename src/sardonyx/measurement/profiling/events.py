"""Read the runtime's profile: its runs with their kernel calls, and which step of the graph each call belongs to.

The runtime keeps about a million events and drops later ones; a run that lost events does not match the graph any more
and is left out. The runtime runs the steps of the main graph in the order in which it saves them, so that calls are
matched by position; names may repeat or be missing. In bodies of control flow they are matched by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from sardonyx.errors import RuntimeFailure
from sardonyx.measurement.profiling.steps import GraphStep, Steps

MOST_EVENTS = 900_000  # up to which a profile is complete
_KERNEL = "_kernel_time"


class Call(Struct, frozen=True, eq=False):
    """One call of a kernel; times in microseconds."""

    name: str
    op_type: str
    provider: str
    start: float
    duration: float  # including the calls of its body, if it has one


class Run(Struct, frozen=True, eq=False):
    """One run of the whole model; times in microseconds."""

    start: float
    duration: float
    calls: Sequence[Call]  # in the order in which they ended: a call with a body comes after the calls inside it


class _Arguments(msgspec.Struct):
    op_name: str = ""
    provider: str = ""


class _Event(msgspec.Struct):
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments = msgspec.field(default_factory=_Arguments)


def read(path: Path) -> list[Run]:
    """Return the runs of a profile that the runtime wrote, in order.

    Raises:
        RuntimeFailure: The file is not a profile of the runtime.
    """
    try:
        events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    except (OSError, msgspec.MsgspecError) as error:
        raise RuntimeFailure(f"ONNX Runtime's profile cannot be read: {error}") from error
    runs: list[Run] = []
    calls: list[Call] = []
    for event in events:  # events are written when they end: that of a run comes right after those of its kernels
        if event.cat == "Node" and event.name.endswith(_KERNEL):
            name, args = event.name.removesuffix(_KERNEL), event.args
            calls.append(Call(name, args.op_name, _short(args.provider), event.ts, event.dur))
        elif event.name == "model_run":
            runs.append(Run(event.ts, event.dur, calls))
            calls = []
    return runs


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider").lower()


class Match(Struct, frozen=True, eq=False):
    """One call of a step; `own` is its time in microseconds without that of the steps in its body."""

    step: GraphStep
    call: Call
    own: float


def match(run: Run, graph: Steps) -> list[Match] | None:
    """Return the step of every call of a run, in the order of the calls; None if the run does not match the graph."""
    matches: list[Match] = []
    at = 0
    for step in graph.steps:
        end = _match_step(run.calls, at, step, matches)
        if end is None:
            return None
        at = end
    return matches if at == len(run.calls) else None


def _match_step(calls: Sequence[Call], began: int, step: GraphStep, matches: list[Match]) -> int | None:
    """Match one call of a step, after those of its bodies; return the index after it, or None if it does not match."""
    before = len(matches)
    at: int | None = began
    while step.bodies and at is not None and not _encloses(calls, began, at, step):
        ends = (_match_body(calls, at, body, matches) for body in step.bodies.values())
        at = next((end for end in ends if end is not None), None)
    if at is None or at >= len(calls) or not _is_call_of(calls[at], step):
        del matches[before:]
        return None
    own = calls[at].duration - sum(inner.own for inner in matches[before:])
    matches.append(Match(step, calls[at], max(0.0, own)))
    return at + 1


def _match_body(calls: Sequence[Call], began: int, body: Steps, matches: list[Match]) -> int | None:
    """Match one run of a body; return the index after it, or None if it does not match or is empty.

    Bodies are saved in another order than they run in. Steps of the same operator without names are taken in the order
    of the file.
    """
    at, before, waiting = began, len(matches), list(body.steps)
    while waiting:
        ends = ((step, _match_step(calls, at, step, matches)) for step in waiting)
        step, end = next(((step, end) for step, end in ends if end is not None), (None, None))
        if step is None or end is None:
            del matches[before:]
            return None
        waiting.remove(step)
        at = end
    return at if at > began else None


def _encloses(calls: Sequence[Call], began: int, at: int, step: GraphStep) -> bool:
    """Return whether a call is that of the step, and the calls since `began`, if any, ran inside it."""
    return at < len(calls) and _is_call_of(calls[at], step) and (at == began or calls[at].start <= calls[began].start)


def _is_call_of(call: Call, step: GraphStep) -> bool:
    """Return whether operator and name agree; the runtime invents names for steps without one."""
    return call.op_type == step.op_type and (not step.name or call.name == step.name)
