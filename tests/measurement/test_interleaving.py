"""Interleaved timing: the order of runs, when it ends, and correct verdicts on simulated machines."""

from __future__ import annotations

import gc
import math

import pytest

import noise
from sardonyx.verbs.bench import interleaving
from sardonyx.verbs.bench.interleaving import MIN_NOISE_FLOOR, MIN_ROUNDS, Race, race, slot
from sardonyx.verbs.bench.statistics import Finding


class Clock:
    """A clock that advances only by the simulated runs."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time

    def taking(self, *seconds: float):
        """A run that takes these seconds in turn."""
        calls = iter(range(10**9))

        def run() -> float:
            took = seconds[next(calls) % len(seconds)]
            self.time += took
            return took

        return run


# Slots


def test_a_slot_repeats_short_runs_and_returns_the_fastest() -> None:
    clock = Clock()
    assert slot(clock.taking(0.02, 0.01, 0.03), seconds=0.055, now=clock)() == pytest.approx(0.01)
    assert clock.time == pytest.approx(0.06)


def test_a_run_longer_than_its_slot_runs_once() -> None:
    clock = Clock()
    assert slot(clock.taking(3.0), seconds=0.05, now=clock)() == pytest.approx(3)
    assert clock.time == 3


# Rounds


def test_every_model_runs_once_per_round_and_the_reference_twice_in_changing_order() -> None:
    clock, ran = Clock(), list[str]()

    def contender(name: str, *seconds: float):
        run = clock.taking(*seconds)
        return lambda: (ran.append(name), run())[1]

    runs = {"a": contender("a", 1.0, 2.0), "b": contender("b", 2.0, 1.0, 1.0)}
    result = race(runs, twin=contender("A", 1.0, 1.0, 2.0), seconds=300, narrow=0, now=clock)
    turns = [tuple(ran[start : start + 3]) for start in range(0, len(ran), 3)]
    assert all(sorted(each) == ["A", "a", "b"] for each in turns)
    assert len(set(turns)) == 6
    assert result.rounds == len(turns) - 1  # the first warms up
    assert len(result.seconds["a"]) == len(result.seconds["b"]) == result.rounds
    assert list(result.seconds) == ["a", "b"]


def test_without_a_twin_the_reference_itself_runs_twice() -> None:
    clock, calls = Clock(), list[int]()
    run = clock.taking(1.0)
    result = race({"a": lambda: (calls.append(1), run())[1]}, seconds=0, now=clock)
    assert len(calls) == 2 * (result.rounds + 1)


@pytest.mark.slow
def test_the_order_follows_the_seed() -> None:
    def order(seed: int) -> list[str]:
        clock, ran = Clock(), list[str]()
        run = clock.taking(1.0)
        runs = {name: (lambda name=name: (ran.append(name), run())[1]) for name in "abc"}
        race(runs, seconds=0, seed=seed, now=clock)
        return ran

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_models_are_compared_with_both_reference_slots_and_the_first_round_is_dropped() -> None:
    clock = Clock()
    result = race({"a": clock.taking(9.0, *[1.0] * 99), "b": clock.taking(7.0, *[2.0] * 99)},
                 twin=clock.taking(9.0, *[4.0] * 99), seconds=0, now=clock)  # fmt: skip
    assert result.seconds == {"a": (1.0,) * MIN_ROUNDS, "b": (2.0,) * MIN_ROUNDS}
    assert result.twin == (4.0,) * MIN_ROUNDS
    assert result.comparison("b").ratio == pytest.approx(1)
    assert result.comparison("a", against="b").ratio == pytest.approx(1)
    assert result.comparison("b", against="b").ratio == 1
    assert result.comparison("a").ratio == 1
    assert result.floor() == pytest.approx(3)


# When it ends


@pytest.mark.slow
def test_timing_ends_with_its_time_but_not_below_the_minimum_of_rounds() -> None:
    clock = Clock()
    assert race({"a": clock.taking(1.0, 2.0, 3.0)}, seconds=0, now=clock).rounds == MIN_ROUNDS
    clock = Clock()
    result = race({"a": clock.taking(1.0, 2.0, 3.0, 1.5, 2.5)}, seconds=100, narrow=0, now=clock)
    assert 100 <= result.spent <= 106
    assert result.spent == clock.time


def test_timing_ends_early_when_every_interval_is_narrow() -> None:
    clock = Clock()
    steady = {"a": clock.taking(1.0, 1.001), "b": clock.taking(1.001, 1.0), "c": clock.taking(1.0)}
    assert race(steady, seconds=1e6, now=clock).rounds == MIN_ROUNDS


def test_timing_does_not_end_early_while_the_reference_differs_from_itself() -> None:
    clock = Clock()
    restless = clock.taking(1.0, 1.3, 0.8, 1.2, 0.7)
    result = race({"a": clock.taking(1.0), "b": clock.taking(1.0)}, twin=restless, seconds=100, now=clock)
    assert result.comparison("b").width < 0.01
    assert result.spent >= 100


@pytest.mark.slow
def test_timing_ends_early_only_when_every_verdict_is_clear() -> None:
    def raced(third: float) -> Race:
        machine = noise.Machine(noise.Noise(jitter=0.1), seed=1)
        runs = {str(ratio): slot(machine.session(0.05 * ratio), now=machine.now) for ratio in (1, 2, third)}
        return race(runs, seconds=60, now=machine.now)

    assert raced(3).spent < 10
    assert raced(1.001).spent >= 60


def test_progress_is_reported_and_ends_at_one() -> None:
    clock, steps = Clock(), list[tuple[str, float | None]]()
    race({"a": clock.taking(1.0, 2.0)}, seconds=60, narrow=0, progress=lambda *step: steps.append(step), now=clock)
    fractions = [fraction for _, fraction in steps if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    assert steps[0][0] == "round 1"


def test_garbage_collection_is_off_while_timing_and_an_interrupt_is_raised() -> None:
    seen: list[bool] = []

    def run() -> float:
        seen.append(gc.isenabled())
        if len(seen) > 9:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        race({"a": run}, seconds=60)
    assert not any(seen)
    assert gc.isenabled()


# The floor


@pytest.mark.slow
def test_differences_within_the_noise_of_the_reference_are_not_claimed() -> None:
    clock = Clock()
    runs = {"a": clock.taking(1.0), "b": clock.taking(1.045)}
    apart = race(runs, twin=clock.taking(1.05), seconds=0, now=clock)
    assert apart.floor() == pytest.approx(0.05)
    assert apart.comparison("b").finding is Finding.SAME
    together = race(runs, twin=clock.taking(1.0), seconds=0, now=clock)
    assert together.floor() == MIN_NOISE_FLOOR
    assert together.comparison("b").finding is Finding.SLOWER


def test_differences_below_the_session_floor_are_never_claimed() -> None:
    clock = Clock()
    result = race({"a": clock.taking(1.0), "b": clock.taking(1 + 0.9 * MIN_NOISE_FLOOR)}, seconds=0, now=clock)
    assert result.comparison("b").finding is Finding.SAME


# How often verdicts are right; `benchmarks/believable.py --simulate` runs a hundred times as many


def findings(name: str, ratio: float, times: int, *, run: float = 0.02, seconds: float = 60) -> list[Finding]:
    """Verdicts about one kind of noise."""
    races = (
        noise.simulated(noise.NOISES[name], ratio=ratio, run=run, seconds=seconds, seed=seed) for seed in range(times)
    )
    return [each.comparison("other").finding for each in races]


ALWAYS = ("quiet", "coarse clock", "everything")
NOISES = [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.campaign) for name in noise.NOISES]


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_a_model_against_itself_shows_no_difference(name: str) -> None:
    assert findings(name, 1.0, 8, seconds=20) == [Finding.SAME] * 8


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_three_percent_are_detected_within_a_minute(name: str) -> None:
    assert findings(name, 0.97, 4).count(Finding.FASTER) >= 3
    assert findings(name, 1.03, 4).count(Finding.SLOWER) >= 3


def test_a_simulated_machine_has_the_given_noise() -> None:
    machine = noise.Machine(noise.Noise(jitter=0.1, tick=0.01), seed=1)
    run = machine.session(0.1)
    for _ in range(400):
        run()
    assert machine.time == pytest.approx(40, rel=0.05)
    assert machine.now() <= machine.time < machine.now() + 0.0101
    assert math.isclose(machine.now() / 0.01, round(machine.now() / 0.01), abs_tol=1e-6)


def test_sessions_differ_by_at_most_the_floor() -> None:
    machine = noise.Machine(noise.Noise(jitter=0.0, session=0.01), seed=1)
    times: list[float] = []
    for _ in range(50):
        session, began = machine.session(1.0), machine.time
        session()
        times.append(machine.time - began)
    assert 0.007 < max(times) / min(times) - 1 <= 0.0101
    assert interleaving.MIN_NOISE_FLOOR > 0.0101
