"""The graph of a module as Mermaid text, which GitHub and others render in Markdown.

Names from a model may contain anything: characters that could end a label, start a comment, a link or a tag, or close
the code fence are written as character numbers, which Mermaid shows as the characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.records.module_graph import HierarchyDag
from sardonyx.records.run import Run, Wiring
from sardonyx.reporting import formatting
from sardonyx.reporting.plots.module_contents import ModuleContents, module_contents, module_sides

MAX_LABEL = 36  # characters of a label
MAX_ELEMENTS = 280  # boxes or edges: Mermaid refuses a text of 50,000 characters or of 500 edges
_HARMLESS = frozenset(" _-./:,()·…")
_SHAPES = {"module": ('[["', '"]]'), "port": ('(["', '"])')}
_SUFFIXES = {"made": " (new)", "gone": " (removed)"}
_STYLES = (
    "classDef made stroke:#0f766e,stroke-width:3px",
    "classDef gone stroke:#b45309,stroke-width:2px,stroke-dasharray:4 3",
    "classDef module stroke:#1d4ed8,stroke-width:2px",
)


def module_mermaid(run: Run, path: str, *, after: bool = True) -> str:
    """Return the contents of a module before or after; nodes that the other graph does not have are marked."""
    contents, others = module_sides(run, path)[after]
    if contents is None:
        return _sentence(f"{path or '(model)'}: this module does not exist here")
    new = "made" if after else "gone"
    kinds = [
        new if part.kind == "op" and (part.name, part.text) not in others else part.kind for part in contents.parts
    ]
    return _chart(contents, kinds)


def render_mermaid(dag: HierarchyDag) -> str:
    """Return the contents of the first top-level module, or "" if there is none."""
    by_path = module_contents(_wiring(dag))
    for tag in dag.tops():
        contents = by_path.get(dag.modules[tag].path)
        if contents is not None:
            return _chart(contents, [part.kind for part in contents.parts])
    return ""


def _wiring(dag: HierarchyDag) -> Wiring:
    """Return the operations by the modules they are shown in, with the inputs and outputs of the top-level modules."""
    at = {name: place for place, name in enumerate(dag.operations)}
    homes = dag.homes()
    modules = {tag: place for place, tag in enumerate(dag.modules)}
    tops = [dag.modules[tag] for tag in dag.tops()]
    inputs_of_tops = {value for top in tops for value in top.inputs}
    outputs_of_tops = {value for top in tops for value in top.outputs}
    inputs: dict[str, tuple[int, ...]] = {}
    for name, operation in dag.operations.items():
        for value in dict.fromkeys(operation.inputs):
            if value in inputs_of_tops:
                inputs[value] = (*inputs.get(value, ()), at[name])
    return Wiring(
        modules=tuple(module.path for module in dag.modules.values()),
        names=tuple(dag.operations),
        ops=tuple(operation.op_type for operation in dag.operations.values()),
        owners=tuple(modules[homes[name]] for name in dag.operations),
        edges=tuple((at[one], at[other]) for one, other in dag.edges()),
        inputs=inputs,
        outputs={value: at[producer] for value, (producer, _) in dag.producers().items() if value in outputs_of_tops},
    )


def _chart(contents: ModuleContents, kinds: Sequence[str]) -> str:
    if max(len(kinds), len(contents.edges)) > MAX_ELEMENTS:
        boxes = formatting.plural(len(kinds), "box", "boxes")
        return _sentence(f"{contents.path or '(model)'}: {boxes}, too many for one drawing")
    return "\n".join(("flowchart TD", *_lines(contents, kinds))) + "\n"


def _lines(contents: ModuleContents, kinds: Sequence[str]) -> Iterator[str]:
    for at, (part, kind) in enumerate(zip(contents.parts, kinds, strict=True)):
        start, end = _SHAPES.get(kind, ('["', '"]'))
        text = f"{quoted(formatting.name(part.text, MAX_LABEL))}{_SUFFIXES.get(kind, '')}"
        yield f"  n{at}{start}{text}{end}"
    for producer, consumer in contents.edges:
        yield f"  n{producer} --> n{consumer}"
    for style in _STYLES:
        styled = style.split()[1]
        members = [f"n{at}" for at, kind in enumerate(kinds) if kind == styled]
        if members:
            yield f"  {style}"
            yield f"  class {','.join(members)} {styled}"


def quoted(text: str) -> str:
    """Return any name, escaped for the quotes of a label."""
    return "".join(
        char if char in _HARMLESS or char.isalnum() else f"#{ord(char)};" for char in formatting.visible(text)
    )


def _sentence(text: str) -> str:
    return f'flowchart TD\n  n0["{quoted(text)}"]\n'
