"""The search on simulated machines: harmful units are undone, others stay, and few measurements are needed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.verbs.bench.statistics import Finding
from sardonyx.verbs.optimize.tuner import Group, State, is_accepted, search

Effects = dict[str, float]  # unit -> factor on the time if it is flipped
FLOOR = 0.01


class Machine:
    """Answers with the product of the effects of flipped units, with noise that its interval accounts for."""

    def __init__(
        self, time: Callable[[State], float], noise: float = 0.0, seed: int = 0, most: float = math.inf
    ) -> None:
        self._time = time
        self._noise = noise
        self._random = random.Random(seed)
        self._most = most
        self.changes: list[tuple[State, State, Finding]] = []

    @property
    def measurements(self) -> int:
        return len(self.changes)

    def __call__(self, then: State, now: State) -> Finding | None:
        if self.measurements >= self._most:
            return None
        log = math.log(self._time(then) / self._time(now)) + self._random.gauss(0, self._noise)
        reach = 3.3 * self._noise + FLOOR
        effect = Finding.FASTER if log < -reach else Finding.SLOWER if log > reach else Finding.SAME
        self.changes.append((then, now, effect))
        return effect


def product(effects: Effects) -> Callable[[State], float]:
    return lambda state: math.prod(effects[unit] for unit in state)


def grouped(names: list[str], size: int) -> list[Group]:
    return [tuple(names[at : at + size]) for at in range(0, len(names), size)]


def harmless(count: int) -> Effects:
    return {f"u{place}": 1.0 for place in range(count)}


@given(st.data())
def test_harmful_units_are_undone_and_nothing_else(data: st.DataObject) -> None:
    """For any groups and any number of units, if no unit is useful."""
    effects = harmless(data.draw(st.integers(1, 40)))
    bad = data.draw(st.sets(st.sampled_from(sorted(effects)), max_size=4))
    effects |= dict.fromkeys(bad, 0.9)
    machine = Machine(product(effects))
    result = search(grouped(list(effects), data.draw(st.integers(1, 40))), machine)
    assert result == bad
    assert set().union(*(then ^ now for then, now, _ in machine.changes)) == set(effects)


@given(st.lists(st.sampled_from([0.6, 0.9, 1.0, 1.1, 2.0]), min_size=1, max_size=12), st.integers(1, 5))
def test_each_decision_depends_on_its_measurement_alone(times: list[float], size: int) -> None:
    """Useful units may hide harmful ones in the same group, but no useful unit is ever undone."""
    effects = {f"u{place}": time for place, time in enumerate(times)}
    result = search(grouped(list(effects), size), Machine(product(effects)))
    assert not any(effects[unit] > 1 for unit in result)
    assert product(effects)(result) <= 1
    if size == 1:
        assert result == {unit for unit, time in effects.items() if time < 1}


def test_a_harmful_unit_is_found_beside_a_useful_one() -> None:
    effects = harmless(8) | {"u2": 0.9, "u3": 1.5}
    result = search([tuple(effects)], Machine(product(effects)))
    assert result == {"u2"}


def test_a_harmful_unit_that_was_restored_with_a_useful_one_is_found_too() -> None:
    effects = {"useful": 1.5, "harmful": 0.9, "worst": 0.5, "idle": 1.0}
    result = search([tuple(effects)], Machine(product(effects)))
    assert result == {"harmful", "worst"}


@pytest.mark.parametrize("count", [16, 64, 256])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_few_harmful_units_need_few_measurements(count: int, bad: int) -> None:
    rng = random.Random(count + bad)
    for _ in range(20):
        effects = harmless(count) | dict.fromkeys(rng.sample([f"u{place}" for place in range(count)], bad), 0.9)
        machine = Machine(product(effects))
        result = search([tuple(effects)], machine)
        assert {unit for unit in effects if effects[unit] < 1} == result
        assert machine.measurements <= 1 + 2 * bad * math.log2(count)


@given(st.lists(st.sampled_from([0.8, 1.0, 1.25]), min_size=1, max_size=30))
def test_never_more_measurements_than_twice_the_units(times: list[float]) -> None:
    effects = {f"u{place}": time for place, time in enumerate(times)}
    machine = Machine(product(effects))
    search([tuple(effects)], machine)
    assert machine.measurements <= 4 * len(effects)


def test_two_units_that_are_harmful_only_together_are_both_undone() -> None:
    """As when either of two rewrites alone prevents a fusion of the runtime."""
    effects = harmless(12)

    def time(state: State) -> float:
        return 0.8 if {"u1", "u9"} <= state else 1.0

    assert search([tuple(effects)], Machine(time)) == {"u1", "u9"}


def test_of_two_units_either_of_which_helps_only_one_is_undone() -> None:
    def time(state: State) -> float:
        return 0.8 if {"u1", "u9"} & state else 1.0

    assert len(search([tuple(harmless(12))], Machine(time))) == 1


def test_all_units_are_flipped_at_once_if_the_source_is_faster() -> None:
    effects = harmless(9)

    def time(state: State) -> float:
        return 0.5 if {"u0", "u8"} <= state else 1.1 if "u0" in state else 1.0

    groups = grouped(list(effects), 3)
    assert search(groups, Machine(time)) == frozenset()
    machine = Machine(time)
    assert search(groups, machine, all_first=True) == {"u0", "u8"}
    assert machine.changes[0][0] == set(effects)


def test_groups_follow_if_flipping_all_units_is_not_faster() -> None:
    effects = harmless(9) | {"u4": 0.9, "u0": 3.0}
    assert search(grouped(list(effects), 3), Machine(product(effects)), all_first=True) == {"u4"}


@pytest.mark.parametrize("most", range(8))
def test_out_of_time_the_best_so_far_is_kept(most: int) -> None:
    effects = harmless(8) | {"u1": 0.9, "u6": 0.9}
    machine = Machine(product(effects), most=most)
    result = search(grouped(list(effects), 2), machine)
    assert machine.measurements <= most
    assert product(effects)(result) <= 1
    if most:  # the first group is undone as a whole if its members could not be measured
        assert "u1" in result


def test_noise_undoes_nothing() -> None:
    """A hundred noisy machines on which no unit makes a difference."""
    for seed in range(100):
        machine = Machine(product(harmless(24)), noise=0.05, seed=seed)
        assert search(grouped(list(harmless(24)), 6), machine) == frozenset()


def test_with_noise_a_clearly_harmful_unit_is_found_and_a_useful_one_is_kept() -> None:
    hits = 0
    for seed in range(100):
        effects = harmless(24) | {"u7": 0.75, "u12": 1.5}
        result = search(grouped(list(effects), 6), Machine(product(effects), noise=0.02, seed=seed))
        assert "u12" not in result
        hits += result == {"u7"}
    assert hits >= 95


def test_accepted_measurements_give_the_final_state() -> None:
    effects = harmless(10) | {"u2": 0.9, "u3": 1.4, "u7": 0.7}
    machine = Machine(product(effects))
    result = search(grouped(list(effects), 5), machine)
    state: State = frozenset()
    for then, now, effect in machine.changes:
        assert now == state
        if is_accepted(effect, back=then < now):
            state = then
    assert state == result
