"""The project's own files: versions, pins, links, workflows and the sdist."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import onnx
import pytest
import yaml
from packaging.requirements import Requirement

import passes_page
import sardonyx
from sardonyx.passes import ALL

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LONGEST = 600  # lines: one longer file is easier to read than fragments with one importer each
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def package_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", requirement, maxsplit=1)[0].lower() for requirement in requirements}


def test_the_version_is_written_once_and_installed() -> None:
    version = PROJECT["project"]["version"]
    assert importlib.metadata.version("sardonyx") == version
    released = re.findall(r"^## (?!Unreleased$)(.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    dated = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", released[0])
    assert dated
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (dated[1], dated[2]) == (version, str(citation["date-released"]))
    assert citation["version"] == version


def test_every_requirement_is_pinned_for_the_tests() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    named = [each for extra in ("torch", "test", "dev", "docs") for each in extras[extra]]
    needed = package_names([*PROJECT["project"]["dependencies"], *named]) - {"sardonyx"}
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+]+", pin) for pin in pins)
    assert needed <= {pin.split("==")[0].lower() for pin in pins}
    assert "torch==2.13.0" in pins, "a looser pin may pull several GB of CUDA packages"


def test_every_requirement_has_a_lower_bound_that_the_pin_satisfies() -> None:
    """`make lowest` reads the bounds from pyproject.toml and runs the quick tests with them."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    project = PROJECT["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    for requirement in map(Requirement, named):
        if requirement.name != "sardonyx":
            assert ">=" in str(requirement.specifier), requirement
            assert pins[requirement.name.lower()] in requirement.specifier, requirement


def test_the_tests_run_on_the_pinned_versions() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for name in package_names(PROJECT["project"]["dependencies"]):
        pinned = next(version for pin, version in pins.items() if pin.lower() == name)
        assert importlib.metadata.version(name).split("+")[0] == pinned, name


def test_source_files_are_not_too_long() -> None:
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("onnxruntime", {"runtime/library.py"}), ("torch", set())],
)
def test_heavy_packages_are_imported_by_name_only_where_allowed(package: str, allowed: set[str]) -> None:
    """import-linter sees import statements only."""
    by_name = re.compile(rf"import_module\(\s*[\"']{package}\b|__import__\(\s*[\"']{package}\b")
    source = ROOT / "src" / "sardonyx"
    importers = {str(path.relative_to(source)) for path in source.rglob("*.py") if by_name.search(path.read_text())}
    assert importers <= allowed


def test_every_pass_has_its_row_in_the_docs() -> None:
    assert passes_page.listed(passes_page.PAGE.read_text()) == passes_page.rows(), "run python tests/passes_page.py"


def test_the_original_passes_are_mapped_to_ours() -> None:
    text = (ROOT / "docs" / "passes.md").read_text().split("## The twelve")[1]
    rows = re.findall(r"^\| \d+ \| (\w+) \| (.+?) \|", text, re.MULTILINE)
    assert len(rows) == 12
    ours = {name for _, names in rows for name in re.findall(r"`([a-z0-9-]+)`", names)}
    assert ours <= {one.name for one in ALL}
    assert all(re.search(r"`[a-z0-9-]+`", names) for _, names in rows)


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    decisions = {path.name for path in folder.glob("[0-9]*.md")}
    assert set(re.findall(r"\(([0-9][^)]*\.md)\)", index)) == decisions


def test_links_between_pages_resolve() -> None:
    for page in PAGES:
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        assert [link for link in links if not (page.parent / link).exists()] == [], page.relative_to(ROOT)


def test_the_files_named_in_the_tour_exist() -> None:
    named = re.findall(r"`([a-z_]+/[a-z_/]*\w\.py)`", (ROOT / "docs" / "how-it-works.md").read_text())
    assert len(set(named)) > 30
    assert [name for name in named if not (ROOT / "src" / "sardonyx" / name).exists()] == []


def test_no_local_path_is_in_the_files() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    home = re.compile(rb"/(root|home/\w+|work)/")
    files = [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    assert [str(file) for file in files if file.is_file() and home.search(file.read_bytes())] == []


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job.get("steps", []) if "run" in step]
    called = {word for command in commands if command.startswith("make ") for word in command.split()[1:]}
    assert {word for word in called if "=" not in word} <= targets


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to other code; the comment after the hash names the version for people and Dependabot."""
    for path in (ROOT / "action.yml", *(ROOT / ".github" / "workflows").glob("*.yml")):
        for use in re.findall(r"uses: +(.+)", path.read_text()):
            assert re.fullmatch(r"\./\S+|[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+(\.\d+)+", use), f"{path.name}: {use}"


def test_every_supported_python_is_tested_and_declared() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    declared = [line.split(" :: ")[2] for line in PROJECT["project"]["classifiers"] if ":: Python :: 3." in line]
    assert tested == declared
    assert PROJECT["project"]["requires-python"] == f">={declared[0]}"


def test_pre_commit_runs_the_checks_of_make_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    rule = re.search(r"^check: setup\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule
    checked = re.findall(r"\$\(BIN\)/(\S+)", rule[1])
    assert sorted(Path(hook["entry"].split()[0]).name for hook in hooks) == sorted(checked)


@pytest.mark.medium
def test_every_tracked_file_is_in_the_sdist(tmp_path: Path) -> None:
    """The tests import benchmarks and read pages, workflows and the Makefile: from the sdist too."""
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="make setup installs hatchling")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    archive = next(sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    kept = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists()}
    assert kept - packed == set()
    assert {name.split("/")[0] for name in packed} <= {name.split("/")[0] for name in kept} | {"PKG-INFO"}


def test_ci_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("make test")


@pytest.mark.slow
def test_the_hooks_for_pre_commit_hold_files_to_gates(tmp_path: Path) -> None:
    """Each entry is run as pre-commit runs it: with its arguments and the changed files behind them."""
    source = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> agraph (float[N] x) => (float[N] y) { a = Identity(x)  y = Relu(a) }'
    )
    onnx.save(source, tmp_path / "model.onnx")
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert set(hooks) == {"sardonyx-inspect", "sardonyx-optimized"}
    assert all(f"`{name}`" in (ROOT / "docs" / "gates.md").read_text() for name in hooks)

    def code(name: str, *arguments: str) -> int:
        assert re.search(hooks[name]["files"], "model.onnx")
        command = [sys.executable, "-m", *shlex.split(hooks[name]["entry"]), *arguments, "model.onnx"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode

    assert (code("sardonyx-inspect"), code("sardonyx-inspect", "--fail-if", "nodes > 1")) == (0, 4)
    assert code("sardonyx-optimized") == 4
    sardonyx.optimize(tmp_path / "model.onnx", tmp_path / "model.onnx", force=True)
    assert code("sardonyx-optimized") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
