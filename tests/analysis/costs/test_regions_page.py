"""docs/regions.md lists the rules in order."""

from __future__ import annotations

from pathlib import Path

from sardonyx.verbs.analyze.costs.fusion_regions import RULES

PAGE = (Path(__file__).parents[3] / "docs" / "regions.md").read_text(encoding="utf-8")


def test_the_table_lists_the_rules() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(RULES)
