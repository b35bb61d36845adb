"""Which step of the graph as it ran each call of a run is.

The runtime runs the steps of the main graph in the order in which it saves them, so places tell, whatever the names
are: in files of strangers those repeat, or are missing. In bodies of control flow names have to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.profiling.events import Call, Run
from sardonyx.profiling.steps import Step, Steps


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """One call of a step; `own` is its time without that of the steps in its body, in microseconds."""

    step: Step
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


def _step(calls: Sequence[Call], began: int, step: Step, found: list[Match]) -> int | None:
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


def _holds(calls: Sequence[Call], began: int, at: int, step: Step) -> bool:
    """Whether a call is that of a step whose body's calls, if any, were those since it began."""
    return at < len(calls) and _is(calls[at], step) and (at == began or calls[at].start <= calls[began].start)


def _is(call: Call, step: Step) -> bool:
    """The runtime makes up names for steps that have none."""
    return call.op_type == step.op_type and (not step.name or call.name == step.name)
