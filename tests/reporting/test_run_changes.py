"""Differences between two runs: all of them, nothing else, and no claim that the times do not support."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from reporting.sample_run import failed_verdict
from reporting.sample_run_bundle import bench_of_run, sample_run_bundle
from sardonyx.records.run import RefusalGroup, RolledBack, Run
from sardonyx.reporting.document import Cell, Paragraph, Section, Table, spans
from sardonyx.reporting.history import Changes, changes


def differences(**fields: Any) -> Changes:
    """The sample run compared with itself with other fields."""
    first = sample_run_bundle("a")
    return changes(first, structs.replace(first, run=structs.replace(first.run, **fields)))


def titled(every: Changes, title: str) -> Section | None:
    return next((section for section in every.sections if section.title == title), None)


def lines_of(section: Section | None) -> list[tuple[str, ...]]:
    """The cells of its table."""
    assert section is not None
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    cells = [[cell.text if isinstance(cell, Cell) else cell for cell in row.cells] for row in table.rows]
    return [tuple("".join(span.text for span in spans(cell)) for cell in row) for row in cells]


def above(section: Section | None) -> str:
    assert section is not None
    assert isinstance(section.blocks[0], Paragraph)
    return "".join(span.text for span in spans(section.blocks[0].text))


def with_counts(run: Run, path: str, after: int) -> tuple[Any, ...]:
    return tuple(structs.replace(each, after=after) if each.path == path else each for each in run.modules)


def test_a_run_does_not_differ_from_itself() -> None:
    every = differences()
    assert every.sentence.startswith("The same result both times: 187 nodes")
    assert [section.title for section in every.sections] == ["Numbers", "Verification", "Time"]
    assert every.apart == ()


def test_only_modules_that_differ_are_listed_with_those_above() -> None:
    run = sample_run_bundle().run
    part = titled(differences(modules=with_counts(run, "encoder.layer.3.attention", 7)), "Modules")
    names = [line[0] for line in lines_of(part)]
    assert names[0].startswith("(model)")
    assert any("attention" in name for name in names)
    assert not any("pooler" in name or "output" in name for name in names)
    assert lines_of(part)[-1][1:4] == ("9", "7", "−2")


def test_operators_that_differ_are_counted_after_optimizing() -> None:
    run = sample_run_bundle().run
    ops = tuple(structs.replace(each, after=each.after + (each.op_type == "Gemm")) for each in run.ops)
    part = titled(differences(ops=ops), "Operators")
    (line,) = lines_of(part)
    assert line[0] == "Gemm"
    assert line[3] == "+1"


@pytest.mark.medium
def test_a_pass_in_only_one_run_is_listed_if_it_applied() -> None:
    run = sample_run_bundle().run
    part = titled(differences(passes=run.passes[1:]), "Passes")
    assert lines_of(part) == [("eliminate-identity", "only in the first", "25", "−25", "·")]
    assert titled(differences(passes=run.passes[:-1]), "Passes") is None  # it did nothing


@pytest.mark.medium
def test_missed_fusions_appear_disappear_and_change() -> None:
    run = sample_run_bundle().run
    groups = (RefusalGroup("another reason", 4, ()),)
    passes = tuple(
        structs.replace(each, refusals=groups if each.name == "fold-constants" else _more(each.refusals))
        for each in run.passes
    )
    part = titled(differences(passes=passes), "Missed fusions")
    fates = {line[1]: line[2:] for line in lines_of(part)}
    assert fates["would grow the model past the byte budget"] == ("3", "0", "gone")
    assert fates["another reason"] == ("0", "4", "new")
    assert fates["the weight is shared"] == ("2", "3", "+1")


def _more(groups: tuple[RefusalGroup, ...]) -> tuple[RefusalGroup, ...]:
    return tuple(structs.replace(each, count=each.count + 1) for each in groups)


def test_rollbacks_are_new_or_gone() -> None:
    part = titled(differences(rolled_back=(RolledBack("new-pass", "v", "encoder", "NaN"),)), "Rolled back")
    assert sorted(line[3] for line in lines_of(part)) == ["gone", "gone", "new"]


@pytest.mark.medium
def test_verdicts_are_compared() -> None:
    assert differences().sentence.endswith("both verified against their source")
    assert differences(verdict=None).sentence.endswith("only the first is verified")
    first = sample_run_bundle()
    failed = structs.replace(first, run=structs.replace(first.run, verdict=failed_verdict()))
    assert changes(failed, failed).sentence.endswith("neither is verified")
    assert changes(failed, first).sentence.endswith("only the second is verified")


@pytest.mark.slow
def test_other_differences_are_listed() -> None:
    run = sample_run_bundle().run
    environment = structs.replace(
        run.environment, sardonyx="0.2.0", packages={"onnx": "1.23.2", "onnxruntime": "1.32.0"}
    )
    every = differences(
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


def test_times_are_compared_only_where_measured_the_same_way() -> None:
    first = sample_run_bundle()
    alike = titled(changes(first, first), "Time")
    assert above(alike).startswith("Measured apart, on the same machine")
    bench = bench_of_run()
    elsewhere = structs.replace(
        first, bench=structs.replace(bench, machine=structs.replace(bench.machine, cpu="Other CPU"))
    )
    apart = titled(changes(first, elsewhere), "Time")
    assert above(apart).startswith("Not comparable: machine Some CPU @ 2 GHz, 8 cores and Other CPU, 8 cores")
    more = structs.replace(first, bench=structs.replace(bench, options=bench.options | {"threads": 4}))
    threads = titled(changes(first, more), "Time")
    assert "threads 1 and 4" in above(threads)
    untimed = titled(changes(first, structs.replace(first, bench=None)), "Time")
    assert above(untimed) == "The second run was not timed."
    bare = structs.replace(first, bench=None)
    assert titled(changes(bare, bare), "Time") is None
