"""External passes, given as objects or installed as packages, are treated like built-in ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import Accuracy, Builder, Facts, Match, NodePass
from sardonyx.passes import ALL

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "docs" / "examples" / "double-negation"
NAME = "eliminate-double-negation"
MODEL = """
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[N] x) => (float[N] y) { a = Exp(x)  b = Neg(a)  c = Neg(b)  y = Relu(c) }
"""


class SquareToMul(NodePass):
    """Pow(x, 2) => x * x."""

    name = "square-to-mul"
    accuracy = Accuracy.REASSOCIATES
    roots = ("Pow",)

    def match(self, node: ir.Node, graph: Facts) -> Match | None:
        exponent = node.inputs[1]
        return Match((node,)) if exponent is not None and graph.scalar(exponent) == 2 else None

    def rewrite(self, match: Match, op: Builder) -> ir.Value:
        return op.Mul(match.root.inputs[0], match.root.inputs[0])


class WrongSquare(SquareToMul):
    """Pow(x, 2) => x + x, which is wrong."""

    name = "wrong-square"

    def rewrite(self, match: Match, op: Builder) -> ir.Value:
        return op.Add(match.root.inputs[0], match.root.inputs[0])


class WrongType(SquareToMul):
    """Pow(x, 2) => a value of another type."""

    name = "wrong-type"

    def rewrite(self, match: Match, op: Builder) -> ir.Value:
        return op.Cast(match.root.inputs[0], to=ir.DataType.DOUBLE)


SQUARE = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[N] x) => (float[N] y) <float two = {2.0}> { a = Pow(x, two)  y = Relu(a) }
""")


def operators(run: sardonyx.Run) -> dict[str, int]:
    return {count.op_type: count.after for count in run.ops if count.after}


def test_a_given_pass_runs_and_is_recorded_under_its_name() -> None:
    run = sardonyx.optimize(SQUARE, passes=[SquareToMul()])
    assert operators(run) == {"Mul": 1, "Relu": 1}
    assert run.verdict is not None
    assert run.verdict.passed
    (record,) = (each for each in run.passes if each.name == "square-to-mul")
    assert (record.rewrites, record.accuracy) == (1, Accuracy.REASSOCIATES)
    assert {event.pass_name for event in run.events} == {"square-to-mul"} | {"eliminate-unused-initializers"}


def test_a_given_pass_can_be_named_in_only_and_skip() -> None:
    skipped = sardonyx.optimize(SQUARE, passes=[SquareToMul()], skip=["square-to-mul"], verify="off")
    assert operators(skipped) == {"Pow": 1, "Relu": 1}
    alone = sardonyx.optimize(SQUARE, passes=[SquareToMul()], only=["square-to-mul"], verify="off")
    assert [each.name for each in alone.passes] == ["square-to-mul"]


def test_a_wrong_rewrite_of_a_given_pass_is_rolled_back() -> None:
    run = sardonyx.optimize(SQUARE, passes=[WrongSquare()])
    assert operators(run) == {"Pow": 1, "Relu": 1}
    assert [each.pass_name for each in run.rolled_back] == ["wrong-square"]


def test_the_driver_checks_a_given_pass_without_running_anything() -> None:
    run = sardonyx.optimize(SQUARE, passes=[WrongType()], verify="off")
    assert operators(run) == {"Pow": 1, "Relu": 1}
    (record,) = (each for each in run.passes if each.name == "wrong-type")
    assert record.rewrites == 0
    assert record.refusals


class Raises(SquareToMul):
    """Pow(x, 2) => an exception."""

    name = "raises"

    def rewrite(self, match: Match, op: Builder) -> ir.Value:
        raise KeyError("no such thing")


class ReturnsNothing(SquareToMul):
    """Pow(x, 2) => None."""

    name = "returns-nothing"

    def rewrite(self, match: Match, op: Builder) -> ir.Value:
        return None  # pyright: ignore[reportReturnType]


@pytest.mark.medium
@pytest.mark.parametrize("rule", [Raises(), ReturnsNothing()])
def test_an_exception_in_a_given_pass_is_reported_with_its_name(rule: NodePass) -> None:
    with pytest.raises(sardonyx.SardonyxError) as caught:
        sardonyx.optimize(SQUARE, passes=[rule], verify="off")
    assert re.fullmatch(
        rf"the pass {rule.name} of the module \S*test_external_passes failed: \w+(: .+)?", caught.value.message
    )
    assert caught.value.hint == f"leave it out with `skip=['{rule.name}']`, or repair it: see the traceback"
    assert caught.value.__cause__ is not None
    assert sardonyx.optimize(SQUARE, passes=[rule], skip=[rule.name], verify="off").after.nodes == 2


def test_an_exception_in_a_built_in_pass_is_not_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    def match(*_: object) -> None:
        raise KeyError("ours")

    (rule,) = (rule for rule in ALL if rule.name == "eliminate-identity")
    monkeypatch.setattr(type(rule), "match", match)
    model = onnx.parser.parse_model(MODEL.replace("Relu", "Identity"))
    with pytest.raises(KeyError, match="ours"):
        sardonyx.optimize(model, passes=[SquareToMul()], verify="off")


class NoRoots(SquareToMul):
    """Has no tuple of operators."""

    name = "no-roots"
    roots = "Pow"  # pyright: ignore[reportAssignmentType]


class BuiltInName(SquareToMul):
    """Has the name of a built-in pass."""

    name = "fold-constants"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (SquareToMul, "it is a class; give an instance"),
        ("square-to-mul", "neither a NodePass nor a ModelPass"),
        (NoRoots(), "its 'roots' is not of type tuple"),
        (BuiltInName(), "two passes have the name 'fold-constants'"),
    ],
)
def test_what_is_not_a_pass_is_refused_in_one_line(given: object, message: str) -> None:
    with pytest.raises(sardonyx.UsageError, match=message):
        sardonyx.optimize(SQUARE, passes=[given])  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, built from its source and installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "source"
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", folder / "packages", source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "packages"


def command(*arguments: str | Path, packages: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(packages), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "sardonyx", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.mark.slow
def test_an_installed_pass_is_listed_with_its_package(site: Path) -> None:
    done = command("passes", "--json", packages=site)
    (listed,) = (each for each in json.loads(done.stdout) if each["name"] == NAME)
    assert listed["algebra"] == "-(-x) => x"
    assert listed["package"] == "sardonyx-double-negation 0.1.0"
    assert f"{NAME} comes from the package sardonyx-double-negation 0.1.0\n" in command("passes", packages=site).stdout


@pytest.mark.slow
def test_an_installed_pass_runs_and_is_recorded(site: Path, model: Path) -> None:
    done = command("optimize", model, "--json", packages=site)
    run = json.loads(done.stdout)
    assert (done.returncode, run["after"]["nodes"], run["verdict"]["passed"]) == (0, 2, True)
    assert [each["rewrites"] for each in run["passes"] if each["name"] == NAME] == [1]
    assert f"the pass {NAME} is of the package sardonyx-double-negation 0.1.0" in run["notes"]


@pytest.mark.slow
def test_an_installed_pass_can_be_skipped(site: Path, model: Path) -> None:
    run = json.loads(command("optimize", model, "--json", "--skip", NAME, "--verify", "off", packages=site).stdout)
    assert run["after"]["nodes"] == 4
    assert NAME not in [each["name"] for each in run["passes"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import a_package_that_is_missing", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("PASSES = (object,)", "gives <class 'object'>, which is not a pass: it is a class; give an instance"),
    ],
)
def test_a_broken_package_is_named_in_one_line(
    site: Path, model: Path, tmp_path: Path, code: str, message: str
) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(site, packages, ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "double_negation" / "__init__.py").write_text(code + "\n")
    done = command("optimize", model, packages=packages)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith(
        f"error: the entry point 'double-negation' of the package sardonyx-double-negation 0.1.0 {message}"
    )
    assert len(lines) == 2, "one line and its hint"


@pytest.mark.slow
def test_an_exception_in_an_installed_pass_names_its_package_and_how_to_skip_it(
    site: Path, model: Path, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(site, packages, ignore=shutil.ignore_patterns("__pycache__"))
    code = packages / "double_negation" / "__init__.py"
    code.write_text(code.read_text() + "\n\nEliminateDoubleNegation.match = lambda self, node, graph: 1 / 0\n")
    done = command("optimize", model, packages=packages)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: the pass {NAME} of the package sardonyx-double-negation 0.1.0 failed: "
        "ZeroDivisionError: division by zero",
        f"hint: leave it out with --skip {NAME}, or repair it: --debug shows the traceback",
    ]
    assert command("optimize", model, "--skip", NAME, "--verify", "off", packages=packages).returncode == 0
