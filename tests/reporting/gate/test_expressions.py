"""`--fail-if` parses its expressions exactly, refuses everything else, and NaN trips every gate."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_run import sample_run, sample_verdict
from sardonyx.errors import UsageError
from sardonyx.records.expressions import Number
from sardonyx.reporting import record_kinds

MEASURES = record_kinds.RUN.measures(sample_run())  # 324 -> 187 nodes, 96 -> 0 constants, 17.4 MB, worst 2.1e-07


def tripped(text: str, before: Number | None = None) -> bool:
    asked = record_kinds.RUN.parse(text, baseline=True)
    return asked.tripped(MEASURES[asked.name], before)


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("nodes>120", True),
        ("nodes > 187", False),
        ("nodes>=187", True),
        ("nodes<=186", False),
        ("nodes==187", True),
        ("nodes!=187", False),
        ("nodes<60%", True),
        ("nodes_removed<10%", False),
        ("nodes_removed<42.5%", True),
        ("nodes_removed<138", True),
        ("constants_removed<100%", False),
        ("bytes>17.4MB", False),
        ("bytes>17MB", True),
        ("bytes>16MiB", True),
        ("bytes > 1GB", False),
        ("file_bytes>17.5M", False),
        ("max_err>1e-3", False),
        ("max_abs>1.5E-7", True),
        ("max_ulp>=4", True),
        ("trials<12", False),
        ("rolled_back>=3", False),
        ("rewrites<137", False),
        ("seconds>1500ms", True),
    ],
)
def test_expressions_are_evaluated(text: str, true: bool) -> None:
    assert tripped(text) is true


@pytest.mark.parametrize(
    ("text", "before", "true"),
    [
        ("nodes > baseline", 187, False),
        ("nodes > baseline", 186, True),
        ("nodes>=baseline", 187, True),
        ("nodes > baseline + 1%", 186, False),
        ("nodes > baseline+1 %", 185, True),
        ("nodes > baseline + 2", 185, False),
        ("nodes > baseline - 2", 188, True),
        ("nodes > 1.1 * baseline", 170, False),
        ("nodes > 1.1*baseline", 169, True),
        ("nodes > 1.1*baseline + 2", 169, False),
        ("bytes > baseline + 1MB", 16_300_000, True),
        ("bytes > baseline + 1MB", 16_500_000, False),
        ("nodes_removed < baseline - 5%", 145, True),  # of 145, not of all nodes
        ("nodes_removed < baseline - 5%", 144, False),
    ],
)
def test_limits_relative_to_a_baseline_are_evaluated(text: str, before: float, true: bool) -> None:
    assert tripped(text, Number(before)) is true


def test_a_percentage_of_a_negative_baseline_moves_the_limit_by_its_sign() -> None:
    asked = record_kinds.RUN.parse("nodes_removed < baseline - 10%", baseline=True)
    assert not asked.tripped(Number(-11), Number(-10))
    assert asked.tripped(Number(-11.5), Number(-10))


@pytest.mark.parametrize(
    "text",
    [
        *("", "nodes", ">3", "nodes>", "nodes>x", "nodes=3", "nodes>3 and bytes>4", "nodes>3parsecs", "max_abs>3%"),
        *("__import__('os')>1", "nodes>1;2", "nodes>nan", "nodes>١", "nodes>1\n>2", "nodes<=>3", "nodes>1e999"),
        *("nodes>baseline+", "nodes>baseline*", "nodes>baseline+-3", "nodes>-1*baseline", "nodes>baseline baseline"),
        *("nodes>3MB", "nodes>3ms", "bytes>3s", "baseline>3", "nodes>baselines", "nodes>baseline+1e400%"),
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        record_kinds.RUN.parse(text, baseline=True)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_without_a_baseline_an_expression_with_one_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        record_kinds.RUN.parse("nodes>baseline")
    assert "--baseline FILE" in str(caught.value.hint)


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        record_kinds.RUN.parse("node_removed<3")
    assert "did you mean nodes_removed?" in str(caught.value.hint)


NAMES = record_kinds.RUN.names
WORDS = st.sampled_from(
    [
        *record_kinds.RUN.names,
        "baseline",
        "*",
        "+",
        "-",
        "%",
        ">",
        "<=",
        "==",
        "1",
        "2.5",
        "1e3",
        "MB",
        "ms",
        " ",
        ".",
        "fused",
    ]
)


@given(st.one_of(st.text(max_size=30), st.lists(WORDS, max_size=8).map("".join)))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parsed = record_kinds.RUN.parse(text, baseline=True)
    except UsageError:
        return
    assert parsed.name in record_kinds.RUN.names
    assert math.isfinite(parsed.limit.number)
    parsed.tripped(MEASURES.get(parsed.name, Number(0.9, 1.0)), Number(12))  # a run that was not tuned has no ratio


NUMBERS = st.floats(0, 1e300).map(repr)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    name, sign = (
        draw(st.sampled_from(sorted(record_kinds.RUN.shares))),
        draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="])),
    )
    unit = draw(st.sampled_from(["", "%", "k", "M"]))
    if draw(st.booleans()):
        return f"{name} {sign} {draw(st.sampled_from(['', '-', '+']))}{draw(st.floats(0, 1e300))}{unit}"
    times = draw(st.sampled_from(["", f"{draw(NUMBERS)} * "]))
    more = draw(st.sampled_from(["", f" + {draw(NUMBERS)}{unit}", f"-{draw(NUMBERS)}{unit}"]))
    return f"{name}{sign}{times}baseline{more}"


@given(expressions())
def test_the_text_of_a_gate_parses_to_the_same_gate(text: str) -> None:
    parsed = record_kinds.RUN.parse(text, baseline=True)
    again = record_kinds.RUN.parse(str(parsed), baseline=True)
    assert (again.name, again.sign, again.limit) == (parsed.name, parsed.sign, parsed.limit)


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_nan_trips_every_gate(sign: str) -> None:
    broken = replace(sample_verdict(), outputs=(replace(sample_verdict().outputs[0], max_abs=math.nan),))
    assert record_kinds.VERDICT.parse(f"max_abs{sign}1").tripped(record_kinds.VERDICT.measures(broken)["max_abs"])


FLOATS = st.floats(-100, 100)


def interval(draw: st.DrawFn) -> Number:
    low, value, high = sorted(draw(st.tuples(FLOATS, FLOATS, FLOATS)))
    return Number(value, None, low, high)


@given(st.data())
def test_a_gate_on_measured_numbers_trips_where_it_is_true_of_the_whole_interval(data: st.DataObject) -> None:
    sign = data.draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
    ours, before = (data.draw(st.composite(interval)()) for _ in "ab")
    asked = record_kinds.BENCHMARK.parse(f"latency_ms {sign} baseline", baseline=True)
    if not asked.tripped(ours, before):
        return
    inside = [data.draw(st.floats(each.lowest, each.highest)) for each in (ours, before)]
    assert asked.tripped(*map(Number, inside))


def test_a_difference_within_the_interval_trips_nothing() -> None:
    before = Number(10, None, 9.5, 10.5)
    asked = record_kinds.BENCHMARK.parse("latency_ms > baseline + 5%", baseline=True)
    assert not asked.tripped(Number(12, None, 11, 13), before)  # 11 is not certainly above 10.5 + 5 %
    assert asked.tripped(Number(12, None, 11.1, 13), before)
