"""Certificates: what `optimize` writes is what sardonyx-check accepts, and nothing that was changed afterwards is."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import mutated_certificates as campaign
import sardonyx
from sardonyx.errors import UsageError
from sardonyx.passes import ALL
from sardonyx_check import cli
from sardonyx_check.check import ALL as EVERY_VALUE
from sardonyx_check.check import check
from sardonyx_check.graphs import Refused
from sardonyx_check.numbers import Numbers

CHECKER = Path(__file__).parent.parent / "checker"
# Rewrites in both branches, in a loop and in a function; a branch reuses a name of the graph around it.
NESTED = """
<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
agraph (float[N, 4] x, bool c) => (float[N, 4] y, float[N, 4] z, float[N, 4] w) <int64 three = {3}, bool yes = {1}> {
    t = Neg(x)
    y = If (c) <
        then_branch = one () => (float[N, 4] a) { i = Identity(t)  r = Relu(i)  a = Relu(r) },
        else_branch = two () => (float[N, 4] b) { t = Exp(x)  i = Identity(t)  n = Neg(i)  b = Neg(n) }
    >
    z = Loop (three, yes, x) <
        body = step (int64 k, bool going, float[N, 4] s) => (bool on, float[N, 4] o)
            { on = Identity(going)  u = Relu(s)  v = Relu(u)  o = Add(v, x) }
    >
    w = own.twice(x)
}
<domain: "own", opset_import: ["" : 18]> twice (p) => (q) { i = Identity(p)  r = Relu(i)  s = Relu(r)  q = Add(s, p) }
"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("nested")
    source, result, certificate = (folder / name for name in ("a.onnx", "b.onnx", "c.json"))
    model = parser.parse_model(NESTED)
    onnx.save(model, source)
    sardonyx.optimize(source, result, verify="off", certificate=certificate)
    return source, result, certificate


@pytest.mark.medium
def test_rewrites_in_bodies_and_functions_are_checked(nested: tuple[Path, Path, Path]):
    written = json.loads(nested[2].read_bytes())
    graphs = {entry.get("graph", "") for entry in written["rewrites"]}
    assert any("else_branch" in graph for graph in graphs)
    assert any("body" in graph for graph in graphs)
    assert any(graph.startswith("function:") for graph in graphs)
    report = check(*nested)
    assert {name: answer for name, (answer, _) in report.outputs.items()} == dict.fromkeys("yzw", EVERY_VALUE)
    assert report.code == 0


@pytest.mark.slow
def test_examples_of_passes_are_accepted(tmp_path: Path):
    for rule in ALL[::8]:
        case = campaign.case_of(rule, tmp_path)
        if case is not None:
            files = (tmp_path / f"{rule.name}{end}" for end in (".onnx", ".small.onnx", ".json"))
            assert check(*files).code == 0, rule.name


@pytest.mark.campaign
def test_examples_of_all_passes_are_not_refused(tmp_path: Path):
    for rule in ALL:
        case = campaign.case_of(rule, tmp_path)
        if case is not None:
            files = (tmp_path / f"{rule.name}{end}" for end in (".onnx", ".small.onnx", ".json"))
            assert check(*files).code in (0, 1), rule.name


@pytest.mark.slow
def test_no_mutant_is_accepted(tmp_path: Path):
    answers = campaign.run(100, 3, tmp_path, ALL[::11])
    assert answers["WRONG"] == 0
    assert answers["refused"] > 50


def test_a_certificate_of_other_files_is_refused(nested: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]):
    source, result, certificate = map(str, nested)
    assert cli.main([source, source, certificate]) == 3
    assert "about another result" in capsys.readouterr().err
    assert cli.main([source, result, source]) == 3
    assert capsys.readouterr().err == f"sardonyx-check: refused: {source} is not a certificate\n"
    assert cli.main([source, result, "absent.json", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["answer"] == "refused"


@pytest.mark.medium
def test_the_program_prints_an_answer_for_each_output(
    nested: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
):
    arguments = [str(path) for path in nested]
    assert cli.main(arguments) == 0
    assert "output y: equal for all values" in capsys.readouterr().out
    assert cli.main([*arguments, "--json", "--seed", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["z"]["answer"] == "equal for all values"


def test_external_data_is_part_of_the_digest(tmp_path: Path):
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]> agraph (float[N, 8] x) => (float[N, 8] y) 
        { i = Identity(x)  j = Identity(i)  y = Add(j, b) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.arange(8, dtype=np.float32), "b"))
    source, result, certificate = tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path / "c.json.gz"
    onnx.save(model, source, save_as_external_data=True, location="a.data", size_threshold=0)
    options = sardonyx.OptimizeOptions(external=False)
    sardonyx.optimize(source, result, verify="off", certificate=certificate, options=options)
    arguments = [str(source), str(result), str(certificate)]
    assert cli.main(arguments) == 0
    data = bytearray((tmp_path / "a.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "a.data").write_bytes(data)
    assert cli.main(arguments) == 3


def test_a_constant_that_is_not_a_number_is_refused(tmp_path: Path):
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]> agraph (float[N, 2] x) => (float[N, 2] y)
        <float[2] a = {0.3, 0.7}, float[2] b = {1.1, 1.3}> { c = Mul(a, b)  y = Add(x, c) }"""
    )
    source, result, certificate = tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path / "c.json"
    onnx.save(model, source)
    sardonyx.optimize(source, result, verify="off", certificate=certificate)
    assert check(source, result, certificate).code == 0
    changed = onnx.load(result)
    (tensor,) = changed.graph.initializer
    tensor.CopyFrom(numpy_helper.from_array(np.array([np.nan, 0.91], np.float32), tensor.name))
    onnx.save(changed, result)
    content = json.loads(certificate.read_bytes())
    content["result"]["sha256"] = hashlib.sha256(result.read_bytes()).hexdigest()
    certificate.write_text(json.dumps(content))
    with pytest.raises(Refused, match="nan units in the last place"):
        check(source, result, certificate)


def test_a_number_next_to_one_is_not_one():
    numbers = Numbers(3, free=True)
    below = np.nextafter(np.float32(1), np.float32(0))
    assert numbers.literal(float(below)).m != numbers.literal(1.0).m
    root = numbers.literal(float(np.float32(np.sqrt(2))))
    assert (root * root).m == numbers.number(2).m


def test_a_certificate_needs_files(tmp_path: Path):
    with pytest.raises(UsageError, match="about two files"):
        sardonyx.optimize(
            parser.parse_model(NESTED), tmp_path / "b.onnx", verify="off", certificate=tmp_path / "c.json"
        )
    assert not any(tmp_path.iterdir())


def test_the_checker_shares_no_code_with_what_it_checks():
    files = list((CHECKER / "src").rglob("*.py"))
    imported = {
        name.partition(".")[0]
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
        )
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert "sardonyx" not in imported
    assert imported - {"numpy", "onnx", "sardonyx_check"} <= set(sys.stdlib_module_names)
