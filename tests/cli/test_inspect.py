"""`sardonyx inspect` and its `--opportunities` on the command line."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import onnx
import onnx.parser
import pytest

from cli.conftest import Result

Command = Callable[..., Result]
MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y) { a = Transpose (x) b = Transpose (a) y = Relu (b) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_opportunities_are_shown_as_a_table(command: Command, model: Path) -> None:
    result = command("inspect", model, "--opportunities")
    assert result.code == 0
    assert "merge-transposes" in result.out
    assert result.out.splitlines()[-1].startswith("optimizing for portable would give 3 → 1 nodes")


def test_opportunities_as_json_match_the_published_schema(command: Command, model: Path) -> None:
    result = command("inspect", model, "--opportunities", "--target", "ort", "--json")
    schema = importlib.resources.files("sardonyx.records") / "schemas" / "opportunities.schema.json"
    answer = json.loads(result.out)
    jsonschema.validate(answer, json.loads(schema.read_text(encoding="utf-8")))
    assert answer["target"] == "ort"


def test_quiet_prints_the_summary_line_only(command: Command, model: Path) -> None:
    assert len(command("inspect", model, "--opportunities", "--quiet").out.splitlines()) == 1


@pytest.mark.parametrize("more", [["--module", "a"], ["--depth", "2"]])
def test_options_that_opportunities_ignores_are_refused(command: Command, model: Path, more: list[str]) -> None:
    refused = command("inspect", model, "--opportunities", *more)
    assert (refused.code, refused.out) == (2, "")
    assert more[0] in refused.err


def test_a_target_alone_is_refused(command: Command, model: Path) -> None:
    refused = command("inspect", model, "--target", "ort")
    assert refused.code == 2
    assert "--opportunities" in refused.err
