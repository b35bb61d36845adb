"""The campaign: timings in the runtime, cached results, and bounds."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import campaign
import feeds
import latency
import latency_contest
import node_contest
import peer_table
import peers
import shelf
import stage
import time_contest
from claims import Claim
from sardonyx.ir import io
from sardonyx.verbs.bench.interleaving import MIN_ROUNDS, Race

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, 3] x, int64[batch] i) => (float[batch, 3] y, float[batch, 2] z)
<float[3] one = {1.0, 2.0, 3.0}, float[5, 2] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}>
{ a = Add (x, one)  y = Identity (a)  z = Gather (table, i) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def changed(model: Path, name: str, old: str, new: str) -> Path:
    path = model.with_name(name)
    onnx.save(onnx.parser.parse_model(MODEL.replace(old, new)), path)
    return path


# Latency


@pytest.mark.campaign
@pytest.mark.parametrize("clock", latency.CLOCKS)
def test_files_are_timed_from_the_command_line(model: Path, clock: str) -> None:
    words = [sys.executable, latency.__file__, f"one={model}", f"two={model}", "--seconds", "0.1", "--clock", clock]
    output = subprocess.run([*words, "--json"], check=True, capture_output=True).stdout
    race = Race(**json.loads(output))
    assert {name: len(seconds) for name, seconds in race.seconds.items()} == {"one": MIN_ROUNDS, "two": MIN_ROUNDS}
    assert race.rounds == MIN_ROUNDS
    assert 0.2 < race.comparison("two").ratio < 5


@pytest.mark.campaign
def test_a_timing_is_shown_relative_to_the_first_file(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    latency.main([f"one={model}", f"two={model}", "--seconds", "0.1"])
    one, two = capsys.readouterr().out.splitlines()
    assert "1.000 × [1.000, 1.000]  no difference" in one
    assert two.startswith("two ")


def test_the_cpu_clock_is_refused_for_several_threads(model: Path) -> None:
    with pytest.raises(SystemExit):
        latency.main([f"a={model}", "--threads", "2", "--clock", "cpu"])


def test_the_faster_peer_is_the_baseline() -> None:
    """The faster of two peers is the baseline, and only a clear difference counts against us."""
    section, case = stage.Section("", "", []), stage.Case("a", "dynamo", Path("a"))
    times = {"source": 10.0, "portable": 8.0, "ort": 5.0, "slow": 9.0, "fast": 6.0}
    race = Race("source", {name: (each,) * MIN_ROUNDS for name, each in times.items()}, (10.0,) * MIN_ROUNDS, 1.0, 0)
    latency_contest._add(section, case, race, ["slow", "fast"])
    assert [claim.met for claim in section.claims] == [False, True]
    assert section.rows[0][1:3] == ["10000.0 ms", "0.80 [0.80, 0.80]"]
    assert section.rows[0][4] == "fast 0.60 [0.60, 0.60]"


# Feeds


def test_dynamic_dims_get_the_given_sizes_and_indices_stay_in_range(model: Path) -> None:
    small, large = feeds.several(str(model), ({"batch": 2}, {"batch": 50}))
    assert small["x"].shape == (2, 3)
    assert large["x"].shape == (50, 3)
    assert 0 <= large["i"].min() <= large["i"].max() < 5


def test_without_dynamic_dims_there_is_one_size(model: Path) -> None:
    fixed = changed(model, "fixed.onnx", "batch", "4")
    assert len(list(feeds.several(str(fixed), ({"batch": 2}, {"batch": 50})))) == 1
    assert feeds.open_dims(io.load(model)) == {"batch"}


def test_distance_is_relative_and_nan_is_infinite() -> None:
    assert feeds.distance(np.array([10.0, -100.0]), np.array([11.0, -100.0])) == pytest.approx(0.01)
    assert feeds.distance(np.array([1.0, np.nan]), np.array([1.0, np.nan])) == 0
    assert feeds.distance(np.array([1.0, 2.0]), np.array([1.0, np.nan])) == float("inf")
    assert feeds.distance(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == float("inf")
    assert feeds.distance(np.zeros((2, 1)), np.zeros(2)) == float("inf")


# Shelf


@pytest.mark.campaign
def test_a_peers_result_is_computed_once_per_content(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = shelf.Shelf(tmp_path / "shelf")
    first = kept.result("onnxruntime", model)
    assert (first.nodes, first.valid, first.why) == (2, True, "")
    assert list((tmp_path / "shelf").rglob("*.onnx")) == []
    monkeypatch.setattr(shelf, "command", lambda *_: ["false"])
    assert shelf.Shelf(tmp_path / "shelf").result("onnxruntime", model) == first
    other = changed(model, "m.onnx", "1.0, 2.0", "1.5, 2.0")
    assert shelf.Shelf(tmp_path / "shelf").result("onnxruntime", other).nodes is None


@pytest.mark.campaign
def test_wrong_and_unloadable_results_are_reported(model: Path, tmp_path: Path) -> None:
    kept = shelf.Shelf(tmp_path / "shelf")
    assert kept.check(model, model) == (True, "")
    wrong, why = kept.check(model, changed(model, "wrong.onnx", "3.0}", "3.2}"))
    assert not wrong
    assert "differ" in why
    broken, why = kept.check(model, changed(model, "broken.onnx", "Identity (a)", "com.none.Thing (a)"))
    assert not broken
    assert "cannot load" in why


@pytest.mark.campaign
def test_a_cached_file_is_deleted_when_dropped(model: Path, tmp_path: Path) -> None:
    kept = shelf.Shelf(tmp_path / "shelf")
    path = kept.file("onnxruntime", model)
    assert path is not None
    assert path.exists()
    kept.drop("onnxruntime", model)
    assert not path.exists()


# Contests


def _result(peer: str, nodes: int | None, valid: bool = True) -> shelf.Result:
    return shelf.Result(peer, nodes, 0, 0, 1.0, 1.0, valid, "")


def test_a_peer_with_wrong_outputs_does_not_count() -> None:
    rivals = {peer: _result(peer, 50) for peer in (*peers.PORTABLE, *peers.RUNTIME)}
    rivals |= {"onnxslim": _result("onnxslim", 10, valid=False), "onnxsim": _result("onnxsim", 40)}
    best = node_contest.best(rivals, "portable")
    assert best is not None
    assert (best.peer, best.nodes) == ("onnxsim", 40)


def test_every_promised_model_is_in_the_campaign() -> None:
    for promised in node_contest.MOST.values():
        assert set(promised) <= set(stage.CASES)


class Rivals(shelf.Shelf):
    """Peers that leave a hundred nodes each."""

    def result(self, peer: str, source: Path) -> shelf.Result:
        return _result(peer, 100)


@pytest.mark.slow
def test_nodes_are_counted_verified_and_compared_with_the_best_peer(model: Path, tmp_path: Path) -> None:
    model.rename(tmp_path / "tiny.dynamo.onnx")
    place = stage.Stage(tmp_path, Rivals(tmp_path / "shelf"), tmp_path, ["tiny"], ["dynamo"])
    section = node_contest.nodes(place)
    assert section.rows == [["tiny dynamo", "3", *["100"] * 6, "2", "2", "2"]]
    assert [claim.what for claim in section.claims if not claim.met] == []
    mean = next(claim for claim in section.claims if "geometric" in claim.what)
    assert mean.figure == pytest.approx(0.02)


@pytest.mark.campaign
def test_the_verification_table_counts_the_sizes_of_every_dim(model: Path, tmp_path: Path) -> None:
    model.rename(tmp_path / "tiny.dynamo.onnx")
    place = stage.Stage(tmp_path, Rivals(tmp_path / "shelf"), tmp_path, ["tiny"], ["dynamo"])
    section = node_contest.proof(place)
    assert [row[-1] for row in section.rows] == ["proven", "proven"]
    assert int(section.rows[0][4].removeprefix("batch ")) >= 2
    assert all(claim.met for claim in section.claims)


def test_a_failed_verification_fails_the_claim() -> None:
    section = stage.Section("", "", [])
    case = stage.Case("a", "dynamo", Path("a"))
    node_contest._add_proof(section, case, "ort", {}, "error: it broke")
    assert not section.claims[0].met
    assert section.rows[0][-1] == "FAILED: error: it broke"


@pytest.mark.campaign
def test_time_is_ours_over_the_rivals(model: Path, tmp_path: Path) -> None:
    model.rename(tmp_path / "tiny.dynamo.onnx")
    place = stage.Stage(tmp_path, Rivals(tmp_path / "shelf"), tmp_path, ["tiny"], ["dynamo"], repeats=1)
    section = time_contest.time(place)
    runs = section.data[0]
    assert section.claims[0].figure == pytest.approx(runs["sardonyx"][0][0] / runs["onnxruntime"][0][0])
    assert section.claims[1].figure == runs["sardonyx"][0][2]


def _growth(times: dict[int, float]) -> list[Claim]:
    return [claim for _, claims in time_contest._grown("dynamo", times) for claim in claims]


def test_linear_growth_meets_its_bound_at_any_fixed_cost() -> None:
    for fixed in (0.0, 5.0):
        assert all(claim.met for claim in _growth({layers: fixed + 0.1 * layers for layers in (6, 12, 24, 48)}))


def test_growth_hidden_by_a_fixed_cost_is_detected() -> None:
    missed = [
        claim.what for claim in _growth({n: 5.0 + 0.01 * n + 0.0005 * n * n for n in (6, 12, 24, 48)}) if not claim.met
    ]
    assert missed == ["dynamo: one more layer, 4 × the layers", "dynamo: one more layer, 8 × the layers"]


# Stored results


def _section(*claims: Claim) -> dict[str, Any]:
    section = stage.Section("Nodes", "counted", ["model", "a|b"], [["m", "x|y"]], list(claims), [])
    return campaign.measured(section)


def test_new_measurements_are_stored_beside_earlier_ones(tmp_path: Path) -> None:
    data, page = tmp_path / "p.json", tmp_path / "p.md"
    campaign.keep({"nodes": _section(Claim("good", 1, 2, "×"), Claim("bad", 3, 2, "×", "why"))}, data, page)
    campaign.keep({"time": dict(_section(), title="Time")}, data, page)
    assert set(json.loads(data.read_text())) == {"nodes", "time"}
    text = page.read_text()
    assert "Promises kept: 1 of 2." in text
    assert "- missed: bad: 3, promised 2 (why)" in text
    assert "| m | x/y |" in text
    assert text.index("## Nodes") < text.index("## Time")


def test_an_unknown_contest_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        campaign.arguments(["nodse"])
    assert "unknown contest nodse" in capsys.readouterr().err


def test_a_claim_reads_back_equal() -> None:
    claim = Claim("x", 1.5, 1.0, "×")
    assert Claim(**dataclasses.asdict(claim)) == claim
    assert not _section(claim)["claims"][0]["met"]


def test_the_pages_show_the_stored_results() -> None:
    page, kept = peer_table.README.read_text("utf-8"), json.loads(peer_table.DATA.read_text("utf-8"))
    assert peer_table.START in page
    assert peer_table.refreshed(page, kept) == page
    assert campaign.PAGE.read_text("utf-8") == campaign.page(kept)


def test_a_wrong_result_is_not_the_best_peer() -> None:
    results = {"onnxslim": (10, False, "answers otherwise"), "onnxsim": (30, True, ""), "onnxscript": (20, True, "")}
    nodes = dict.fromkeys(peers.RUNTIME[1:], (None, False, "failed")) | {peers.RUNTIME[0]: (25, True, "")}
    row = {"model": "m", "exporter": "dynamo", "before": 1234, "peers": results | nodes}
    row["ours"] = {"portable": (9, True, ""), "ort": (8, True, ""), "fewest": (7, True, "")}
    versions = dict.fromkeys(("onnxslim", "onnxsim", "onnxscript", "onnxruntime"), "1")
    nodes = {"data": [row], "date": "2026-01-01", "versions": versions}
    assert "| m | 1,234 | 20 (onnxscript) | **9** | 25 (onnxruntime) | **8** | 7 |" in peer_table.table(nodes)
    assert "55 % fewer nodes (on no model more)" in peer_table.summary(nodes)
    row["ours"]["ort"] = (50, True, "")
    assert "100 % more nodes (more on 1 models)" in peer_table.summary(nodes)
