"""Regenerate the table of docs/gates.md from the kinds of records. tests/readme.py refreshes the outputs on the page.

python tests/gates_page.py
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.reporting import gate

PAGE = Path(__file__).parent.parent / "docs" / "gates.md"
VERBS = {
    "export": gate.EXPORT,
    "optimize": gate.RUN,
    "quantize": gate.QUANTIZATION,
    "verify": gate.VERDICT,
    "bench": gate.BENCHMARK,
    "profile": gate.PROFILE,
    "inspect": gate.INSPECTION,
    "inspect --module": gate.MODULE,
    "inspect --opportunities": gate.OPPORTUNITIES,
    "extract": gate.EXTRACTION,
    "decompose": gate.DECOMPOSED,
    "analyze": gate.ANALYSIS,
    "adopt": gate.ADOPTION,
    "compare": gate.COMPARISON,
    "locate": gate.LOCATION,
    "study": gate.STUDY,
    "optimize --out-dir": gate.FLEET,
    "verify --out-dir": gate.FLEET,
    "quantize --out-dir": gate.FLEET,
    "inspect --out-dir": gate.FLEET,
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
