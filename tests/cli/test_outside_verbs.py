"""A command of an installed package has everything that built-in ones have: help, options, record, view, section."""

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
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "weight-types"
PAGE = ROOT / "docs" / "writing-a-verb.md"
MODEL = """
    <ir_version: 10, opset_import: ["" : 18]>
    agraph (float[2] x) => (float[2] z) <float[2] w = {1.0, 2.0}, int64[1] s = {2}>
    { y = Mul(x, w)  r = Reshape(y, s)  z = Identity(r) }
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, built from its source and installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", folder / "packages", folder / "source"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "packages"


def command(*arguments: str | Path, packages: Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(packages), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    words = [sys.executable, "-m", "sardonyx", *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.slow
def test_the_help_is_made_from_the_function_and_the_docstring(packages: Path) -> None:
    assert re.search(
        r"^  weight-types +List the element types of the weights of a model\.$",
        command("--help", packages=packages).stdout,
        re.MULTILINE,
    )
    done = command("weight-types", "--help", packages=packages)
    assert (done.returncode, done.stderr) == (0, "")
    assert "    sardonyx weight-types model.onnx\n" in done.stdout
    assert "  --smallest BYTES  Leave out weights of fewer bytes than this. [default: 0]\n" in done.stdout
    assert "--smallest BYTES" in command("weight-types", "--help", "-v", packages=packages).stdout
    mistyped = command("weight-type", packages=packages)
    assert (mistyped.returncode, mistyped.stderr.splitlines()[1]) == (2, "hint: did you mean weight-types?")


@pytest.mark.slow
def test_it_runs_like_a_built_in_command(packages: Path, model: Path) -> None:
    done = command("weight-types", model, "--json", packages=packages)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert (record["record"], record["schema_version"]) == ("weight_types", 1)
    types = [{"type": each, "weights": 1, "bytes": 8} for each in ("FLOAT", "INT64")]
    assert (record["models"], record["types"]) == ([str(model)], types)
    assert command("weight-types", model, "-q", "--smallest", "9", packages=packages).stdout.startswith("0 element")
    text = command("weight-types", model, packages=packages).stdout
    assert re.search(r"^ *FLOAT +1 +8 B$", text, re.MULTILINE)
    for words, code, message in (
        (["--smallest", "-1"], 2, "-1 is not in the range x>=0"),
        (["-q", "-v"], 2, "--quiet and --verbose contradict each other"),
        (["--record", model], 1, "exists"),
    ):
        refused = command("weight-types", model, *words, packages=packages)
        assert (refused.returncode, refused.stdout) == (code, "")
        assert message in refused.stderr
    missing = command("weight-types", model.with_name("modle.onnx"), packages=packages)
    assert (missing.returncode, missing.stderr.splitlines()[1]) == (2, "hint: did you mean model.onnx?")


@pytest.mark.slow
def test_its_record_is_a_section_of_the_page_of_its_model(packages: Path, model: Path) -> None:
    folder = model.parent
    run = folder / "runs"
    run.mkdir()
    for words in (
        ["optimize", "model.onnx", "-o", "small.onnx", "--record", "runs/run.json", "-q"],
        ["weight-types", "small.onnx", "--record", "runs/weights.json", "-q"],
        ["report", "runs", "-o", "page.html"],
    ):
        done = command(*words, packages=packages, folder=folder)
        assert (done.returncode, done.stderr) == (0, "")
    page = (folder / "page.html").read_text()
    (section,) = re.findall(r'<section data-section="weight_types".*?</section>', page, re.DOTALL)
    assert "Types of weights" in section
    assert "FLOAT" in section
    assert 'href="#section=weight_types"' in page
    other = command("weight-types", "model.onnx", "--record", "other.json", "-q", packages=packages, folder=folder)
    assert other.returncode == 0
    again = command("report", "runs/run.json", "other.json", "-o", "again.html", packages=packages, folder=folder)
    assert (again.returncode, again.stderr) == (0, "")
    assert 'data-section="weight_types"' in (folder / "again.html").read_text(), (
        "the source is the model of the run too"
    )


@pytest.mark.slow
def test_a_package_that_cannot_be_loaded_stops_only_its_own_command(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sardonyx.verbs]\nbroken = no_such_module\nlocate = no_such_module\n")
    listed = command("--help", packages=tmp_path)
    assert listed.returncode == 0
    assert "the command 'broken' of the package broken 1.0 cannot be loaded" in " ".join(listed.stdout.split())
    done = command("broken", packages=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the command 'broken' of the package broken 1.0 cannot be loaded: ModuleNotFoundError" in done.stderr
    assert command("locate", "--help", packages=tmp_path).returncode == 0, "a built-in command is not replaced"


def test_the_page_shows_the_example() -> None:
    code = (EXAMPLE / "src" / "weight_types" / "__init__.py").read_text()
    (shown,) = re.findall(r"```python\n(\"\"\".*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for line in shown.splitlines() if line.strip() and line.strip() != "..."]
    assert [line for line in lines if line not in [each.partition("  #")[0] for each in code.splitlines()]] == []
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 150
