"""Names that differ only in numbers and in their last word are one line in every list of inputs and outputs."""

from __future__ import annotations

import pytest

from sardonyx.records.inspection import Port
from sardonyx.records.run import Accuracy, OutputDifference, Verdict
from sardonyx.reporting.document import Document
from sardonyx.reporting.inspection import interface
from sardonyx.reporting.module_rows import grouped, short_lines, short_names
from sardonyx.reporting.verdict import output_groups
from sardonyx.reporting.writers import terminal

PAST = [f"past.{layer}.{word}" for layer in range(12) for word in ("key", "value")]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["ids", *PAST, "mask"], ["ids", "past.{0-11}.{key,value}", "mask"]),
        ([f"hidden_states.{n}" for n in (0, 1, 2, 5, 7, 8)], ["hidden_states.{0-2,5,7-8}"]),
        ([f"p.{n}.{side}.k" for side in ("self", "cross") for n in range(4)], ["p.{0-3}.self.k", "p.{0-3}.cross.k"]),
        (["a.0.k", "a.1.k", "a.2.k", "a.3.k", "a.0.v"], ["a.{0-3}.k", "a.0.v"]),  # v has other numbers than k
        (["a.0.k.0", "a.1.k.1", "a.2.k.2", "a.3.k.3"], ["a.0.k.0", "a.1.k.1", "a.2.k.2", "a.3.k.3"]),
        (["out_0", "out_1", "out_2"], ["out_0", "out_1", "out_2"]),  # short enough
        (["x.a", "x.b", "x.c", "x.d"], ["x.a", "x.b", "x.c", "x.d"]),  # no number varies
        (["w01", "w02", "w3", "w4"], ["w{01,02,3-4}"]),
    ],
)
def test_names_that_differ_in_numbers_and_the_last_word_are_grouped(names: list[str], text: list[str]) -> None:
    assert short_names(names) == text


def test_no_name_is_lost_and_other_columns_keep_groups_separate() -> None:
    """Every second layer has another shape, as where windowed and full attention alternate."""
    groups = grouped(PAST, str, lambda name: int(name.split(".")[1]) % 2)
    assert [label for label, _ in groups] == ["past.{0,2,4,6,8,10}.{key,value}", "past.{1,3,5,7,9,11}.{key,value}"]
    assert sorted(name for _, group in groups for name in group) == sorted(PAST)


def test_a_sentence_about_quoted_names_is_shown_once() -> None:
    lines = [f"the output '{name}' was empty in every trial" for name in PAST]
    assert short_lines([*lines, "no rows were hidden"]) == [
        "the output 'past.{0-11}.{key,value}' was empty in every trial",
        "no rows were hidden",
    ]


def test_the_interface_is_short() -> None:
    ports = [Port(name, "float", ("batch", 3, "past_sequence", 64)) for name in PAST]
    section = interface([Port("ids", "int64", ("batch", "sequence")), *ports], ports[:1])
    lines = terminal.write(Document((section,))).splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        ["input", "ids"],
        ["input", "past.{0-11}.{key,value}"],
        ["output", "past.0.key"],
    ]
    assert lines[3].endswith("[batch, 3, past_sequence, 64]")


def test_a_group_of_outputs_shows_its_worst_and_one_that_differs_is_shown_alone() -> None:
    outputs = [
        OutputDifference(name, "float32", 1e-6 * (1 + place), 0.0, 0.0, 1e-5, 1e-5 + place, passed=name != "past.3.key")
        for place, name in enumerate(PAST)
    ]
    verdict = Verdict(False, "PyTorch", Accuracy.REASSOCIATES, (), tuple(outputs), (), ())
    text = {each.name: each for each in output_groups(verdict)}
    assert not text["past.3.key"].passed
    values = text["past.{0-11}.value"]
    assert (values.max_abs, values.atol) == (pytest.approx(24e-6), pytest.approx(1 + 1e-5))
