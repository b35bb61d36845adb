"""Helpers for graphs of torch.export and torch.fx: module paths of their nodes, and code for unusual module names."""

from __future__ import annotations

import contextlib
import keyword
from collections.abc import Generator, Mapping
from typing import Any

from torch.fx import graph

from sardonyx.frontend.tracing.adapter import INNER
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep

_FX_CODE: Any = graph  # torch.fx's code generator, which has no public API for names


def path_of(stack: Mapping[str, tuple[str, object]], tree: LiveTree) -> str | None:
    """Return the path of the last module of torch's stack; None if torch lost it, and for the adapter's own nodes."""
    steps: list[ModuleStep] = []
    for key, (name, _) in stack.items():
        inner = name.removeprefix(INNER).removeprefix(".")
        try:
            module = tree.root.get_submodule(inner)
        except AttributeError:  # torch's placeholder for an operation whose module it lost
            return None
        if name:
            steps.append(ModuleStep(module, key))
    return tree.path(steps) if steps else None


@contextlib.contextmanager
def quoted_names() -> Generator[None]:
    """Make torch.fx generate valid code for module names with quotes or line ends, or that are keywords."""
    before = _FX_CODE._format_target
    _FX_CODE._format_target = _format_target
    try:
        yield
    finally:
        _FX_CODE._format_target = before


def _format_target(base: str, target: str) -> str:
    for name in target.split("."):
        is_identifier = name.isidentifier() and not keyword.iskeyword(name)
        base = f"{base}.{name}" if is_identifier else f"getattr({base}, {name!r})"
    return base
