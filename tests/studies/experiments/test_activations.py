"""Conv + ReLU in the runtime: run for real; the findings follow the results."""

from __future__ import annotations

import json
from typing import Any

import onnx
import onnx.checker
import pytest
from msgspec.structs import replace

from sardonyx.records.study import Table
from sardonyx.verbs.study.activations import ENCODINGS, OTHER_REFERENCE, REFERENCE, ConvRelu, model
from sardonyx.verbs.study.experiment import NO_MODEL, CellAnswer, StudyOptions


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    experiment = ConvRelu()
    (cell,) = experiment.cells(NO_MODEL, StudyOptions())
    answer = json.loads(json.dumps(experiment.run(cell, NO_MODEL)))
    return {table.name: table for table in experiment.tables([CellAnswer(cell, NO_MODEL, answer)], StudyOptions(), {})}


def _row(tables: dict[str, Table], encoding: str) -> dict[str, Any]:
    table = tables["conv_relu"]
    (row,) = (row for row in table.rows if row[0] == encoding)
    return dict(zip(table.columns, row, strict=True))


def _finding_texts(tables: dict[str, Table]) -> list[str]:
    return [finding.text for finding in ConvRelu().findings(tables)]


def test_every_encoding_is_tried_and_the_reference_is_itself(tables: dict[str, Table]) -> None:
    assert [row[0] for row in tables["conv_relu"].rows] == list(ENCODINGS)
    assert set(OTHER_REFERENCE) | set(OTHER_REFERENCE.values()) <= set(ENCODINGS)
    reference = _row(tables, REFERENCE)
    assert (reference["accepted"], reference["max_difference"], reference["runs"]) == (True, 0.0, "Conv → Relu")


def test_a_foreign_attribute_is_refused_in_the_runtimes_own_words(tables: dict[str, Table]) -> None:
    refused = _row(tables, "Conv with the attribute activation, no Relu")
    assert not refused["accepted"]
    assert "Unrecognized attribute: activation" in refused["runtime_says"]
    assert refused["max_difference"] is None


def test_metadata_does_not_change_the_computation(tables: dict[str, Table]) -> None:
    assert _row(tables, "Conv with metadata, no Relu")["max_difference"] > 0.1
    assert _row(tables, "Conv with metadata → Relu")["max_difference"] == 0
    assert "Conv with metadata, no Relu" in next(
        text for text in _finding_texts(tables) if text.startswith("Accepted, but")
    )


def test_a_function_is_one_node_and_two_kernels(tables: dict[str, Table]) -> None:
    row = _row(tables, "a function of the model itself")
    assert (row["nodes"], row["runs"]) == (1, "Conv → Relu")
    assert "a function" not in next(text for text in _finding_texts(tables) if text.startswith("Of these, one kernel"))


def test_the_runtime_fuses_by_itself_from_extended_on(tables: dict[str, Table]) -> None:
    assert [row[2] for row in tables["conv_relu_levels"].rows] == [False, False, True, True]
    assert "at extended, all (2 of 4 levels)" in _finding_texts(tables)[-1]


def test_the_finding_changes_where_the_runtime_does_not_fuse(tables: dict[str, Table]) -> None:
    levels = tables["conv_relu_levels"]
    never = replace(levels, rows=tuple((level, "Conv → Relu", False) for level, _, _ in levels.rows))
    assert "at none of 4 levels" in _finding_texts(tables | {"conv_relu_levels": never})[-1]


@pytest.mark.parametrize("name", [name for name in ENCODINGS if "attribute" not in name and "not know" not in name])
def test_the_models_are_valid_onnx(name: str) -> None:
    onnx.checker.check_model(model(name))
