"""A ModuleInspection as text: one module, what it takes and gives, what is in it, what it shares."""

from __future__ import annotations

from sardonyx.inspection import ModuleInspection
from sardonyx.rendering import words
from sardonyx.rendering.model import (
    coverage_line,
    interface,
    module_name,
    module_table,
    operators,
    titled,
    weight_table,
)
from sardonyx.rendering.view import View

_WEIGHTS = 12  # rows that still read at a glance


def render_module(found: ModuleInspection, view: View | None = None) -> str:
    """The whole answer of `inspect --module`; its last line is the sentence."""
    view = view or View()
    tied = [weight for weight in found.weights if _is_shared(weight.modules, found.path)]
    shown = found.weights if view.verbose or len(found.weights) <= _WEIGHTS else ()
    blocks = [
        _facts(found, view),
        interface(found.inputs, found.outputs, view),
        operators(found.ops, view),
        module_table(found.modules, view, found.path),
        weight_table("Weights", shown, view),
        weight_table("Weights that other modules read too", tied, view),
        _shared_nodes(found, view),
        [view.style.strong(module_sentence(found))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def module_sentence(found: ModuleInspection) -> str:
    """The module in one line."""
    parts = (
        words.plural(found.nodes, "node"),
        words.plural(found.parameters, "parameter"),
        words.plural(len(found.inputs), "input"),
        words.plural(len(found.outputs), "output"),
    )
    return f"{module_name(found.path)}: {', '.join(parts)}"


def _facts(found: ModuleInspection, view: View) -> list[str]:
    facts = {
        "model": words.visible(found.model),
        "path": module_name(found.path),
        "class": words.name(found.kind or "unknown", 100),
        "parameters": words.count(found.parameters),
        "nodes": f"{words.count(found.nodes)}, and {words.plural(found.constants, 'Constant')} apart",
        "nodes by module": coverage_line(found.coverage),
    }
    if found.calls:
        facts["called"] = f"{len(found.calls)}×: {', '.join(map(words.name, found.calls))}"
    return titled(words.visible(found.tag), facts, view)


def _is_shared(modules: tuple[str, ...], path: str) -> bool:
    return path != "" and any(module != path and not module.startswith(path + ".") for module in modules)


def _shared_nodes(found: ModuleInspection, view: View) -> list[str]:
    if not found.shared_nodes:
        return []
    names = found.shared_nodes if view.verbose else found.shared_nodes[:5]
    more = f" and {len(found.shared_nodes) - len(names)} more" if len(names) < len(found.shared_nodes) else ""
    listed = "  " + ", ".join(map(words.name, names)) + more
    return [view.style.strong("Nodes shared with other modules, which own them"), listed]
