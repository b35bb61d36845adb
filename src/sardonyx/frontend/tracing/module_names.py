"""Names of modules that torch's generated code cannot hold: it puts them between quotes as they are."""

from __future__ import annotations

import contextlib
import keyword
from collections.abc import Generator
from typing import Any

from torch.fx import graph

_WRITER: Any = graph  # its function has no public name


@contextlib.contextmanager
def quoted_names() -> Generator[None]:
    """Let code that torch writes for a graph escape quotes and line ends in names, and hold keywords."""
    before = _WRITER._format_target
    _WRITER._format_target = _written
    try:
        yield
    finally:
        _WRITER._format_target = before


def _written(base: str, target: str) -> str:
    for name in target.split("."):
        is_plain = name.isidentifier() and not keyword.iskeyword(name)
        base = f"{base}.{name}" if is_plain else f"getattr({base}, {name!r})"
    return base
