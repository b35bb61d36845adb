"""One vocabulary: an option means the same in every command, and an exit code too. Read from all commands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_origin

import onnx.parser
import pytest

from sardonyx.cli.configuration import shared
from sardonyx.cli.main import VERBS, load
from sardonyx.cli.options import Option, check_readable
from sardonyx.cli.verb import parameters

MODEL = '<ir_version: 10, opset_import: ["": 20]> agraph (float[N] x) => (float[N] y) { y = Relu(x) }'
Command = Callable[..., Any]
ROOT = Path(__file__).parents[2]
# Flags that are not the name of the parameter, or its singular for one that may be repeated.
SHORTER = {
    "as_json": "--json", "external": "--external-data", "input_specs": "--input",
    "level": "--ort-level", "objective": "--for", "run_folder": "--run",
}  # fmt: skip
OF_THE_KIND = {"--only": {"PASS", "EXPERIMENT"}, "--skip": {"PASS", "EXPERIMENT"}, "--output": {"FILE", "FOLDER"}}
EXIT = {
    0: {"done", "match", "no difference", "the same bytes"},
    1: {"failed"},
    2: {"usage"},
    3: {"verification failed", "no match", "the models differ", "different with --exit-code", "other bytes"},
    4: {"gate not met", "gate not met or budget not met"},
}


def options() -> dict[str, dict[str, Option]]:
    """Return the options of each flag by command."""
    found: dict[str, dict[str, Option]] = defaultdict(dict)
    for name in VERBS:
        command = load(name)
        assert command is not None
        known = {each: one for public in command.verb.of for each, one in parameters(public).items()}
        for option in command.verb.all_options:
            if not option.argument:
                found[option.flag][name] = option.completed(known.get(option.name))
    return found


def kind(option: Option) -> str:
    """Return the type of a value: commands may differ in the choices."""
    kind = "choice" if get_origin(option.type) is Literal else str(option.type)
    return "place" if option.name == "output" else kind  # a study may be at a URL


@pytest.mark.parametrize("flag", sorted(options()))
def test_a_flag_is_one_parameter_with_values_of_one_kind(flag: str) -> None:
    commands = options()[flag].values()
    assert len({kind(option) for option in commands}) == 1
    assert len({option.name for option in commands}) == 1
    assert len({option.metavar for option in commands} - OF_THE_KIND.get(flag, set())) <= 1


def test_a_parameter_is_one_flag_named_like_it() -> None:
    flags: dict[str, set[str]] = defaultdict(set)
    for flag, commands in options().items():
        for option in commands.values():
            flags[option.name].add(flag)
            plain = "--" + option.name.replace("_", "-")
            assert flag in (SHORTER.get(option.name, plain), plain.removesuffix("s")), option.name
    assert {name: each for name, each in flags.items() if len(each) > 1} == {}


def test_two_flags_have_different_descriptions() -> None:
    told: dict[str, set[str]] = defaultdict(set)
    for flag, commands in options().items():
        for option in commands.values():
            told[option.help.partition(" [default")[0]].add(flag)
    assert {text: flags for text, flags in told.items() if len(flags) > 1} == {}


def test_what_several_commands_have_is_explained_on_one_page_and_may_be_set_for_all() -> None:
    several = {flag.removeprefix("--") for flag, commands in options().items() if len(commands) > 1}
    assert several == shared()
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert {flag for flag in several if f"--{flag}" not in page} == set()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("passes", "demo")])
def test_exit_codes_mean_the_same(verb: str) -> None:
    command = load(verb)
    assert command is not None
    line = next(line for line in command.help.splitlines() if line.startswith("Exit: "))
    for code, meaning in re.findall(r"(\d) ([^,.]+)", line.removeprefix("Exit: ")):
        assert meaning in EXIT[int(code)], line
    assert (" 4 " in line) == bool(command.verb.record), line


# Words of a command with files that are there, for those that take other words than a model.
WORDS = {
    "attest": ["M", "--source", "M", "--certificate", "M"], "chat": ["M"], "compare": ["M", "M"],
    "completion": ["bash"], "dag": ["M", "--format", "model-explorer", "-o", "o.json", "--node-data", "M"],
    "decompose": ["f.py:make"], "demo": ["demo"], "export": ["f.py:make"], "extract": ["M", "--module", "m"],
    "locate": ["M", "M"], "mcp": [], "passes": [], "placement": ["M", "cuda"], "verify": ["M", "M"],
}  # fmt: skip


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "demo"])
def test_a_missing_file_is_a_mistake_on_the_command_line(
    verb: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(MODEL), "m.onnx")
    words = ["m.onnx" if word == "M" else word for word in WORDS.get(verb, ["M"])]
    calls = [[*words[:at], "none.onnx", *words[at + 1 :]] for at, word in enumerate(words) if word == "m.onnx"]
    calls += [["none.py:make"] for word in words if word == "f.py:make"]
    for flag, commands in options().items():
        if verb in commands and commands[verb].read is check_readable and flag not in words:
            more = ["--fail-if", "nodes>baseline"] if flag == "--baseline" and verb != "report" else []
            calls.append([*words, flag, "none.npz", *more])
    for call in calls:
        result = command(verb, *call)
        assert (result.code, result.out) == (2, ""), (call, result.err)
        assert re.search(r"none\.(onnx|py|npz) (cannot be read|does not exist)", result.err), (call, result.err)
