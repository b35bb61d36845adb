"""`--fail-if` reads its little language exactly, refuses everything else, and lets no NaN through."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.sample_run import sample_run, sample_verdict
from sardonyx import gate
from sardonyx.errors import GateNotMet, UsageError

MEASURES = gate.measures_of_run(sample_run())  # 324 -> 187 nodes, 96 -> 0 constants, 17.4 MB, worst 2.1e-07


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
        ("max_abs>1e-3", False),
        ("max_abs>1.5E-7", True),
        ("max_ulp>=4", True),
        ("trials<12", False),
        ("rolled_back>=3", False),
        ("rewrites<137", False),
        ("seconds>1500ms", True),
    ],
)
def test_expressions_mean_what_they_say(text: str, true: bool) -> None:
    assert gate.parse(text).tripped(MEASURES) is true


@pytest.mark.parametrize(
    "text",
    [
        *("", "nodes", ">3", "nodes>", "nodes>x", "nodes=3", "nodes>3 and bytes>4", "nodes>3parsecs", "max_abs>3%"),
        *("__import__('os')>1", "nodes>1;2", "nodes>nan", "nodes>١", "nodes>1\n>2", "nodes<=>3"),
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        gate.parse(text)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(UsageError) as caught:
        gate.parse("node_removed<3")
    assert "did you mean nodes_removed?" in str(caught.value.hint)


@given(st.text(max_size=30))
def test_no_text_does_more_than_parse_or_be_refused(text: str) -> None:
    try:
        parsed = gate.parse(text)
    except UsageError:
        return
    assert parsed.name in MEASURES
    assert math.isfinite(parsed.number) or parsed.number == math.inf


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "=="])
def test_nan_trips_every_gate(sign: str) -> None:
    broken = replace(sample_verdict(), outputs=(replace(sample_verdict().outputs[0], max_abs=math.nan),))
    assert gate.parse(f"max_abs{sign}1").tripped(gate.measures_of_verdict(broken))


def test_every_tripped_gate_is_named_with_its_number() -> None:
    gates = [gate.parse(text) for text in ("nodes>120", "bytes>1GB", "rolled_back>0")]
    with pytest.raises(GateNotMet, match=r"nodes>120 \(nodes is 187\); rolled_back>0 \(rolled_back is 2\)") as caught:
        gate.check(gates, MEASURES)
    assert caught.value.exit_code == 4


def test_every_documented_name_can_be_asked() -> None:
    assert set(MEASURES) == {*gate.OF_RUN, *gate.OF_VERDICT}
