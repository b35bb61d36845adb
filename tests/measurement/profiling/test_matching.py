"""Calls of a run are matched to their steps under any names; times inside bodies are counted once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.errors import RuntimeFailure
from sardonyx.verbs.profile.kernel_origins import GraphStep, Steps
from sardonyx.verbs.profile.profiler import KernelCall, Run, match, read

LOOP, IF = "Loop", "If"


def step(name: str, op_type: str = "Exp", **bodies: Steps) -> GraphStep:
    return GraphStep(name, op_type, "", (), (), bodies)


def steps(*each: GraphStep) -> Steps:
    return Steps(each, {})


class Running:
    """A graph run as the runtime does: control flow ends after its bodies, which have their own order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.calls: list[KernelCall] = []
        self.steps: list[GraphStep] = []

    def graph(self, graph: Steps, *, body: bool = False) -> None:
        order = list(graph.steps)
        if body:
            self.random.shuffle(order)
        for each in order:
            start, self.now = self.now, self.now + 1
            if each.op_type == LOOP:
                for _ in range(self.random.randrange(3)):
                    self.graph(each.bodies["body"], body=True)
            elif each.op_type == IF:
                self.graph(each.bodies[self.random.choice(list(each.bodies))], body=True)
            self.now += self.random.randrange(1, 5)
            name = each.name or f"made up {len(self.calls)}"
            self.calls.append(KernelCall(name, each.op_type, "cpu", start, self.now - start))
            self.steps.append(each)

    def run(self) -> Run:
        return Run(0.0, self.now, self.calls)


@st.composite
def nested(draw: st.DrawFn, depth: int = 0, prefix: str = "") -> Steps:
    """Graphs with nested loops and branches; nodes of the main graph may have no names."""
    made: list[GraphStep] = []
    for place in range(draw(st.integers(1, 4))):
        name = f"{prefix}{place}"
        kind = draw(st.sampled_from(["Exp", "Sin", LOOP, IF])) if depth < 2 else "Exp"
        if kind == LOOP:
            made.append(step(name, LOOP, body=draw(nested(depth + 1, f"{name}."))))
        elif kind == IF:
            branches = {side: draw(nested(depth + 1, f"{name}{side}.")) for side in ("then_branch", "else_branch")}
            made.append(step(name, IF, **branches))
        else:
            made.append(step(name if depth or draw(st.booleans()) else "", kind))
    return steps(*made)


@given(nested(), st.integers(0, 1000))
def test_every_call_is_matched_to_its_step_and_time_counts_once(graph: Steps, seed: int) -> None:
    running = Running(seed)
    running.graph(graph)
    result = match(running.run(), graph)
    assert result is not None
    assert [each.step for each in result] == running.steps
    assert sum(each.own for each in result) == pytest.approx(running.now)


@given(nested(), st.integers(0, 1000), st.data())
def test_a_run_with_missing_calls_is_rejected(graph: Steps, seed: int, data: st.DataObject) -> None:
    running = Running(seed)
    running.graph(graph)
    kept = data.draw(st.integers(0, len(running.calls) - 1))
    assert match(Run(0.0, running.now, running.calls[:kept]), graph) is None


def test_a_run_of_another_graph_is_rejected() -> None:
    run = Run(0.0, 5.0, [KernelCall("a", "Exp", "cpu", 0.0, 1.0)])
    assert match(run, steps(step("a", "Sin"))) is None
    assert match(run, steps(step("b", "Exp"))) is None
    assert match(run, steps()) is None


def test_a_file_that_is_no_profile_is_refused_in_one_line(tmp_path) -> None:
    file = tmp_path / "profile.json"
    file.write_text('[{"cat": "Node", ')
    with pytest.raises(RuntimeFailure, match="profile cannot be read"):
        read(file)
