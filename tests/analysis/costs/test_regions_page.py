"""docs/regions.md lists the rules in order with their own descriptions."""

from __future__ import annotations

from pathlib import Path

from sardonyx.verbs.analyze.costs.regions import RULES

PAGE = (Path(__file__).parents[3] / "docs" / "regions.md").read_text(encoding="utf-8")


def test_the_table_lists_the_rules() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{rule.name}` | {rule.algebra} | {rule.stops} |" for rule in RULES]
