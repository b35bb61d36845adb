"""`sardonyx.bench` on small real models: the structure of its record, independent of speed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from benched import OTHER, PRODUCT, SLOWER, written
from sardonyx.errors import ModelError, RuntimeFailure, UsageError
from sardonyx.records.bench import Benchmark, Finding, Start
from sardonyx.verbs.bench import bench as bench_module
from sardonyx.verbs.bench import interleaving, sessions
from sardonyx.verbs.bench.bench import Conditions, PlannedSize, naming, read_entrants, starts_limit
from sardonyx.verbs.bench.interleaving import MIN_ROUNDS

SHORT = 0.05  # seconds: the minimum number of rounds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    written(folder / "a.onnx", PRODUCT)
    written(folder / "b.onnx", SLOWER)
    written(folder / "other.onnx", OTHER)
    written(folder / "two.onnx", "s = Add(x, extra) y = MatMul(s, w)", "float[batch, seq, 8] x, float[8] extra")
    return folder


@pytest.fixture(scope="module")
def swept(folder: Path) -> Benchmark:
    events: list[tuple[str, float | None]] = []
    benchmark = sardonyx.bench(
        [folder / "a.onnx", folder / "b.onnx"],
        seconds=SHORT,
        sizes={"batch": 2},
        sweep={"seq": [3, 5]},
        starts=2,
        progress=lambda phase, fraction: events.append((phase, fraction)),
    )
    fractions = [fraction for _, fraction in events if fraction is not None]
    assert fractions == sorted(fractions)
    assert max(fraction for phase, fraction in events if fraction is not None and "size 1 of 2" in phase) <= 0.5
    assert {"reading", "starting", "loading", "timing"} <= {phase for phase, _ in events}
    return benchmark


@pytest.mark.slow
def test_every_size_has_every_file_with_every_round(swept: Benchmark) -> None:
    assert [point.sizes for point in swept.points] == [{"batch": 2, "seq": 3}, {"batch": 2, "seq": 5}]
    assert [point.inputs for point in swept.points] == [{"x": "float32[2,3,8]"}, {"x": "float32[2,5,8]"}]
    for point in swept.points:
        assert [timing.label for timing in point.timings] == ["a.onnx", "b.onnx"]
        assert len({len(timing.seconds) for timing in point.timings}) == 1
        for timing in point.timings:
            assert len(timing.seconds) >= MIN_ROUNDS
            assert min(timing.seconds) > 0
            assert min(timing.seconds) <= timing.low_whisker <= timing.low_quartile <= timing.median
            assert timing.median <= timing.high_quartile <= timing.high_whisker <= max(timing.seconds)


@pytest.mark.medium
def test_every_other_file_is_compared_with_the_first(swept: Benchmark) -> None:
    for point in swept.points:
        first, second = point.timings
        assert first.against_first is None
        compared = second.against_first
        assert compared is not None
        assert compared.low <= compared.ratio <= compared.high
        assert compared.floor == point.floor > 0
        assert compared.rounds == len(second.seconds)
        assert isinstance(compared.finding, Finding)
        assert second.disagrees is None


def test_starts_are_measured_at_every_size(swept: Benchmark) -> None:
    assert [[len(timing.starts) for timing in point.timings] for point in swept.points] == [[2, 2], [1, 1]]
    timing = swept.points[0].timings[0]
    assert timing.load_seconds is not None
    assert timing.load_seconds in [start.load_seconds for start in timing.starts]
    assert timing.first_run_seconds in [start.first_run_seconds for start in timing.starts]


def test_files_start_in_another_order_each_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def start(path: Path, *_: object) -> Start:
        order.append(path.name)
        return Start(1.0, 1.0, None)

    monkeypatch.setattr(sessions, "start", start)
    files = [folder / "a.onnx", folder / "b.onnx"]
    benchmark = sardonyx.bench(files, seconds=SHORT, starts=10)
    turns = list(zip(order[::2], order[1::2], strict=True))
    assert {tuple(sorted(turn)) for turn in turns} == {("a.onnx", "b.onnx")}
    assert len(set(turns)) == 2
    assert benchmark.points[0].timings[0].peak_bytes is None


@pytest.mark.parametrize(
    ("each", "seconds", "times"), [(0.1, SHORT, 3), (2.4, SHORT, 1), (2.4, 20.0, 2), (9.9, SHORT, 1)]
)
def test_slow_models_start_less_often(
    folder: Path, monkeypatch: pytest.MonkeyPatch, each: float, seconds: float, times: int
) -> None:
    now = 0.0

    def start(*_: object) -> Start:
        nonlocal now
        now += each
        return Start(1.0, 1.0, None)

    monkeypatch.setattr(sessions, "start", start)
    monkeypatch.setattr(bench_module, "cpu_of_children", lambda: now)
    entrants = read_entrants([folder / "a.onnx", folder / "b.onnx"], folder)
    conditions = Conditions(sessions.settings_of(1, "cpu", "all"), sessions.TimingClock.WALL, False, 0)
    starts = bench_module.fresh_starts(entrants, PlannedSize({}, {}, None), 3, conditions, starts_limit(seconds))
    assert [len(of_entrant) for of_entrant in starts] == [times, times]


@pytest.mark.parametrize(
    ("a_run", "seconds", "rounds"), [(0.01, 1.0, 12), (0.5, 20.0, 12), (0.5, 6.0, 6), (2.0, 1.0, 6)]
)
def test_slow_models_run_fewer_rounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, a_run: float, seconds: float, rounds: int
) -> None:
    fewest: list[int] = []

    def race(*_: object, **options: Any) -> None:
        fewest.append(options["fewest"])

    monkeypatch.setattr(interleaving, "race", race)
    monkeypatch.setattr(sessions.LocalSession, "feed", lambda *_: a_run)
    conditions = Conditions(sessions.settings_of(1, "cpu", "all"), sessions.TimingClock.WALL, False, 0)
    with contextlib.ExitStack() as stack:
        timed = bench_module.Sessions(read_entrants([folder / "a.onnx", folder / "b.onnx"], folder), conditions, stack)
        timed.race(PlannedSize({}, {}, None), seconds, lambda *_: None)
    assert fewest == [rounds]


def test_the_record_has_options_and_machine(swept: Benchmark, folder: Path) -> None:
    assert [each.path for each in swept.files] == [str(folder / "a.onnx"), str(folder / "b.onnx")]
    assert [each.nodes for each in swept.files] == [1, 6]
    assert all(each.sha256 and each.bytes for each in swept.files)
    assert swept.options["sweep"] == {"seq": [3, 5]}
    assert swept.options["threads"] == 1
    assert swept.machine.cores >= 1
    assert {"reading", "starting", "loading", "timing"} == swept.seconds.keys()
    assert not any("assumed" in note for note in swept.notes)
    assert Benchmark.from_json(swept.to_json()) == swept


@pytest.mark.slow
def test_each_file_in_its_own_process(folder: Path) -> None:
    benchmark = sardonyx.bench(
        [folder / "a.onnx", folder / "other.onnx"], seconds=SHORT, isolate=True, starts=0, clock="cpu"
    )
    (point,) = benchmark.points
    assert point.sizes == {"batch": 1, "seq": 128}
    assert benchmark.notes[0].startswith("assumed sizes of dynamic dimensions: batch=1, seq=128;")
    assert (benchmark.options["isolate"], benchmark.options["clock"]) == (True, "cpu")
    assert [timing.starts for timing in point.timings] == [(), ()]
    assert point.timings[1].disagrees is not None
    assert "200 %" in point.timings[1].disagrees
    assert any(
        note.startswith("the outputs of other.onnx differ from those of the first file") for note in benchmark.notes
    )


def test_one_model_in_memory_is_timed_with_its_noise_floor(folder: Path) -> None:
    model = onnx.load(folder / "a.onnx")
    benchmark = sardonyx.bench({"mine": model}, seconds=SHORT, starts=0, sizes={"batch": 1, "seq": 4})
    ((timing,),) = [point.timings for point in benchmark.points]
    assert timing.label == benchmark.files[0].label == "mine"
    assert benchmark.files[0].path is None
    assert timing.against_first is None
    assert benchmark.points[0].floor > 0


def test_the_same_file_twice_on_given_inputs(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((3, 2, 8), np.float32))
    both = [folder / "a.onnx", folder / "a.onnx"]
    benchmark = sardonyx.bench(both, seconds=SHORT, starts=0, inputs=tmp_path / "x.npz")
    assert [each.label for each in benchmark.files] == ["a.onnx (1)", "a.onnx (2)"]
    assert benchmark.points[0].inputs == {"x": "float32[3,2,8]"}
    assert benchmark.points[0].sizes == {"batch": 3, "seq": 2}
    assert benchmark.options["inputs"] == "given"
    assert not any("assumed" in note for note in benchmark.notes)


@pytest.mark.parametrize(
    ("files", "options", "error", "message"),
    [
        ([], {}, UsageError, "no model"),
        (["a.onnx"], {"seconds": 0.0}, UsageError, "0 seconds"),
        (["a.onnx"], {"level": "most"}, UsageError, "no level 'most'"),
        (["a.onnx"], {"clock": "sun"}, UsageError, "no clock 'sun'"),
        (["a.onnx"], {"clock": "cpu", "threads": 2}, UsageError, "one thread of ONNX Runtime only"),
        (["a.onnx"], {"provider": "abacus"}, UsageError, "no provider 'abacus'"),
        (["a.onnx"], {"runtimes": ["reference"]}, UsageError, "not timed in reference"),
        (["a.onnx"], {"runtimes": ["openvino"], "provider": "cuda"}, UsageError, "openvino has no provider 'cuda'"),
        (["a.onnx"], {"runtimes": ["openvino"], "clock": "cpu"}, UsageError, "one thread of ONNX Runtime only"),
        (["a.onnx"], {"sizes": {"length": 3}}, UsageError, "a.onnx: no input has a dynamic dimension 'length'"),
        (["a.onnx"], {"sweep": {"length": [3]}}, UsageError, "'length'"),
        (["a.onnx"], {"sizes": {"seq": 3}, "inputs": {"x": np.ones(3)}}, UsageError, "have fixed sizes"),
        (["a.onnx"], {"inputs": {"z": np.ones(3)}}, UsageError, "no input 'z'"),
        (["a.onnx"], {"inputs": {"x": np.ones((2, 2, 9), np.float32)}}, RuntimeFailure, "a.onnx: .*cannot run"),
        (["a.onnx", "two.onnx"], {}, UsageError, "two.onnx: there is no value for its input 'extra'"),
        (["missing.onnx"], {}, ModelError, "missing.onnx"),
    ],
)
def test_invalid_requests_are_refused(
    folder: Path, files: list[str], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    chosen: dict[str, Any] = {"seconds": SHORT} | options
    with pytest.raises(error, match=message):
        sardonyx.bench([folder / each for each in files], starts=0, **chosen)


@pytest.mark.slow
def test_an_interrupt_in_the_middle_leaves_no_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.verbs.bench.sessions import IsolatedSession

    closed: list[int] = []
    close = IsolatedSession.close

    def noted(session: IsolatedSession) -> None:
        close(session)
        with pytest.raises(ProcessLookupError):
            os.kill(session.process, 0)
        closed.append(session.process)

    def stop(phase: str, fraction: float | None) -> None:
        if "round 2" in phase:
            raise KeyboardInterrupt

    monkeypatch.setattr(IsolatedSession, "close", noted)
    with pytest.raises(KeyboardInterrupt):
        sardonyx.bench(folder / "a.onnx", seconds=SHORT, isolate=True, starts=0, progress=stop)
    assert len(set(closed)) == 2


def test_errors_name_their_file_and_keep_their_own_hint() -> None:
    with pytest.raises(RuntimeFailure, match=r"m\.onnx: it broke") as failed, naming("m.onnx", "try this"):
        raise RuntimeFailure("it broke")
    assert failed.value.hint == "try this"
    with pytest.raises(RuntimeFailure) as failed, naming("m.onnx", "try this"):
        raise RuntimeFailure("it broke", hint="its own")
    assert failed.value.hint == "its own"
