"""Regenerate the table of docs/passes.md from the passes: python tests/passes_page.py."""

from __future__ import annotations

from pathlib import Path

from sardonyx.passes import ALL

PAGE = Path(__file__).parent.parent / "docs" / "passes.md"


def rows() -> list[str]:
    """Return one row per pass, in the order they run."""
    return [f"| `{one.name}` | {one.algebra.replace('|', chr(92) + '|')} | {one.accuracy} |" for one in ALL]


def listed(page: str) -> list[str]:
    """Return the rows of the table; the page has another table of the twelve original passes below it."""
    return [line for line in page.split("## The twelve")[0].splitlines() if line.startswith("| `")]


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.replace("\n".join(listed(text)), "\n".join(rows())))
