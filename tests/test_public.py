"""What `import sardonyx` offers: the names in `__all__`, nothing else, and nothing loaded before it is used."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

import sardonyx

ROOT = Path(__file__).parent.parent
ERRORS = {"GateNotMet", "ModelError", "OutputError", "RuntimeFailure", "SardonyxError", "UsageError"}
FOR_PASSES = {"Accuracy", "Builder", "Example", "Facts", "Match", "ModelPass", "NodePass", "Pass", "Refused"}


def in_a_process(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.slow
def test_dir_and_star_import_give_the_public_names_and_no_others() -> None:
    assert dir(sardonyx) == sorted(sardonyx.__all__)
    code = "before = {*globals()}\nfrom sardonyx import *\nprint(*{*globals()} - before - {'before'})"
    assert sorted(in_a_process(code)) == sorted(sardonyx.__all__)


def test_type_checkers_see_the_same_names() -> None:
    """They read the imports under TYPE_CHECKING, which are never run."""
    tree = ast.parse((ROOT / "src" / "sardonyx" / "__init__.py").read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If))
    imports = {
        alias.name: each.module for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }
    assert imports == sardonyx._DEFINED_IN  # pyright: ignore[reportPrivateUsage]
    assert {*imports, "__version__"} == {*sardonyx.__all__}


@pytest.mark.parametrize("name", [name for name in sardonyx.__all__ if name != "__version__"])
def test_every_public_name_is_documented_where_it_is_defined(name: str) -> None:
    public = getattr(sardonyx, name)
    assert public.__name__ == name
    assert inspect.getdoc(public)


def test_the_names_a_caller_needs_are_there() -> None:
    assert {"optimize", "export", "verify", "Run", "Verdict", *ERRORS, *FOR_PASSES} <= {*sardonyx.__all__}
    assert issubclass(sardonyx.UsageError, sardonyx.SardonyxError)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        sardonyx.optimise  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018


def test_the_version_is_that_of_the_project() -> None:
    assert sardonyx.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = in_a_process("import sys, sardonyx\nprint(*sys.modules)")
    ours = {name for name in loaded if name.startswith("sardonyx")}
    assert ours == {"sardonyx", "sardonyx.common", "sardonyx.common.gc_pause"}
    assert {"onnx", "onnx_ir", "numpy", "msgspec", "importlib.metadata", "torch", "onnxruntime"}.isdisjoint(loaded)


def test_the_result_has_the_type_of_the_given_model() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) <float w = {2.0}>'
        "{ a = Identity(x) b = Mul(a, w) y = Relu(b) }"
    )
    run = sardonyx.optimize(proto, verify="off")
    small = run.to_proto()
    assert isinstance(small, onnx.ModelProto)
    onnx.checker.check_model(small, full_check=True)
    assert [node.op_type for node in small.graph.node] == ["Mul", "Relu"]
    assert onnx.numpy_helper.to_array(small.graph.initializer[0]) == 2.0
    assert isinstance(sardonyx.optimize(ir.from_proto(proto), verify="off").model, ir.Model)
    for node in proto.graph.node:
        node.name = f"/scope/{node.op_type}"
    assert [node.op_type for node in sardonyx.adopt(proto).to_proto().graph.node] == ["Identity", "Mul", "Relu"]
    assert b"to_proto" not in run.to_json()
