"""The campaign about guards mutates what it says, and finds the same places before and after."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import guard_mutants
import guards

SOURCE = '''
LIMIT = 40
NAMES = 3, 4

def first(a, b, shape):
    """Text."""
    assert a != 1
    if a is None or (n := len(shape)) != 2:
        return None
    if n < LIMIT and b == 0.5:
        return a
    return a != b
'''
EXPECTED = [
    (
        "guard dropped",
        "a is None or (n := len(shape)) != 2",
        "if (a is None or (n := len(shape)) != 2, False)[1]:",
    ),
    ("guard inverted", "a is None or (n := len(shape)) != 2", "if not (a is None or (n := len(shape)) != 2):"),
    ("operand dropped", "or a is None", "if False or (n := len(shape)) != 2:"),
    ("operand dropped", "or (n := len(shape)) != 2", "if a is None or ((n := len(shape)) != 2, False)[1]:"),
    ("comparison dropped", "a is None", "if True or (n := len(shape)) != 2:"),
    ("guard dropped", "n < LIMIT and b == 0.5", "if False:"),
    ("guard inverted", "n < LIMIT and b == 0.5", "if not (n < LIMIT and b == 0.5):"),
    ("operand dropped", "and n < LIMIT", "if True and b == 0.5:"),
    ("operand dropped", "and b == 0.5", "if n < LIMIT and True:"),
    ("bound × 100", "b == 0.5", "if n < LIMIT and b == 50.0:"),
    ("bound ÷ 100", "b == 0.5", "if n < LIMIT and b == 0.005:"),
    ("boundary moved", "n < LIMIT", "if n <= LIMIT and b == 0.5:"),
    ("comparison dropped", "a != b", "return False"),
    ("bound × 100", "LIMIT = 40", ""),
    ("bound ÷ 100", "LIMIT = 40", ""),
]


def planted(source: str) -> list[tuple[str, str, str]]:
    """Each mutation with the line that it changes."""
    found: list[tuple[str, str, str]] = []
    before = ast.unparse(ast.parse(source)).splitlines()
    for number, mutation in enumerate(guard_mutants.mutations(ast.parse(source))):
        tree = ast.parse(source)
        guard_mutants.mutations(tree)[number].plant()
        after = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
        changed = [new.strip() for old, new in zip(before, after, strict=True) if old != new]
        found.append((mutation.kind, mutation.text, "\n".join(changed)))
    return found


def test_each_guard_comparison_operand_and_bound_is_mutated_once() -> None:
    assert sorted(planted(SOURCE)) == sorted(EXPECTED)


def test_an_instrumented_function_reports_its_statements() -> None:
    tree = ast.parse(SOURCE)
    guard_mutants.instrument(tree)
    hits: list[str] = []
    names: dict[str, object] = {guard_mutants.HIT: hits.append}
    exec(compile(tree, "source", "exec"), names)
    assert names["first"](3, 4, (1, 2)) is True  # type: ignore[operator]
    labels = {m.statement for m in guard_mutants.mutations(ast.parse(SOURCE)) if m.statement}
    assert labels <= set(hits)


@pytest.mark.medium
@pytest.mark.parametrize("package", guards.PACKAGES)
def test_each_mutant_is_found_by_its_own_key(package: str) -> None:
    keys = [mutant.key for mutant in guards.mutants(package)]
    assert len(set(keys)) == len(keys) > 500


@pytest.mark.medium
def test_files_compile_with_probes_and_with_mutants() -> None:
    path: Path = guards.SOURCE / "passes" / "norms" / "_normalisation.py"
    for number in range(0, len(guard_mutants.mutations(ast.parse(path.read_text()))), 7):
        tree = ast.parse(path.read_text())
        guard_mutants.mutations(tree)[number].plant()
        compile(ast.fix_missing_locations(tree), str(path), "exec")
    tree = ast.parse(path.read_text())
    guard_mutants.instrument(tree)
    compile(tree, str(path), "exec")
