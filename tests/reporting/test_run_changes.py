"""What changed between two runs: all of what differs, nothing else, and no claim that the times do not carry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from reporting.sample_run import failed_verdict
from reporting.sample_run_bundle import bench_of_run, sample_run_bundle
from sardonyx.records.run import RefusalGroup, RolledBack, Run
from sardonyx.reporting.run_changes import Changes, changes
from sardonyx.reporting.titled_table import Part


def found(**fields: Any) -> Changes:
    """The sample run against itself with other fields."""
    first = sample_run_bundle("a")
    return changes(first, replace(first, run=structs.replace(first.run, **fields)))


def titled(every: Changes, title: str) -> Part | None:
    return next((part for part in every.parts if part.title == title), None)


def with_counts(run: Run, path: str, after: int) -> tuple[Any, ...]:
    return tuple(structs.replace(each, after=after) if each.path == path else each for each in run.modules)


def test_a_run_does_not_differ_from_itself() -> None:
    every = found()
    assert every.sentence.startswith("The same result both times: 187 nodes")
    assert [part.title for part in every.parts] == ["Numbers", "Proof", "Time"]
    assert every.apart == ()


def test_only_modules_that_differ_are_listed_with_those_above() -> None:
    run = sample_run_bundle().run
    part = titled(found(modules=with_counts(run, "encoder.layer.3.attention", 7)), "Modules")
    assert part is not None
    names = [line[0] for line in part.lines]
    assert names[0].startswith("(model)")
    assert any("attention" in name for name in names)
    assert not any("pooler" in name or "output" in name for name in names)
    assert part.lines[-1][1:4] == ("9", "7", "−2")


def test_operators_that_differ_are_counted_after_optimizing() -> None:
    run = sample_run_bundle().run
    ops = tuple(structs.replace(each, after=each.after + (each.op_type == "Gemm")) for each in run.ops)
    part = titled(found(ops=ops), "Operators")
    assert part is not None
    (line,) = part.lines
    assert line[0] == "Gemm"
    assert line[3] == "+1"


def test_a_pass_that_ran_only_once_is_told_where_it_did_something() -> None:
    run = sample_run_bundle().run
    part = titled(found(passes=run.passes[1:]), "Passes")
    assert part is not None
    assert part.lines == (("eliminate-identity", "only in the first", "25", "−25", "·"),)
    assert titled(found(passes=run.passes[:-1]), "Passes") is None  # it did nothing


def test_refusals_appear_go_and_change() -> None:
    run = sample_run_bundle().run
    groups = (RefusalGroup("another reason", 4, ()),)
    passes = tuple(
        structs.replace(each, refusals=groups if each.name == "fold-constants" else _more(each.refusals))
        for each in run.passes
    )
    part = titled(found(passes=passes), "Refusals")
    assert part is not None
    fates = {line[1]: line[2:] for line in part.lines}
    assert fates["would grow the model past the byte budget"] == ("3", "0", "gone")
    assert fates["another reason"] == ("0", "4", "new")
    assert fates["the weight is shared"] == ("2", "3", "+1")


def _more(groups: tuple[RefusalGroup, ...]) -> tuple[RefusalGroup, ...]:
    return tuple(structs.replace(each, count=each.count + 1) for each in groups)


def test_what_was_rolled_back_is_new_or_gone() -> None:
    part = titled(found(rolled_back=(RolledBack("new-pass", "v", "encoder", "NaN"),)), "Rolled back")
    assert part is not None
    assert sorted(line[3] for line in part.lines) == ["gone", "gone", "new"]


def test_proofs_are_weighed() -> None:
    assert found().sentence.endswith("both verified against their source")
    assert found(verdict=None).sentence.endswith("only the first is proven")
    first = sample_run_bundle()
    failed = replace(first, run=structs.replace(first.run, verdict=failed_verdict()))
    assert changes(failed, failed).sentence.endswith("neither is proven")
    assert changes(failed, first).sentence.endswith("only the second is proven")


@pytest.mark.slow
def test_what_differs_besides_is_said() -> None:
    run = sample_run_bundle().run
    environment = structs.replace(
        run.environment, sardonyx="0.2.0", packages={"onnx": "1.23.2", "onnxruntime": "1.32.0"}
    )
    every = found(
        source=structs.replace(run.source, sha256="00" * 32),
        options={**run.options, "target": "ort"},
        environment=environment,
    )
    assert every.apart == (
        "the sources are different files",
        "option target: portable → ort",
        "sardonyx 0.1.0 → 0.2.0",
        "onnxruntime 1.31.1 → 1.32.0",
    )


def test_times_are_held_against_each_other_only_where_measured_alike() -> None:
    first = sample_run_bundle()
    alike = titled(changes(first, first), "Time")
    assert alike is not None
    assert alike.about.startswith("Measured apart, on the same machine")
    bench = bench_of_run()
    elsewhere = replace(first, bench=structs.replace(bench, machine=structs.replace(bench.machine, cpu="Other CPU")))
    apart = titled(changes(first, elsewhere), "Time")
    assert apart is not None
    assert apart.about.startswith("Not comparable: machine Some CPU @ 2 GHz, 8 cores and Other CPU, 8 cores")
    more = replace(first, bench=structs.replace(bench, options=bench.options | {"threads": 4}))
    threads = titled(changes(first, more), "Time")
    assert threads is not None
    assert "threads 1 and 4" in threads.about
    untimed = titled(changes(first, replace(first, bench=None)), "Time")
    assert untimed is not None
    assert untimed.lines == (("the second run was not timed",),)
    bare = replace(first, bench=None)
    assert titled(changes(bare, bare), "Time") is None
