"""Which step of the graph as it ran each call of a run is.

The runtime runs the steps of a graph in the order in which it saves them, so places tell, whatever the names are: in
files of strangers those repeat, or are missing.
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
    end = _graph(run.calls, 0, graph, found)
    return found if end == len(run.calls) else None


def _graph(calls: Sequence[Call], at: int, graph: Steps, found: list[Match]) -> int | None:
    """Where the calls of one run of a graph end that begin at a place; None where they do not fit."""
    for step in graph.steps:
        began, inside = at, len(found)
        while step.bodies and not _holds(calls, began, at, step):
            end = next((end for body in step.bodies.values() if (end := _body(calls, at, body, found))), None)
            if end is None:
                return None
            at = end
        if at >= len(calls) or not _is(calls[at], step):
            return None
        own = calls[at].duration - sum(each.own for each in found[inside:])
        found.append(Match(step, calls[at], max(0.0, own)))
        at += 1
    return at


def _body(calls: Sequence[Call], at: int, body: Steps, found: list[Match]) -> int | None:
    """Where one run of a body ends; nothing is found where it does not fit, and an empty body cannot be seen."""
    before = len(found)
    end = _graph(calls, at, body, found)
    if end is None or end == at:
        del found[before:]
        return None
    return end


def _holds(calls: Sequence[Call], began: int, at: int, step: Step) -> bool:
    """Whether a call is that of a step whose body's calls, if any, were those since it began."""
    return at < len(calls) and _is(calls[at], step) and (at == began or calls[at].start <= calls[began].start)


def _is(call: Call, step: Step) -> bool:
    """The runtime makes up names for steps that have none."""
    return call.op_type == step.op_type and (not step.name or call.name == step.name)
