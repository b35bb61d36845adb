"""Options take what they do not say from the source of the public function, which agrees with the imported one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import UNSET

import sardonyx
from sardonyx.cli.main import VERBS, load
from sardonyx.cli.options import Option
from sardonyx.cli.verb import parameters


@pytest.mark.parametrize("verb", VERBS)
def test_the_source_says_what_the_imported_function_says(verb: str) -> None:
    command = load(verb)
    assert command is not None
    for name in command.verb.of:
        imported = inspect.signature(getattr(sardonyx, name)).parameters
        read = parameters(name)
        assert [*read] == [*imported]
        keyword = {each for each in imported if imported[each].kind is inspect.Parameter.KEYWORD_ONLY}
        assert {each.name for each in read.values() if each.keyword} == keyword
        assert all(each.help for each in read.values())
        for option in command.verb.options:
            if option.name in read and option.default is UNSET and not option.argument:
                default = imported[option.name].default
                expected = UNSET if default is inspect.Parameter.empty else default
                assert read[option.name].default == expected, option.name


def test_types_defaults_and_help_are_taken_from_the_parameter() -> None:
    known = parameters("optimize")
    completed = {name: Option(name).completed(known[name]) for name in ("verify", "only", "seed", "dry_run")}
    assert {name: option.type for name, option in completed.items()} == {
        "verify": Literal["each", "end", "off"],
        "only": list[str],
        "seed": int,
        "dry_run": bool,
    }
    assert [option.default for option in completed.values()] == ["end", None, 0, False]
    assert completed["dry_run"].help == "Report what would apply; verify and write nothing."
    assert completed["dry_run"].flags == ("--dry-run",)
    assert Option("seed", help="Mine.", default=3).completed(known["seed"]).help == "Mine."
    assert Option("certificate", none="none").completed(known["certificate"]).type is Path


@pytest.mark.parametrize(
    ("option", "public", "message"),
    [
        (Option("nowhere", help="An option of its own."), None, "needs a type, a default and a help text"),
        (Option("options"), "optimize", "needs a type: the parameter is annotated 'OptimizeOptions | None'"),
        (Option("starts"), "bench", "needs a default: that of the parameter is STARTS"),
    ],
)
def test_what_is_declared_nowhere_is_an_error(option: Any, public: str | None, message: str) -> None:
    with pytest.raises(TypeError, match=message.replace("|", r"\|")):
        option.completed(None if public is None else parameters(public)[option.name])
