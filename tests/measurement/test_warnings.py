"""What a reader of timings is warned of, and that nothing is said without a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from reporting.sample_bench import MACHINE, point
from sardonyx.measurement.bench import notes
from sardonyx.measurement.sessions import TimingClock
from sardonyx.measurement.trial import Conditions
from sardonyx.records.bench import Finding
from sardonyx.runtime.timed import Settings

PLAIN = Conditions(Settings(), TimingClock.WALL, isolate=False, seed=0)
POINTS = [point({"batch": 1, "seq": 16}), point({"batch": 1, "seq": 32})]


def test_nothing_is_said_where_all_is_well() -> None:
    assert list(notes(POINTS, MACHINE, PLAIN, {"batch", "seq"})) == []
    unknown = structs.replace(MACHINE, busy_before=None, busy_during=None)
    assert list(notes(POINTS, unknown, PLAIN, {"batch", "seq"})) == []


def test_sizes_nobody_chose_are_told() -> None:
    (said,) = notes(POINTS, MACHINE, PLAIN, {"seq"})
    assert said.startswith("assumed sizes of dynamic dimensions: batch=1;")


def test_a_busy_machine_is_told_with_what_it_hides() -> None:
    (said,) = notes(POINTS, structs.replace(MACHINE, busy_during=0.5), PLAIN, {"batch", "seq"})
    assert "other processes used 50 % of the CPU" in said
    assert "below 1.3 % are" in said  # one interval reaches 1.25 %, the floor only 1.2 %
    assert said.endswith('`clock="cpu"` does not count their time')
    by_cpu = replace(PLAIN, clock=TimingClock.CPU)
    (said,) = notes(POINTS, structs.replace(MACHINE, busy_during=0.5), by_cpu, {"batch", "seq"})
    assert said.endswith("noise")
    noisy = [structs.replace(POINTS[0], floor=0.07)]
    (said,) = notes(noisy, structs.replace(MACHINE, busy_during=None, busy_before=0.1), PLAIN, {"batch", "seq"})
    assert "other processes used 10 % of the CPU" in said
    assert "below 7.0 % are" in said


def test_more_threads_than_cores_are_told() -> None:
    (said,) = notes(POINTS, MACHINE, replace(PLAIN, settings=Settings(threads=9)), {"batch", "seq"})
    assert said.startswith("9 threads share 8 cores")


@pytest.mark.parametrize(("finding", "factor"), [(Finding.FASTER, 1.1), (Finding.SLOWER, 0.9)])
def test_medians_that_belie_the_ratio_are_told(finding: Finding, factor: float) -> None:
    first, second, _ = POINTS[0].timings
    assert second.against_first is not None
    belied = structs.replace(
        second, median=factor * first.median, against_first=structs.replace(second.against_first, finding=finding)
    )
    (said,) = notes([structs.replace(POINTS[0], timings=(first, belied))], MACHINE, PLAIN, {"batch", "seq"})
    assert said.startswith("medians and ratios disagree")


@pytest.mark.parametrize("sizes", [1, 2])
def test_each_file_that_answers_otherwise_is_told_once(sizes: int) -> None:
    wrong = [
        structs.replace(each, timings=(each.timings[0], structs.replace(each.timings[1], disagrees="output 1 is off")))
        for each in POINTS[:sizes]
    ]
    (said,) = notes(wrong, MACHINE, PLAIN, {"batch", "seq"})
    assert said.startswith("the outputs of small.onnx differ from those of the first file: output 1 is off;")
