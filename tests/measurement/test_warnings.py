"""Warnings about timings, and none without a reason."""

from __future__ import annotations

import pytest
from msgspec import structs

from reporting.sample_bench import MACHINE, point
from sardonyx.records.bench import Finding
from sardonyx.runtime.timed import Settings
from sardonyx.verbs.bench.bench import Conditions, notes
from sardonyx.verbs.bench.sessions import TimingClock

PLAIN = Conditions(Settings(), TimingClock.WALL, isolate=False, seed=0)
POINTS = [point({"batch": 1, "seq": 16}), point({"batch": 1, "seq": 32})]


def test_no_warning_without_a_reason() -> None:
    assert list(notes(POINTS, MACHINE, PLAIN, {"batch", "seq"})) == []
    unknown = structs.replace(MACHINE, busy_before=None, busy_during=None)
    assert list(notes(POINTS, unknown, PLAIN, {"batch", "seq"})) == []


def test_assumed_sizes_give_a_warning() -> None:
    (note,) = notes(POINTS, MACHINE, PLAIN, {"seq"})
    assert note.startswith("assumed sizes of dynamic dimensions: batch=1;")


def test_a_busy_machine_gives_a_warning_with_its_effect() -> None:
    (note,) = notes(POINTS, structs.replace(MACHINE, busy_during=0.5), PLAIN, {"batch", "seq"})
    assert "other processes used 50 % of the CPU" in note
    assert "below 1.3 % are" in note  # one interval reaches 1.25 %, the floor only 1.2 %
    assert note.endswith('`clock="cpu"` does not count their time')
    by_cpu = structs.replace(PLAIN, clock=TimingClock.CPU)
    (note,) = notes(POINTS, structs.replace(MACHINE, busy_during=0.5), by_cpu, {"batch", "seq"})
    assert note.endswith("noise")
    noisy = [structs.replace(POINTS[0], floor=0.07)]
    (note,) = notes(noisy, structs.replace(MACHINE, busy_during=None, busy_before=0.1), PLAIN, {"batch", "seq"})
    assert "other processes used 10 % of the CPU" in note
    assert "below 7.0 % are" in note


def test_more_threads_than_cores_give_a_warning() -> None:
    (note,) = notes(POINTS, MACHINE, structs.replace(PLAIN, settings=Settings(threads=9)), {"batch", "seq"})
    assert note.startswith("9 threads share 8 cores")


@pytest.mark.parametrize(("finding", "factor"), [(Finding.FASTER, 1.1), (Finding.SLOWER, 0.9)])
def test_medians_that_contradict_the_ratio_give_a_warning(finding: Finding, factor: float) -> None:
    first, second, _ = POINTS[0].timings
    assert second.against_first is not None
    belied = structs.replace(
        second, median=factor * first.median, against_first=structs.replace(second.against_first, finding=finding)
    )
    (note,) = notes([structs.replace(POINTS[0], timings=(first, belied))], MACHINE, PLAIN, {"batch", "seq"})
    assert note.startswith("medians and ratios disagree")


@pytest.mark.parametrize("sizes", [1, 2])
def test_each_file_with_different_outputs_is_reported_once(sizes: int) -> None:
    wrong = [
        structs.replace(each, timings=(each.timings[0], structs.replace(each.timings[1], disagrees="output 1 is off")))
        for each in POINTS[:sizes]
    ]
    (note,) = notes(wrong, MACHINE, PLAIN, {"batch", "seq"})
    assert note.startswith("the outputs of small.onnx differ from those of the first file: output 1 is off;")
