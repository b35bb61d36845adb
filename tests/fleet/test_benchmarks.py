"""The campaign over many models: its models, its comparison of results, its faults, costs and findings."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import fleet_costs
import fleet_findings
import fleet_models
import fleet_table
import sardonyx
from benchmarks import fleet
from sardonyx.fleet.engines import LocalEngine

CATALOGUE = (Path(fleet_models.__file__).parent / "catalogue.md").read_text()


# Models


def test_architectures_of_the_catalogue_are_planned_with_exporters_and_seeds() -> None:
    table = fleet_models.known(CATALOGUE)
    keys = sorted({(library, name) for library, name, _ in table})
    plans = fleet_models.plans(keys, table, 100)
    assert sum(len(plan.variants) for plan in plans) == 100
    assert {exporter for plan in plans for exporter, _ in plan.variants} == {"dynamo", "torchscript"}
    sizes = [table[plan.library, plan.name, "dynamo"].parameters for plan in plans]
    assert max(sizes) > fleet_models.MEDIUM > np.median(sizes)
    assert max(sizes) <= fleet_models.LARGE


@pytest.mark.slow
def test_models_are_drawn_and_copied_once(tmp_path: Path) -> None:
    packages = tmp_path / "packages" / "one"
    packages.mkdir(parents=True)
    weights = ", ".join(map(str, range(1000)))
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2, 1000] x) => (float[2, 1000] y)
        <float[1000] w = {{{weights}}}> {{ y = Add(x, w) }}"""
    onnx.save(onnx.parser.parse_model(text), packages / "add.onnx")
    (packages / "same.onnx").write_bytes((packages / "add.onnx").read_bytes())
    (packages / "broken.onnx").write_bytes(b"\xff" * 5000)
    words = [str(tmp_path / "models"), "--exported", "0", "--packages", str(tmp_path / "packages")]
    assert fleet_models.main([*words, "--count", "3"]) == 0
    manifest = tmp_path / "models" / fleet_models.MANIFEST
    first = manifest.read_text()
    assert fleet_models.main([*words, "--count", "4"]) == 0
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert manifest.read_text().startswith(first)
    assert [row["origin"] for row in rows] == ["packages", "drawn", "drawn", "drawn"]
    assert len({row["name"] for row in rows}) == 4
    assert all((tmp_path / "models" / row["source"]).stat().st_size == row["bytes"] for row in rows)


@pytest.mark.parametrize(
    ("inputs", "family"),
    [
        ("int64[n] input_ids", "text"),
        ("float[1, 3, 8, 8] x", "images, convolution"),
        ("float[1, 80] input_features", "sound"),
        ("int64[n] input_ids, float[1, 3, 8, 8] pixel_values", "several inputs"),
        ("float[1, 4] x", "other"),
    ],
)
def test_the_family_follows_from_the_inputs(inputs: str, family: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float y) {{ y = RandomNormal <shape = [1]> () }}'
    assert fleet_models.family(onnx.parser.parse_model(text)) == family


def test_attention_is_a_product_with_a_softmax() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        { a = Softmax(x) b = Identity(a) y = MatMul(b, x) }"""
    assert fleet_models.family(onnx.parser.parse_model(text)) == "images, attention"


def test_a_model_that_was_optimized_before_is_marked(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    source = tmp_path / "source.onnx"
    onnx.save(onnx.parser.parse_model(text), source)
    sardonyx.optimize(source, tmp_path / "result.onnx", verify="off")
    marks = [fleet_models.row_of(path, "a", "packages", "a")["optimized"] for path in sorted(tmp_path.glob("*.onnx"))]
    assert marks == [True, False]


# Comparison


def results(folder: Path, *, model: bytes = b"model", **record: Any) -> Path:
    """Write a folder of results with one model."""
    (folder / "drawn").mkdir(parents=True)
    (folder / "drawn" / "a.onnx").write_bytes(model)
    (folder / "drawn" / "a.json").write_text(json.dumps({"record": "run", "seconds": {"total": id(folder)}, **record}))
    row = {"name": "drawn/a", "status": "done", "code": 0, "reason": "", "seconds": id(folder), "numbers": record}
    (folder / fleet.SUMMARY).write_text(json.dumps({"models": [row]}))
    return folder


def test_times_and_machines_do_not_make_results_differ(tmp_path: Path) -> None:
    compared = fleet.compare(results(tmp_path / "a", nodes=3), results(tmp_path / "b", nodes=3))
    assert compared["equal"]
    assert (compared["models"], compared["records"], compared["rows"]) == (1, 1, 1)


def test_other_bytes_and_numbers_make_results_differ(tmp_path: Path) -> None:
    compared = fleet.compare(results(tmp_path / "a", nodes=3), results(tmp_path / "b", model=b"other", nodes=4))
    assert not compared["equal"]
    assert compared["different"] == ["drawn/a.onnx"]
    assert compared["records_different"] == {"drawn/a.json": ["nodes"]}
    assert compared["rows_different"] == ["drawn/a"]


def test_a_missing_result_makes_results_differ(tmp_path: Path) -> None:
    other = results(tmp_path / "b")
    (other / "drawn" / "a.onnx").unlink()
    compared = fleet.compare(results(tmp_path / "a"), other)
    assert not compared["equal"]
    assert compared["missing"] == ["drawn/a.onnx"]


# Faults


class Workers:
    """Counts kills."""

    def kill_worker(self) -> int:
        return 1


@pytest.mark.slow
def test_a_killed_command_is_started_again_until_it_ends(tmp_path: Path) -> None:
    code = "for n in range(20):\n pathlib.Path(sys.argv[1], f'{n}.onnx').touch()\n time.sleep(.05)"
    line = [sys.executable, "-c", f"import sys, time, pathlib\n{code}", str(tmp_path)]

    def done() -> int:
        return len(list(tmp_path.glob("*.onnx")))

    ended, kills = fleet._disturbed(line, tmp_path / "log", Workers(), done, 20, 0.4)  # type: ignore[arg-type]
    assert ended == 0
    assert kills["coordinator"] == 2
    assert kills["workers"] >= 1
    assert done() == 20


# Costs


@pytest.mark.slow
def test_the_overhead_is_relative_to_a_plain_loop() -> None:
    works = [fleet_costs.Pause(number, 0.02) for number in range(5)]
    engine = LocalEngine(1)
    try:
        (row,) = fleet_costs._overhead_rows({"local": engine}, works, 2)
    finally:
        engine.close()
    assert 0.02 <= row["seconds"] < 0.2
    assert row["overhead"] > -0.5
    assert row["cost"] == pytest.approx(row["overhead"] * row["seconds"], abs=0.02)
    assert row["start"] > 0.05


def test_writes_to_a_store_are_timed(tmp_path: Path) -> None:
    (row,) = fleet_costs.writes(str(tmp_path), (100,), 20)
    assert 0 < row["write"] <= row["slow"]
    assert len(list(tmp_path.rglob("*.json"))) == 20


@pytest.mark.slow
def test_simulated_workers_run_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(fleet_costs, "IDLE", 0.2)
    row = fleet_costs.simulate(tmp_path, 4, [0.05], 20)
    assert 0.05 < row["efficiency"] <= 1
    assert row["cpu"]["scheduler"] > 0


# Findings and tables


def test_ranks_and_correlation() -> None:
    assert fleet_findings.ranks([3, 1, 1, 7]).tolist() == [3, 1.5, 1.5, 4]
    assert fleet_findings.rank_correlation([(1, 10), (2, 20), (3, 300)]) == pytest.approx(1)
    assert np.isnan(fleet_findings.rank_correlation([(1, 10), (2, 10)]))


def model(name: str, saved: int, **more: Any) -> fleet_findings.Model:
    """Return a model with 10 nodes."""
    told = {"architecture": name, "family": "text", "exporter": "dynamo", "passes": {"fold": (1, saved)}} | more
    return fleet_findings.Model(name=name, before=10, after=10 - saved, chains=fleet_findings.Counter(), **told)


@pytest.mark.medium
def test_the_interval_is_over_architectures_and_not_over_their_copies() -> None:
    def mean(models: Any) -> float:
        return float(np.mean([each.saved for each in models]))

    single = [model(str(number), number % 5) for number in range(20)]
    copies = [each for each in single for _ in range(10)]
    one, ten = fleet_findings.interval(single, mean), fleet_findings.interval(copies, mean)
    assert one.low < one.value < one.high
    assert one.high - one.low == pytest.approx(ten.high - ten.low, rel=0.1)


def test_chains_are_pairs_with_one_reader() -> None:
    wiring = {"ops": ["MatMul", "Add", "Relu", "Mul"], "edges": [[0, 1], [1, 2], [1, 3]], "outputs": {"y": 2}}
    assert fleet_findings.chains(wiring) == {"MatMul → Add": 1}


def test_the_page_says_what_the_records_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_findings, "DRAWS", 100)
    rows = []
    for number in range(6):
        name = f"exported/a{number}"
        row = {"name": name, "architecture": f"a{number}", "family": "text", "origin": "exported", "optimized": False}
        rows.append(row | {"exporter": "dynamo", "bytes": 1_000_000})
        counts = {"before": {"nodes": 10}, "after": {"nodes": 4}}
        passes = [{"name": "fuse-gelu", "rewrites": 2, "nodes": -6}, {"name": "fuse-none", "rewrites": 0, "nodes": 0}]
        wiring = {"ops": ["Mul", "Add"], "edges": [[0, 1]], "outputs": {}}
        write(tmp_path / "local", name, {"record": "run", "passes": passes, "wiring_after": wiring, **counts})
        with (tmp_path / "timing.jsonl").open("a") as file:
            file.write(json.dumps({"name": name, "ratio": 0.5 + number / 10, "finding": "faster"}) + "\n")
    tables = tmp_path / "opportunities" / "tables"
    tables.mkdir(parents=True)
    left = [f"a{number},fuse-x,it is dynamic,7" for number in range(6)]
    (tables / "why_left.csv").write_text("\n".join(["model,pass,reason,places", *left]))
    page = "\n".join(fleet_findings.page(rows, tmp_path))
    assert "| text | 6 | 6 | 1.0 | 10 | 60 % (60–60) | 60–60 % | 0 |" in page
    assert "| `fuse-gelu` | 100 % (100–100) | 12 | 36 | 100 % (100–100) |" in page
    assert "| `fuse-x` | it is dynamic | 42 | 6 | 6 | text |" in page
    assert "| Mul → Add | 6 | 25.0 % | 100 % (100–100) |" in page
    assert "| all | 6 | 60 % (60–60) | 25 % " in page
    assert "fuse-none" not in page


def write(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Write a record where a run over many models has it."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def test_the_table_has_what_was_measured() -> None:
    row = {
        "engine": "dask",
        "busy": True,
        "cells": 60,
        "rounds": 3,
        "seconds": 1.0,
        "overhead": 0.013,
        "cost": 0.0131,
        "start": 0.6,
    }
    page = "\n".join(fleet_table.page({"overhead": {"rows": [row]}}))
    assert "| dask | compute | 60 | 1000 ms | 1.3 % | 13.1 ms | 0.6 s |" in page
    assert "Scaling" not in page
