"""The graph of a module as Mermaid text, which GitHub and others draw where it stands in Markdown.

Names from a model are hostile: whatever could end a label, begin a comment, a link or a tag, or close the fence around
the text is written as the number of its character, which Mermaid shows as that character and as nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.records.module_graph import HierarchyDag
from sardonyx.records.run import Run, Wiring
from sardonyx.reporting import formatting
from sardonyx.reporting.plots.drawing import LONGEST, Label
from sardonyx.reporting.plots.module_contents import Inside, insides
from sardonyx.reporting.plots.module_drawings import labelled, module_sides

MOST = 280  # boxes or edges: Mermaid refuses a text of 50,000 characters or of 500 edges
_HARMLESS = frozenset(" _-./:,()·…")
_SHAPES = {"module": ('[["', '"]]'), "port": ('(["', '"])')}
_SAID = {"made": " (new)", "gone": " (removed)"}
_LOOKS = (
    "classDef made stroke:#0f766e,stroke-width:3px",
    "classDef gone stroke:#b45309,stroke-width:2px,stroke-dasharray:4 3",
    "classDef module stroke:#1d4ed8,stroke-width:2px",
)


def module_mermaid(run: Run, path: str, *, after: bool = True) -> str:
    """A module of a Run from inside, before or after; nodes that the other graph does not have are marked."""
    inside, others = module_sides(run, path)[after]
    if inside is None:
        return _sentence(f"{path or '(model)'}: nothing of it is left here")
    return _chart(inside, labelled(inside, others, "made" if after else "gone"))


def render_mermaid(found: HierarchyDag) -> str:
    """The first of the modules that lie in no other, from inside; "" where there is none."""
    known = insides(_wiring(found))
    for tag in found.tops():
        inside = known.get(found.modules[tag].path)
        if inside is not None:
            return _chart(inside, [Label(part.text, part.kind) for part in inside.parts])
    return ""


def _wiring(found: HierarchyDag) -> Wiring:
    """The operations by the modules they are shown in; what the top takes and gives are inputs and outputs."""
    at = {name: place for place, name in enumerate(found.operations)}
    homes = found.homes()
    modules = {tag: place for place, tag in enumerate(found.modules)}
    tops = [found.modules[tag] for tag in found.tops()]
    taken = {value for top in tops for value in top.inputs}
    given = {value for top in tops for value in top.outputs}
    inputs: dict[str, tuple[int, ...]] = {}
    for name, operation in found.operations.items():
        for value in dict.fromkeys(operation.inputs):
            if value in taken:
                inputs[value] = (*inputs.get(value, ()), at[name])
    return Wiring(
        modules=tuple(module.path for module in found.modules.values()),
        names=tuple(found.operations),
        ops=tuple(each.op_type for each in found.operations.values()),
        owners=tuple(modules[homes[name]] for name in found.operations),
        edges=tuple((at[one], at[other]) for one, other in found.edges()),
        inputs=inputs,
        outputs={value: at[maker] for value, (maker, _) in found.makers().items() if value in given},
    )


def _chart(inside: Inside, labels: Sequence[Label]) -> str:
    if max(len(labels), len(inside.edges)) > MOST:
        boxes = formatting.plural(len(labels), "box", "boxes")
        return _sentence(f"{inside.path or '(model)'}: {boxes}, too many to be read as one drawing")
    return "\n".join(("flowchart TD", *_lines(inside, labels))) + "\n"


def _lines(inside: Inside, labels: Sequence[Label]) -> Iterator[str]:
    for at, label in enumerate(labels):
        start, end = _SHAPES.get(label.kind, ('["', '"]'))
        text = f"{quoted(formatting.name(label.text, LONGEST))}{_SAID.get(label.kind, '')}"
        yield f"  n{at}{start}{text}{end}"
    for maker, reader in inside.edges:
        yield f"  n{maker} --> n{reader}"
    for look in _LOOKS:
        kind = look.split()[1]
        members = [f"n{at}" for at, label in enumerate(labels) if label.kind == kind]
        if members:
            yield f"  {look}"
            yield f"  class {','.join(members)} {kind}"


def quoted(text: str) -> str:
    """Any name, fit to stand between the quotes of a label."""
    return "".join(
        char if char in _HARMLESS or char.isalnum() else f"#{ord(char)};" for char in formatting.visible(text)
    )


def _sentence(text: str) -> str:
    return f'flowchart TD\n  n0["{quoted(text)}"]\n'
