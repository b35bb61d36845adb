"""Where torch.export says that an operation ran, as a path of the model that the adapter wraps."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.frontend.tracing.adapter import INNER
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep


def path_of(stack: Mapping[str, tuple[str, object]], tree: LiveTree) -> str | None:
    """The path of the last module of torch's stack; None where torch lost it, or for what the adapter does itself."""
    steps: list[ModuleStep] = []
    for key, (name, _) in stack.items():
        inner = name.removeprefix(INNER).removeprefix(".")
        try:
            module = tree.root.get_submodule(inner)
        except AttributeError:  # torch's word for an operation that it lost the module of
            return None
        if name:
            steps.append(ModuleStep(module, key))
    return tree.path(steps) if steps else None
