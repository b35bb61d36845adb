"""`--custom-ops LIBRARY`: operators of a runtime extension are verified, timed and profiled like all others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.runtime import library

Command = Callable[..., Any]

MODEL = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
agraph (float[n, 4] x) => (float[n, 4] y) { a, b = ai.onnx.contrib.NegPos(x)  s = Add(a, b)  y = Identity(s) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.fixture
def operators() -> str:
    extensions = pytest.importorskip("onnxruntime_extensions", reason="the extra dev installs it")
    return extensions.get_library_path()


def test_a_model_with_custom_operators_is_optimized_verified_and_timed(
    model: Path, operators: str, tmp_path: Path, command: Command
) -> None:
    small = tmp_path / "small.onnx"
    done = command("optimize", model, "-o", small, "--custom-ops", operators)
    assert (done.code, "same outputs on" in done.out) == (0, True)
    assert command("verify", model, small, "--custom-ops", operators).code == 0
    assert "NegPos" in command("profile", model, "--runs", "3", "--custom-ops", operators).out
    assert command("bench", model, small, "--seconds", "1s", "--custom-ops", operators).code == 0  # in worker processes
    assert not library.custom_op_libraries()
    assert command("verify", model, small).code == 1


def test_other_unknown_operators_are_named_with_a_library_loaded(tmp_path: Path, operators: str) -> None:
    text = MODEL.replace("1]>", '1, "my.ops" : 1]>').replace("Identity(s)", "my.ops.Swirl(s)")
    with sardonyx.custom_ops(operators), pytest.raises(sardonyx.RuntimeFailure) as raised:
        sardonyx.verify(onnx.parser.parse_model(text), onnx.parser.parse_model(text))
    assert raised.value.message.endswith("does not know: my.ops::Swirl")


def test_an_operator_that_is_unknown_in_a_known_domain_is_named() -> None:
    text = MODEL.replace("ai.onnx.contrib", "com.microsoft").replace("NegPos", "DropoutGrad")
    with pytest.raises(sardonyx.RuntimeFailure) as raised:
        sardonyx.verify(onnx.parser.parse_model(text), onnx.parser.parse_model(text))
    assert raised.value.message.endswith("does not know: com.microsoft::DropoutGrad")


@pytest.mark.parametrize("verb", [("bench",), ("profile",), ("verify", "MODEL")])
def test_commands_that_run_models_name_custom_operators(verb: tuple[str, ...], model: Path, command: Command) -> None:
    done = command(*verb[:1], model, *(model for _ in verb[1:]))
    assert done.code == 1
    assert "the model has operators that the runtime does not know: ai.onnx.contrib::NegPos\n" in done.err
    assert "hint: load the library that has them with --custom-ops" in done.err


def test_a_library_that_cannot_be_loaded_is_one_line(model: Path, command: Command, tmp_path: Path) -> None:
    missing = command("verify", model, model, "--custom-ops", tmp_path / "none.so")
    assert (missing.code, missing.err.count("\n")) == (2, 2)
    assert f"there is no operator library {tmp_path / 'none.so'}" in missing.err
    other = command("verify", model, model, "--custom-ops", model)
    assert (other.code, other.err.count("\n")) == (1, 2)
    assert f"the operator library {model} cannot be loaded: " in other.err


def test_libraries_are_loaded_for_one_block_only(operators: str) -> None:
    library.onnxruntime()  # which turns its telemetry off by a variable
    before = dict(os.environ)
    with sardonyx.custom_ops(operators):
        with sardonyx.custom_ops(operators):
            assert library.custom_op_libraries() == (operators, operators)
        assert library.custom_op_libraries() == (operators,)
    assert dict(os.environ) == before
