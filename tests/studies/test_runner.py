"""A study stores finished cells: after a kill, a failure or damage it computes only what is missing."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sardonyx.errors import OutputError, RuntimeFailure, UsageError
from sardonyx.fleet.cells import Cell
from sardonyx.fleet.engines import Engine, LocalEngine
from sardonyx.verbs.study import runner
from sardonyx.verbs.study.experiment import CellWork, Subject
from studies.planted import CELLS, Followed, Hopeless, Planted, Unlucky, conduct

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One for all tests: each process of an engine takes most of a second to start."""
    with contextlib.closing(LocalEngine(4)) as several:
        yield several


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files to study: the experiments here read only their size."""
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"second one")
    return tmp_path


def log(folder: Path) -> list[tuple[str, ...]]:
    """What was computed: model, key, whether timed, beginning, end."""
    path = folder / "log.txt"
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "out" / "cells").rglob("*.json"))


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_gives_the_same_answer(folder: Path, engine: Engine) -> None:
    first = conduct(folder, [Planted()], engine)
    computed = log(folder)
    second = conduct(folder, [Planted()], engine)
    assert len(computed) == first.cells == second.reused == 2 * CELLS
    assert log(folder) == computed
    same_moment = msgspec.structs.replace(second, environment=first.environment)  # it has the time of day
    assert first.to_json() == same_moment.to_json()
    assert [row[2] for row in first.tables[0].rows] == [*range(CELLS)] * 2  # in planned order, whichever finished first


@pytest.mark.slow
def test_one_process_gives_the_same_answers_as_several(
    folder: Path, engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    many = conduct(folder, [Planted()], engine)
    other = tmp_path_factory.mktemp("other")
    for name in ("a", "b"):
        (other / name).write_bytes((folder / name).read_bytes())
    with contextlib.closing(LocalEngine(1)) as one:
        assert conduct(other, [Planted()], one).tables == many.tables


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(3))
def test_a_study_killed_at_a_random_moment_resumes(folder: Path, engine: Engine, draw: int) -> None:
    command = [sys.executable, str(ROOT / "tests/studies/planted.py"), str(folder), "0.05"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "src")))}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    pause = random.Random(draw).uniform(0.1, 1.0)
    until = time.monotonic() + 20
    while not kept(folder) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)  # the first cell may take long on a busy machine; the kill comes at a random moment after it
    time.sleep(pause)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = len(kept(folder))
    resumed = conduct(folder, [Planted(0.05, timed=1)], engine)
    assert resumed.reused == before > 0
    times = Counter(entry[:2] for entry in log(folder))
    assert len(times) == 2 * (CELLS + 1)
    assert sum(times.values()) - len(times) <= 2  # at most one cell per process is computed again
    assert resumed.tables == conduct(folder, [Planted(0.05, timed=1)], engine).tables
    assert [row[2] for row in resumed.tables[0].rows] == [*range(CELLS + 1)] * 2
    assert not list((folder / "out").rglob("*.part"))


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_study(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/studies/planted.py"), str(folder), "0.5"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "src")))}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    until = time.monotonic() + 30
    while not log(folder) and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()  # kills the study alone, not its workers
    process.wait()
    time.sleep(1.5)  # three times what a cell takes
    done = log(folder)
    time.sleep(1.0)
    assert log(folder) == done
    assert len(done) < 2 * (CELLS + 1)


def test_a_worker_in_another_folder_finds_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    sent = pickle.dumps(CellWork(Planted(), Cell("planted", "a", "0", {"seed": 0}), Subject("a", Path("a"))))
    monkeypatch.chdir("/")
    assert pickle.loads(sent).compute(folder)["size"] == len(b"first")


@pytest.mark.slow
def test_timed_cells_run_alone_and_last(folder: Path, engine: Engine) -> None:
    conduct(folder, [Planted(0.02, timed=2)], engine)
    spans = [(float(began), float(ended), timed == "True") for _, _, timed, began, ended in log(folder)]
    timed = sorted(span[:2] for span in spans if span[2])
    assert len(timed) == 4
    assert timed[0][0] >= max(ended for _, ended, is_timed in spans if not is_timed)
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(timed))


@pytest.mark.slow
def test_failures_are_reported_and_retried_and_stop_nothing(folder: Path, engine: Engine) -> None:
    results = conduct(folder, [Unlucky(), Planted()], engine)
    reasons = {
        failure.reason.partition(": ")[0]: failure.reason for failure in results.failures if failure.model == "a"
    }
    assert set(reasons) == {"1", "2", "3", "4"}
    assert reasons["1"] == "1: this model is not to be had"
    assert "KeyError: 'nothing' (planted.py:" in reasons["2"]
    assert "its process was killed (SIGKILL)" in reasons["3"]
    assert "TypeError" in reasons["4"]
    assert len(results.tables[0].rows) == 2 * 2
    assert len(results.tables[1].rows) == 2 * CELLS
    (folder / "mended").touch()
    mended = conduct(folder, [Unlucky(), Planted()], engine)
    assert mended.failures == ()
    assert mended.reused == 2 * 2 + 2 * CELLS


@pytest.mark.slow
def test_a_study_in_which_every_cell_fails_is_an_error(folder: Path, engine: Engine) -> None:
    with pytest.raises(RuntimeFailure, match="all 12 cells of the study failed, first a: 0: this model cannot be read"):
        conduct(folder, [Hopeless()], engine)
    assert conduct(folder, [Hopeless(), Planted()], engine).cells == 4 * CELLS  # a part of them is not


@pytest.mark.slow
def test_other_options_compute_only_what_they_change(folder: Path, engine: Engine) -> None:
    conduct(folder, [Planted()], engine)
    assert conduct(folder, [Planted()], engine, seed=1).reused == 0
    assert conduct(folder, [Planted()], engine, seed=0).reused == 2 * CELLS
    (folder / "b").write_bytes(b"another second")
    changed = conduct(folder, [Planted()], engine, seed=0)
    assert changed.reused == CELLS
    assert changed.tables[0].rows[-1][-1] == len(b"another second")


@pytest.mark.slow
def test_damaged_cells_are_computed_again(folder: Path, engine: Engine) -> None:
    first = conduct(folder, [Planted()], engine)
    torn, changed, emptied = kept(folder)[:3]
    torn.write_bytes(torn.read_bytes()[:-20])
    changed.write_bytes(changed.read_bytes().replace(b'"seed":0,"index"', b'"seed":9,"index"'))
    emptied.write_bytes(b"")
    second = conduct(folder, [Planted()], engine)
    assert second.reused == 2 * CELLS - 3
    assert second.tables == first.tables


@pytest.mark.slow
def test_further_cells_are_planned_from_the_first_answers(folder: Path, engine: Engine) -> None:
    results = conduct(folder, [Followed()], engine)
    assert {row[2] for row in results.tables[0].rows} == {*range(CELLS), 100, 102, 104}
    assert conduct(folder, [Followed()], engine).reused == results.cells == 2 * (CELLS + CELLS // 2)


@pytest.mark.slow
def test_two_studies_in_one_folder_share_their_cells(folder: Path, engine: Engine) -> None:
    """Both end with all cells; one that both begin at the same moment is computed twice, but stored once."""
    command = [sys.executable, str(ROOT / "tests/studies/planted.py"), str(folder), "0.1"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), str(ROOT / "src")))}
    studies = [subprocess.Popen(command, env=env) for _ in range(2)]
    assert [process.wait(60) for process in studies] == [0, 0]
    assert len(kept(folder)) == 2 * (CELLS + 1)
    assert not list((folder / "out").rglob("*.part"))
    computed = log(folder)
    times = Counter(entry[:2] for entry in computed)
    assert len(times) == 2 * (CELLS + 1)
    assert max(times.values()) <= 2
    again = conduct(folder, [Planted(0.1, timed=1)], engine)
    assert again.reused == again.cells == 2 * (CELLS + 1)  # none is damaged
    assert log(folder) == computed
    assert [row[2] for row in again.tables[0].rows] == [*range(CELLS + 1)] * 2


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").touch()
    with pytest.raises(OutputError, match="is not empty and is not a study"):
        runner.study([tmp_path / "letters.txt"], tmp_path)
    with pytest.raises(OutputError, match="is a file"):
        runner.study([tmp_path / "letters.txt"], tmp_path / "letters.txt")


def test_experiments_include_their_dependencies() -> None:
    chosen = runner.select_experiments(runner.ALL, only=["correlation"])
    assert [each.name for each in chosen] == ["overview", "correlation"]
    assert "order" not in {each.name for each in runner.select_experiments(runner.ALL, skip=["order"])}
    with pytest.raises(UsageError, match="no experiment 'ordr'") as error:
        runner.select_experiments(runner.ALL, only=["ordr"])
    assert error.value.hint == "did you mean order?"


def test_every_experiment_has_a_name_and_builds_on_earlier_ones() -> None:
    names = [each.name for each in runner.ALL]
    assert len(set(names)) == len(names)
    for index, each in enumerate(runner.ALL):
        assert set(each.uses) <= set(names[:index]), each.name
