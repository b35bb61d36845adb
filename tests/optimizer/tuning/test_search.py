"""The search over simulated machines: what is harmful is undone, what is not stays, and few questions are asked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.optimizer.tuning.search import Effect, Group, State, search

Effects = dict[str, float]  # what flipping a unit multiplies the time by
FLOOR = 0.01


class Machine:
    """Answers by the product of the effects of what is flipped, seen through noise that its interval knows of."""

    def __init__(
        self, time: Callable[[State], float], noise: float = 0.0, seed: int = 0, most: float = math.inf
    ) -> None:
        self._time = time
        self._noise = noise
        self._random = random.Random(seed)
        self._most = most
        self.questions = 0

    def __call__(self, then: State, now: State) -> Effect | None:
        if self.questions >= self._most:
            return None
        self.questions += 1
        log = math.log(self._time(then) / self._time(now)) + self._random.gauss(0, self._noise)
        reach = 3.3 * self._noise + FLOOR
        return Effect.FASTER if log < -reach else Effect.SLOWER if log > reach else Effect.NONE


def product(effects: Effects) -> Callable[[State], float]:
    return lambda state: math.prod(effects[unit] for unit in state)


def grouped(names: list[str], size: int) -> list[Group]:
    return [tuple(names[at : at + size]) for at in range(0, len(names), size)]


def harmless(count: int) -> Effects:
    return {f"u{place}": 1.0 for place in range(count)}


@given(st.data())
def test_harmful_units_are_undone_and_nothing_else(data: st.DataObject) -> None:
    """Without useful ones beside them, whatever the groups and however many there are."""
    effects = harmless(data.draw(st.integers(1, 40)))
    bad = data.draw(st.sets(st.sampled_from(sorted(effects)), max_size=4))
    effects |= dict.fromkeys(bad, 0.9)
    found = search(grouped(list(effects), data.draw(st.integers(1, 40))), Machine(product(effects)))
    assert found.flipped == bad
    assert not found.unmeasured


@given(st.lists(st.sampled_from([0.6, 0.9, 1.0, 1.1, 2.0]), min_size=1, max_size=12), st.integers(1, 5))
def test_each_question_decides_by_its_answer_alone(times: list[float], size: int) -> None:
    """Useful units may hide harmful ones in a group that cancels out, but no useful unit is ever lost."""
    effects = {f"u{place}": time for place, time in enumerate(times)}
    found = search(grouped(list(effects), size), Machine(product(effects)))
    assert not any(effects[unit] > 1 for unit in found.flipped)
    assert product(effects)(found.flipped) <= 1
    if size == 1:
        assert found.flipped == {unit for unit, time in effects.items() if time < 1}


def test_a_harmful_unit_is_found_behind_a_useful_one() -> None:
    effects = harmless(8) | {"u2": 0.9, "u3": 1.5}
    found = search([tuple(effects)], Machine(product(effects)))
    assert found.flipped == {"u2"}


def test_a_harmful_unit_that_went_back_with_a_useful_one_is_found_too() -> None:
    effects = {"useful": 1.5, "harmful": 0.9, "worst": 0.5, "idle": 1.0}
    found = search([tuple(effects)], Machine(product(effects)))
    assert found.flipped == {"harmful", "worst"}


@pytest.mark.parametrize("count", [16, 64, 256])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_few_questions_for_few_harmful_units(count: int, bad: int) -> None:
    rng = random.Random(count + bad)
    for _ in range(20):
        effects = harmless(count) | dict.fromkeys(rng.sample([f"u{place}" for place in range(count)], bad), 0.9)
        machine = Machine(product(effects))
        found = search([tuple(effects)], machine)
        assert {unit for unit in effects if effects[unit] < 1} == found.flipped
        assert machine.questions <= 1 + 2 * bad * math.log2(count)


@given(st.lists(st.sampled_from([0.8, 1.0, 1.25]), min_size=1, max_size=30))
def test_never_more_questions_than_twice_the_units(times: list[float]) -> None:
    effects = {f"u{place}": time for place, time in enumerate(times)}
    machine = Machine(product(effects))
    search([tuple(effects)], machine)
    assert machine.questions <= 4 * len(effects)


def test_two_units_that_are_harmful_only_together_are_both_undone() -> None:
    """As where either of two rewrites alone keeps the runtime from a fusion of its own."""
    effects = harmless(12)

    def time(state: State) -> float:
        return 0.8 if {"u1", "u9"} <= state else 1.0

    assert search([tuple(effects)], Machine(time)).flipped == {"u1", "u9"}


def test_of_two_units_either_of_which_helps_only_one_is_undone() -> None:
    def time(state: State) -> float:
        return 0.8 if {"u1", "u9"} & state else 1.0

    assert len(search([tuple(harmless(12))], Machine(time)).flipped) == 1


def test_everything_is_tried_at_once_where_the_source_is_faster() -> None:
    effects = harmless(9)

    def time(state: State) -> float:
        return 0.5 if {"u0", "u8"} <= state else 1.1 if "u0" in state else 1.0

    groups = grouped(list(effects), 3)
    assert search(groups, Machine(time)).flipped == frozenset()
    found = search(groups, Machine(time), all_first=True)
    assert found.flipped == {"u0", "u8"}
    assert found.measured[0].units == tuple(effects)


def test_groups_follow_where_everything_at_once_does_not_pay() -> None:
    effects = harmless(9) | {"u4": 0.9, "u0": 3.0}
    assert search(grouped(list(effects), 3), Machine(product(effects)), all_first=True).flipped == {"u4"}


@pytest.mark.parametrize("most", range(8))
def test_out_of_time_the_best_so_far_stands_and_the_rest_is_named(most: int) -> None:
    effects = harmless(8) | {"u1": 0.9, "u6": 0.9}
    machine = Machine(product(effects), most=most)
    found = search(grouped(list(effects), 2), machine)
    assert machine.questions <= most
    assert len(found.measured) == machine.questions
    assert found.unmeasured == set(effects) - {unit for one in found.measured for unit in one.units}
    assert product(effects)(found.flipped) <= 1
    if most:  # the first group pays, and stays undone as a whole where its members could not be looked at
        assert "u1" in found.flipped


def test_noise_undoes_nothing() -> None:
    """A hundred machines on which nothing makes a difference, each measured as noisily as can be."""
    for seed in range(100):
        machine = Machine(product(harmless(24)), noise=0.05, seed=seed)
        assert search(grouped(list(harmless(24)), 6), machine).flipped == frozenset()


def test_through_noise_a_clear_harm_is_found_and_what_helps_is_kept() -> None:
    hits = 0
    for seed in range(100):
        effects = harmless(24) | {"u7": 0.75, "u12": 1.5}
        found = search(grouped(list(effects), 6), Machine(product(effects), noise=0.02, seed=seed))
        assert "u12" not in found.flipped
        hits += found.flipped == {"u7"}
    assert hits >= 95


def test_what_was_accepted_makes_the_final_state() -> None:
    effects = harmless(10) | {"u2": 0.9, "u3": 1.4, "u7": 0.7}
    found = search(grouped(list(effects), 5), Machine(product(effects)))
    state: State = frozenset()
    for one in found.measured:
        assert one.back == (frozenset(one.units) <= state)
        if one.accepted:
            state ^= frozenset(one.units)
    assert state == found.flipped
