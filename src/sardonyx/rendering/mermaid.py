"""The graph of a module as Mermaid text, which GitHub and others draw where it stands in Markdown.

Names from a model are hostile: whatever could end a label, begin a comment, a link or a tag, or close the fence around
the text is written as the number of its character, which Mermaid shows as that character and as nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.record import Run
from sardonyx.rendering import words
from sardonyx.rendering.drawing import LONGEST, Label
from sardonyx.rendering.insides import Inside
from sardonyx.rendering.module_drawings import labelled, module_sides

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
    return inside_mermaid(inside, labelled(inside, others, "made" if after else "gone"))


def inside_mermaid(inside: Inside, labels: Sequence[Label]) -> str:
    """A module from inside, with these labels for its parts."""
    if max(len(labels), len(inside.edges)) > MOST:
        boxes = words.plural(len(labels), "box", "boxes")
        return _sentence(f"{inside.path or '(model)'}: {boxes}, too many to be read as one drawing")
    return "\n".join(("flowchart TD", *_lines(inside, labels))) + "\n"


def _lines(inside: Inside, labels: Sequence[Label]) -> Iterator[str]:
    for at, label in enumerate(labels):
        start, end = _SHAPES.get(label.kind, ('["', '"]'))
        text = f"{quoted(words.name(label.text, LONGEST))}{_SAID.get(label.kind, '')}"
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
    return "".join(char if char in _HARMLESS or char.isalnum() else f"#{ord(char)};" for char in words.visible(text))


def _sentence(text: str) -> str:
    return f'flowchart TD\n  n0["{quoted(text)}"]\n'
