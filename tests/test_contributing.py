"""The example pass of CONTRIBUTING.md works as documented."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest

from sardonyx.ir import io
from sardonyx.ir.facts import Facts
from sardonyx.ir.rewriter import Log, Rewriter
from sardonyx.passes import Pass

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"


@pytest.fixture
def documented_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pass:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code
    path = tmp_path / "eliminate_double_negation.py"
    path.write_text(code[1])
    spec = importlib.util.spec_from_file_location("shown_pass", path)
    assert spec
    assert spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shown_pass", module)
    spec.loader.exec_module(module)
    return module.EliminateDoubleNegation()


def run(one: Pass, text: str) -> tuple[list[str], Log]:
    model = io.from_proto(onnx.parser.parse_model(text))
    log = Rewriter(Facts(model), [one]).run()
    return [node.op_type for node in model.graph], log


def test_the_example_gives_the_documented_result(documented_pass: Pass) -> None:
    after = [node.op_type for node in onnx.parser.parse_model(documented_pass.example.after).graph.node]
    assert run(documented_pass, documented_pass.example.before)[0] == after == ["Exp", "Relu"]
    assert documented_pass.algebra == "-(-x) => x"


def test_the_near_miss_is_refused_with_the_documented_reason(documented_pass: Pass) -> None:
    ops, log = run(documented_pass, documented_pass.example.near_miss)
    assert ops == ["Exp", "Neg", "Neg", "Relu"]
    assert any(documented_pass.example.refusal in refusal.reason for refusal in log.refusals)
