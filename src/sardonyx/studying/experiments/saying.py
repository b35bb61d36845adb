"""How findings say numbers."""

from __future__ import annotations


def several(count: int, noun: str) -> str:
    """1 model, 2 models."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
