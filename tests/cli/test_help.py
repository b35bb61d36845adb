"""Help texts begin with a valid example, show every default and explain every option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from commands import subcommand
from sardonyx.cli import options
from sardonyx.cli.main import HELP, VERBS

Command = Callable[..., Any]


def explains(text: str | None) -> bool:
    """Whether a help text has at least three words without its default."""
    sentence = (text or "").partition(" [default")[0]
    return sentence.endswith((".", "…")) and len(sentence.split()) >= 3


def fault_of_default(option: Any, text: str) -> str | None:
    """Return what is wrong with an option's default in the help text, or None."""
    switch = option.is_flag and not option.secondary_opts
    has_default = option.default is not None and option.show_default
    written = "[default: " in option.help
    if not (switch or option.required or has_default or written):
        return "no default"
    if has_default and written:
        return "the default is shown twice"
    if has_default and not switch:
        value = str(getattr(option.default, "value", option.default))
        wanted = option.opts[0][2:] if option.secondary_opts else value
        row = rf"{re.escape(option.opts[0])}\b[^\[]*(\[[^\]d][^\[]*)*\[default: {re.escape(wanted)}"
        return None if re.search(row, text) else f"[default: {wanted}] is not in its row"
    return None


def examples(text: str) -> list[str]:
    """The example command lines of a help text, which follow its first line."""
    first, *rest = text.removeprefix("\b").strip().splitlines()
    assert first == "Example:"
    lines = [line.strip() for line in rest[: rest.index("")]]
    assert lines
    assert all(line.startswith("sardonyx ") for line in lines)
    return [part.strip() for line in lines for part in re.split(r" && | \| | > | >> ", line) if "sardonyx " in part]


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_valid_examples(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "is_there", lambda _path: True)  # examples are parsed, not run
    for line in examples(subcommand(verb).help):
        _, used, *words = shlex.split(line, comments=True)
        known = {flag for one in subcommand(used).params for flag in (*one.opts, *one.secondary_opts)}
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert flags <= known, line
        subcommand(used).make_context(used, [*words])  # and parsed


def test_the_top_level_help_lists_every_command_and_a_first_example(command: Command) -> None:
    text = command("--help").out
    assert [line.split()[0] for line in re.split(r"\nCommands:\n", text)[1].splitlines() if line[2] != " "] == [*VERBS]
    for line in examples(HELP):
        assert line.split()[1] in VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_and_option_is_explained(verb: str) -> None:
    unexplained = {f"{verb} {one.opts[0]}": one.help for one in subcommand(verb).params if not explains(one.help)}
    assert unexplained == {}, "a sentence of three words or more"


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_shows_its_default_once_or_is_a_switch(verb: str, command: Command) -> None:
    text = " ".join(full_help(verb, command).split())
    options = [one for one in subcommand(verb).params if one.param_type_name == "option"]
    assert options
    faults = {f"{verb} {one.opts[0]}": fault for one in options if (fault := fault_of_default(one, text))}
    assert faults == {}


@pytest.mark.parametrize("verb", VERBS)
def test_help_explains_exit_codes_and_groups_options(verb: str, command: Command) -> None:
    text = full_help(verb, command)
    if verb != "passes":  # which only lists and cannot fail
        assert re.search(r"^  Exit: 0 ", text, re.MULTILINE)
    headings = re.findall(r"^(\w+):$", text, re.MULTILINE)
    titles = ("Arguments", "Options", "Output", "More", "Gates", "Help")
    assert headings == [title for title in titles if title in headings]
    assert re.search(r"\nHelp:\n  --debug .*\n  -h, --help ", text)
    if "--fail-if" in text.partition("\nGates:")[2]:
        assert {"--baseline", "--summary"} <= set(re.findall(r"--[a-z-]+", text.partition("\nGates:")[2]))


def test_the_list_of_commands_is_one_screen(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command("--help").out
    assert len(text.splitlines()) < 40
    assert text.partition("\nCommands:\n")[2].count("\n") == len(VERBS), "a line for each"


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_one_screen_that_names_every_option(
    verb: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command(verb, "--help").out
    assert len(text.splitlines()) < 40
    assert re.search(r"^  Exit: 0 ", text, re.MULTILINE) or verb == "passes"
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    assert [one.opts for one in subcommand(verb).params if one.opts[0][0] == "-" and not named & set(one.opts)] == []


def full_help(verb: str, command: Command) -> str:
    """Return the help that explains every option."""
    has_verbose = any(one.name == "verbose" for one in subcommand(verb).params)
    return command(verb, "--help", *(["-v"] if has_verbose else [])).out


def test_a_wide_terminal_is_used(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    for columns in ("80", "110"):
        monkeypatch.setenv("COLUMNS", columns)
        prose = command("optimize", "--help").out.partition("\nArguments:")[0].split("\n\n")[1:]
        widths.append(max(len(line) for part in prose[1:] for line in part.splitlines()))
    assert widths[0] <= 80 < widths[1] <= 110
