"""Everything public is documented: verbs, parameters, commands, flags, records."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import sardonyx
from commands import subcommand
from sardonyx.cli.main import VERBS
from sardonyx.records import reading

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "sardonyx"


FUNCTIONS = [name for name in sardonyx.__all__ if inspect.isfunction(getattr(sardonyx, name))]
COMMON = (DOCS / "options.md").read_text()
AGENTS = (DOCS / "for-agents.md").read_text()


def flags(text: str) -> set[str]:
    """The options that a page names."""
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def explained(doc: str, title: str = "Args") -> list[str]:
    """The names explained in a section of a docstring, in order."""
    section = re.search(rf"^{title}:\n(.*?)(?=^\S|\Z)", doc, re.DOTALL | re.MULTILINE)
    return re.findall(r"^    (\w+): \S", section[1], re.MULTILINE) if section else []


def test_every_verb_explains_every_parameter() -> None:
    for verb in FUNCTIONS:
        public = getattr(sardonyx, verb)
        assert explained(inspect.getdoc(public) or "") == list(inspect.signature(public).parameters), verb


@pytest.mark.parametrize("name", ["ExportOptions", "OptimizeOptions", "TuneOptions"])
def test_every_option_is_explained(name: str) -> None:
    options = getattr(sardonyx, name)
    assert explained(inspect.getdoc(options) or "", "Attributes") == list(options.__struct_fields__)


def test_every_verb_is_shown_on_a_page() -> None:
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert [verb for verb in FUNCTIONS if not re.search(rf"\bsardonyx\.{verb}\b", pages)] == []


def test_every_command_has_its_page() -> None:
    index = (DOCS / "README.md").read_text()
    for verb in VERBS:
        assert f"sardonyx {verb}" in (DOCS / f"{verb}.md").read_text(), verb
        assert re.search(rf"^\| \[`{verb}`\]\({verb}\.md\) \|", index, re.MULTILINE), verb


def test_every_flag_is_on_its_page_or_among_the_shared_ones() -> None:
    for verb in VERBS:
        names = [flag for one in subcommand(verb).params for flag in (*one.opts, *one.secondary_opts)]
        known = {flag for flag in names if flag[0] == "-"}
        page = (DOCS / f"{verb}.md").read_text()
        assert known - flags(page) - flags(COMMON) == set(), verb
        assert "options.md" in page or not known - flags(page), f"the page of {verb} links to the shared ones"


def test_every_shared_flag_exists_on_some_command() -> None:
    known = {flag for verb in VERBS for one in subcommand(verb).params for flag in (*one.opts, *one.secondary_opts)}
    assert flags(COMMON) - known == {"-h", "--help", "--version"}


def test_every_record_and_schema_is_on_the_formats_page() -> None:
    page = (DOCS / "formats.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE))
    assert {kind.__name__: tag for tag, kind in reading.kinds().items()} == rows
    schemas = {path.name for path in (SOURCE / "records" / "schemas").glob("*.json")}
    assert set(re.findall(r"schemas/([\w.]+\.json)", page)) == schemas


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    assert pages - set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == set()


def test_fields_that_agents_should_read_exist() -> None:
    rows = re.findall(r"^\| .+ \| \[`sardonyx (\w+)(.*?)`\]\(.+\) \| (.+) \|$", AGENTS, re.MULTILINE)
    records = {"export": "export", "optimize": "run", "verify": "verdict", "bench": "bench", "profile": "profile"}
    records |= {"analyze": "analysis", "inspect": "inspection", "compare": "comparison", "extract": "extraction"}
    records |= {"quantize": "quantization", "locate": "location"}
    assert {verb for verb, _, _ in rows} == set(records)
    for verb, options, cell in rows:
        kind = reading.kinds()["opportunities" if "--opportunities" in options else records[verb]]
        fields = {name.partition(".")[0].removesuffix("[]") for name in re.findall(r"`(.+?)`", cell)}
        assert fields - set(kind.__struct_fields__) == set(), verb


def test_install_lines_work_without_an_index() -> None:
    """The package is on no index: it is installed from a checkout."""
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "llms.txt", ROOT / "action.yml"]:
        text = page.read_text()
        assert not re.search(r"pip install [^\n`]*(?<!/)\bsardonyx\b", text), page.name


def test_the_action_is_used_as_documented() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    workflow = re.search(
        r"```yaml\n(name: model.*?uses: \./sardonyx.*?)```", (DOCS / "gates.md").read_text(), re.DOTALL
    )
    assert workflow
    (job,) = yaml.safe_load(workflow[1])["jobs"].values()
    used = next(step for step in job["steps"] if step.get("uses") == "./sardonyx")
    assert set(used["with"]) <= set(action["inputs"])
    assert set(re.findall(r"steps\.sardonyx\.outputs\.([\w-]+)", workflow[1])) <= set(action["outputs"])


def test_docstrings_are_required_of_every_public_function() -> None:
    """By ruff, for the whole package without exceptions."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "D" in rules["select"]
    assert not any(rule.startswith("D1") and rule not in ("D105", "D107") for rule in rules.get("ignore", ()))
    assert not any("src" in pattern and "D" in off for pattern, off in rules.get("per-file-ignores", {}).items())
