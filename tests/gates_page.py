"""Regenerate the table of docs/gates.md from the kinds of records. tests/readme.py refreshes the outputs on the page.

python tests/gates_page.py
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.reporting import record_kinds

PAGE = Path(__file__).parent.parent / "docs" / "gates.md"
VERBS = {
    "export": record_kinds.EXPORT,
    "optimize": record_kinds.RUN,
    "quantize": record_kinds.QUANTIZATION,
    "verify": record_kinds.VERDICT,
    "bench": record_kinds.BENCHMARK,
    "profile": record_kinds.PROFILE,
    "inspect": record_kinds.INSPECTION,
    "inspect --module": record_kinds.MODULE,
    "inspect --opportunities": record_kinds.OPPORTUNITIES,
    "extract": record_kinds.EXTRACTION,
    "decompose": record_kinds.DECOMPOSED,
    "analyze": record_kinds.ANALYSIS,
    "adopt": record_kinds.ADOPTION,
    "placement": record_kinds.PLACEMENT,
    "compare": record_kinds.COMPARISON,
    "locate": record_kinds.LOCATION,
    "study": record_kinds.STUDY,
    "optimize --out-dir": record_kinds.FLEET,
    "verify --out-dir": record_kinds.FLEET,
    "quantize --out-dir": record_kinds.FLEET,
    "inspect --out-dir": record_kinds.FLEET,
}


def rows() -> list[str]:
    """One row for each name and meaning, with the commands that know it."""
    known: dict[tuple[str, str], list[str]] = {}
    for verb, kind in VERBS.items():
        for name, what in kind.names.items():
            known.setdefault((name, what), []).append(f"`{verb}`")
    return [f"| `{name}` | {', '.join(verbs)} | {what} |" for (name, what), verbs in known.items()]


def listed(page: str) -> list[str]:
    """The rows the page has."""
    return [line for line in page.split("| name | of | is |")[1].splitlines() if line.startswith("| `")]


if __name__ == "__main__":
    head, _, _ = PAGE.read_text(encoding="utf-8").partition("| name | of | is |")
    PAGE.write_text(head + "\n".join(["| name | of | is |", "|---|---|---|", *rows()]) + "\n", encoding="utf-8")
