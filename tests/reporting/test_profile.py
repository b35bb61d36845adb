"""A Profile as text: sums add up, equal layers are folded, unattributed time is shown, names are escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reporting.sample_profile import HOSTILE, LAYERS, sample_profile
from reporting.written import in_markdown, in_terminal
from sardonyx.records.bench import Profile
from sardonyx.reporting.document import View
from sardonyx.reporting.formatting import visible
from sardonyx.reporting.profile import (
    FIELDS,
    change,
    ms,
    operator_times,
    profile_csv,
    profile_document,
    profile_sentence,
    share,
    timed_modules,
)

PROFILE = sample_profile()
ALONE = replace(PROFILE, models=PROFILE.models[:1])


def test_equal_layers_are_one_line_with_the_times_of_all() -> None:
    lines = {row.branch.label: (row, times) for row, times in timed_modules(PROFILE, View(depth=9))}
    row, times = lines["layer.0…2"] if "layer.0…2" in lines else lines["0…2"]
    assert row.branch.copies == LAYERS
    before, after = (sum(module.total_ms for module in modules) for modules in times)
    assert before == pytest.approx(2 * after)
    assert before == pytest.approx(2 * (1 + 1.1 + 1.2) + 3)
    assert sum(module.self_ms for module in times[0]) == pytest.approx(3)
    assert [sum(getattr(module, name) for module in times[0]) for name in ("kernels", "calls")] == [3, 3]


@pytest.mark.parametrize("depth", [0, 1, 2, 9])
def test_no_time_is_lost_or_counted_twice(depth: int) -> None:
    for place, model in enumerate(PROFILE.models):
        lines = timed_modules(PROFILE, View(depth=depth))
        shown = (each.total_ms if row.hidden else each.self_ms for row, times in lines for each in times[place])
        assert sum(shown) == pytest.approx(model.attributed_ms)
        operators = sum(spent[place][1] for _, spent in operator_times(PROFILE.models))
        assert operators == pytest.approx(model.kernel_ms)


def test_modules_are_in_execution_order() -> None:
    labels = [row.branch.label for row, _ in timed_modules(PROFILE, View(depth=1))]
    assert labels[:2] == ["", "embed"]


def test_one_file_is_shown_with_its_own_columns() -> None:
    text = in_terminal(profile_document, ALONE)
    assert re.search(r"module +kernels +calls +self +total +share +kind", text)
    assert re.search(r"\(model\) +1 +1 +0\.250 +10\.5 +99\.4 % +█{12} +Net", text)
    assert "change" not in text
    assert text.splitlines()[-1] == profile_sentence(ALONE)
    assert "sardonyx bench" not in text


def test_two_files_are_shown_side_by_side_with_the_changes() -> None:
    text = in_terminal(profile_document, PROFILE)
    assert re.search(r"module +before\.onnx +after\.onnx +change +share +kind", text)
    assert re.search(r"0…2 ×3 +9\.60 +4\.80 +−50 %", text)
    assert "sardonyx bench tells whether a file is faster" in text
    assert "after.onnx: the runtime put in 2 kernels" in text
    assert "10.5 → 5.74 ms in kernels, 98.9 % of it attributed" in profile_sentence(PROFILE)


def test_unattributed_time_is_shown_as_such() -> None:
    text = in_terminal(profile_document, PROFILE, View(verbose=True))
    assert "Not attributed (before.onnx): 0.062 ms (0.6 %) in 1 kernel" in text
    assert re.search(r"time in kernels with a module +99\.4 % +98\.9 %", text)
    assert re.search(r"not traced +0\.6 % +1\.1 %", text)


@pytest.mark.parametrize("write", [in_terminal, in_markdown])
def test_hostile_names_are_escaped(write: Callable[..., str]) -> None:
    text = write(profile_document, PROFILE, View(verbose=True))
    assert "\x1b" not in text
    assert "evil" in text
    if write is in_markdown:
        assert "<b>" not in text
        tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
        assert all(len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1 for rows in tables)


def test_verbose_shows_every_kernel_and_all_its_nodes() -> None:
    text = in_terminal(profile_document, PROFILE, View(verbose=True))
    assert all(f"mlp{i}" in text for i in range(LAYERS))
    assert "/mlp0, /mlp0_1" in text
    assert "/mlp0" not in in_terminal(profile_document, PROFILE)


def test_markdown_has_the_same_numbers() -> None:
    page = in_markdown(profile_document, PROFILE)
    assert page.startswith("# before.onnx → after.onnx\n")
    assert re.search(r"\| (› )+(layer\.)?0…2 ×3 \| 9\.60 \| 4\.80 \| −50 % \|.* Layer \|", page)


def test_csv_has_every_module_and_kernel_in_full() -> None:
    lines = list(csv.DictReader(io.StringIO(profile_csv(PROFILE))))
    assert tuple(lines[0]) == FIELDS
    for model in PROFILE.models:
        own = [line for line in lines if line["file"] == model.label]
        assert [line["scope"] for line in own].count("module") == len(model.modules)
        kernels = [line for line in own if line["scope"] == "kernel"]
        assert [float(line["self_ms"]) for line in kernels] == [kernel.milliseconds for kernel in model.kernels]
        assert visible(HOSTILE) in {line["kind"] for line in kernels}


def test_an_empty_profile_is_no_error() -> None:
    empty = replace(PROFILE.models[0], kernels=(), modules=(), timeline=(), kernel_ms=0.0, attributed_ms=0.0)
    text = in_terminal(profile_document, replace(PROFILE, models=(empty,)))
    assert text.splitlines()[-1].startswith("· ms in kernels")


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "·"),
        (0.0006, "0.001"),
        (0.1234, "0.123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345, "12,345"),
    ],
)
def test_milliseconds_have_three_digits(number: float, written: str) -> None:
    assert ms(number) == written


def test_changes_and_shares_are_never_rounded_to_zero() -> None:
    assert [change(1, 1), change(1, 1.0001), change(2, 1), change(0, 3)] == ["·", "+<0.1 %", "−50 %", "+3.00 ms"]
    assert [share(0), share(1e-6), share(0.5)] == ["·", "<0.1 %", "50.0 %"]


def test_a_record_that_was_read_back_prints_the_same() -> None:
    assert in_terminal(profile_document, Profile.from_json(PROFILE.to_json())) == in_terminal(profile_document, PROFILE)
