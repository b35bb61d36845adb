"""Write the table of docs/passes.md anew from the passes themselves: python tests/passes_page.py."""

from __future__ import annotations

from pathlib import Path

from sardonyx.passes import ALL

PAGE = Path(__file__).parent.parent / "docs" / "passes.md"


def rows() -> list[str]:
    """One row a pass, in the order they run."""
    return [f"| `{one.name}` | {one.algebra.replace('|', chr(92) + '|')} | {one.accuracy} |" for one in ALL]


def listed(page: str) -> list[str]:
    """The rows the page has; below them it maps the twelve passes of the notes to ours."""
    return [line for line in page.split("## The twelve")[0].splitlines() if line.startswith("| `")]


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.replace("\n".join(listed(text)), "\n".join(rows())))
