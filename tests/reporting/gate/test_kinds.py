"""Every kind of record has a value for each of its names, and a record read back is an equal baseline."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reporting.gate.sample_records import benchmark, records, timing
from sardonyx.errors import UsageError
from sardonyx.records.bench import Finding
from sardonyx.reporting import gate, record_kinds
from sardonyx.reporting.measures import Reading

IDS = [kind.title for kind in record_kinds.kinds()]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return records(tmp_path_factory.mktemp("records"))


def written(record: Any, path: Path) -> Path:
    path.write_bytes(record.to_json())
    return path


@pytest.mark.parametrize("kind", record_kinds.kinds(), ids=IDS)
def test_every_listed_name_has_a_value_and_no_other(kind: gate.RecordKind, every: dict[str, Any]) -> None:
    measures = kind.measures(every[kind.title])
    assert {name for name in measures if "." not in name} == set(kind.names)
    assert set(kind.common) <= set(kind.names)
    assert set(kind.shares) == {name for name in kind.shares if measures[name].whole is not None}


@pytest.mark.parametrize("kind", record_kinds.kinds(), ids=IDS)
def test_a_record_read_back_has_the_same_numbers(kind: gate.RecordKind, every: dict[str, Any], tmp_path: Path) -> None:
    before = gate.read_baseline(written(every[kind.title], tmp_path / "r.json"), kind)
    assert before.title == kind.title
    for name, measure in kind.measures(every[kind.title]).items():
        assert before.measures[name] == measure or not measure.known


def test_the_numbers_match_the_record(every: dict[str, Any]) -> None:
    def values(kind: gate.RecordKind, *names: str) -> list[float]:
        measures = kind.measures(every[kind.title])
        return [measures[name].value for name in names]

    assert values(record_kinds.INSPECTION, "nodes", "parameters", "bytes", "operators") == [3, 16, 64, 3]
    assert values(record_kinds.RUN, "nodes", "nodes_removed", "max_err") == [1, 2, 0]
    assert values(record_kinds.EXPORT, "nodes", "coverage", "placed", "root_nodes", "seconds") == [3, 0.5, 0.75, 1, 1.5]
    assert values(record_kinds.COMPARISON, "nodes", "nodes_removed", "removed", "added") == [1, 2, 2, 0]
    assert values(record_kinds.PROFILE, "kernel_ms", "kernel_ratio", "nodes") == [3, 0.75, 3]
    assert values(record_kinds.STUDY, "models", "failures", "cells") == [2, 1, 12]
    assert values(record_kinds.FLEET, "models", "done", "failed", "reused") == [40, 38, 2, 0]
    assert values(record_kinds.OPPORTUNITIES, "nodes", "nodes_after") == [3, 1]
    assert values(record_kinds.BENCHMARK, "peak_mb", "load_ms", "nodes") == [2, 200, 1]


def test_of_several_sizes_the_worst_counts() -> None:
    measures = record_kinds.BENCHMARK.measures(benchmark(timing(0.9, 0.88, 0.92), timing(1.2, 1.1, 1.3)))
    assert (measures["latency_ratio"].value, measures["latency_ratio"].low) == (1.2, 1.1)


def test_without_a_measured_difference_no_gate_on_a_difference_trips() -> None:
    record = benchmark(timing(1.02, 1.005, 1.03, Finding.SAME))
    gates = [
        record_kinds.BENCHMARK.parse(text)
        for text in ("latency_ratio > 1", "latency_ratio > 100.1%", "latency_ratio<0.99")
    ]
    assert all(each.met for each in gate.hold(gates, record_kinds.BENCHMARK, record))
    slower = benchmark(timing(1.02, 1.005, 1.03, Finding.SLOWER))
    assert [each.met for each in gate.hold(gates, record_kinds.BENCHMARK, slower)] == [False, False, True]


def test_one_file_has_no_ratio_and_a_gate_on_it_trips() -> None:
    measures = record_kinds.BENCHMARK.measures(benchmark(timing(None)))
    assert math.isnan(measures["latency_ratio"].value)


def test_another_kind_of_record_is_a_baseline_for_names_with_the_same_meaning(
    every: dict[str, Any], tmp_path: Path
) -> None:
    looked = written(every[record_kinds.INSPECTION.title], tmp_path / "looked.json")
    before = gate.read_baseline(looked, record_kinds.RUN)
    assert before.measures["nodes"].value == 3
    gate.parse_all(record_kinds.RUN, ["nodes>baseline"], before)
    with pytest.raises(UsageError, match="is an inspection and has no max_err") as caught:
        gate.parse_all(record_kinds.RUN, ["nodes>baseline", "max_err>baseline"], before)
    assert "nodes" in str(caught.value.hint)
    of_torch = gate.read_baseline(written(every[record_kinds.ANALYSIS.title], tmp_path / "a.json"), record_kinds.RUN)
    with pytest.raises(UsageError, match="has no nodes"):  # nodes of a torch graph have another meaning
        gate.parse_all(record_kinds.RUN, ["nodes>baseline"], of_torch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1]", "is no record"),
        ('"run"', "is no record"),
        ("{}", "is no record"),
        ('{"nodes": 3}', "is no record"),
        ("[" * 10_000, "is no record"),
        ('{"a":' + "[" * 10_000, "is not JSON"),
        ('{"record": "graph", "schema_version": 1}', "a record of an unknown kind: 'graph'"),
        ('{"record": ["run"], "schema_version": 1}', "a record of an unknown kind: \\['run'\\]"),
        ('{"record": "run"}', "an optimization of schema version None"),
        ('{"record": "run", "schema_version": 1}', "not a complete record of an optimization: .* missing"),
        (
            '{"record": "dag", "schema_version": 1, "model": "m", "modules": {}, "operations": {}, "initializers": {}}',
            "is a graph of modules, which has no numbers",
        ),
        ("\udcff", "is not JSON"),
    ],
)
def test_a_file_that_is_no_record_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=message) as caught:
        gate.read_baseline(path, record_kinds.RUN)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2


def test_a_missing_or_broken_file_or_another_version_is_refused(every: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        gate.read_baseline(tmp_path / "none.json", record_kinds.RUN)
    run = every[record_kinds.RUN.title]
    document = msgspec.json.decode(run.to_json())
    (tmp_path / "new.json").write_bytes(msgspec.json.encode(document | {"schema_version": 99}))
    with pytest.raises(UsageError, match="an optimization of schema version 99, and this sardonyx reads version 1"):
        gate.read_baseline(tmp_path / "new.json", record_kinds.RUN)
    document["after"]["nodes"] = "many"
    (tmp_path / "broken.json").write_bytes(msgspec.json.encode(document))
    with pytest.raises(UsageError, match=r"not a complete record of an optimization: .*after\.nodes"):
        gate.read_baseline(tmp_path / "broken.json", record_kinds.RUN)


def test_a_tripped_gate_is_reported_with_number_limit_and_baseline(every: dict[str, Any]) -> None:
    other = gate.Baseline("b.json", record_kinds.RUN.title, {"nodes": Reading(0.5)})
    gates = gate.parse_all(
        record_kinds.RUN, ["nodes > baseline + 50%", "nodes<50%", "bytes > 60", "constants>0"], other
    )
    outcomes = gate.hold(gates, record_kinds.RUN, every[record_kinds.RUN.title], other)
    assert [each.sentence() for each in outcomes if not each.met] == [
        "gate not met: nodes > baseline + 50% (nodes is 1, limit 0.75, baseline 0.5)",
        "gate not met: nodes<50% (nodes is 1, 33.333%)",
        "gate not met: bytes > 60 (bytes is 64)",
    ]
