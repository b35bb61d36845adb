"""A Location as a document: the first module that differs, and the share of each module in the final error."""

from __future__ import annotations

from sardonyx.records.location import DifferingModule, Location, ModuleShare
from sardonyx.reporting import formatting
from sardonyx.reporting.document import (
    Block,
    Column,
    Document,
    Facts,
    Notes,
    Row,
    Section,
    Span,
    Table,
    Text,
    Tone,
    View,
    text_column,
)

_SHOWN = 8  # rows and names without -v


def location_document(location: Location, view: View) -> Document:
    """Return the answer of `locate`."""
    most = None if view.verbose else _SHOWN
    blocks: list[Block] = []
    if location.module is not None:
        blocks.append(_first(location.module, most))
    if location.shares:
        blocks.append(Section("Share of the error, by module", (_table(location, most),)))
    notes = [f"note: {formatting.one_line(note)}" for note in location.notes]
    if location.unpaired and not location.same:
        names = _listed(location.unpaired, most)
        notes.append(f"no common border in both models, so the module around it was compared: {names}")
    return Document(
        title="Location",
        head=(Facts(location_facts(location)),),
        blocks=(*blocks, Notes(notes)),
        sentence=Span(location_sentence(location), Tone.STRONG if location.same else Tone.BAD),
    )


def location_facts(location: Location) -> dict[str, Text]:
    """Return the two models and what was compared."""
    return {
        "first": f"{formatting.name(location.first.name, 100)}, {formatting.one_line(location.first.runtime)}",
        "second": f"{formatting.name(location.second.name, 100)}, {formatting.one_line(location.second.runtime)}",
        "compared": _compared(location),
    }


def location_sentence(location: Location) -> str:
    """Return in one line where the models begin to differ."""
    second, first = formatting.one_line(location.second.name), formatting.one_line(location.first.name)
    if location.same:
        return f"no difference: the outputs of {second} match those of {first}"
    error = f"relative error of the outputs {formatting.difference(location.error)}"
    if location.module is None:
        return f"the outputs differ, and no module could be compared ({error})"
    if location.gradual:
        top = f"the largest share is {_percent(location.shares[0].share)}"
        return f"the error accumulates gradually over about {location.spread:.0f} modules, {top} ({error})"
    name = formatting.module(location.module.module)
    top = location.shares[0] if location.shares else None
    share = f" and causes {_percent(location.module.share)} of the error" if location.module.share is not None else ""
    other = ""
    if top is not None and top.module != location.module.module:
        other = f"; {formatting.module(top.module)} causes most, {_percent(top.share)}"
    return f"{name} is the first module that differs{share}{other} ({error})"


def _compared(location: Location) -> str:
    values, runs = formatting.plural(location.borders, "border value"), formatting.plural(location.runs, "run")
    inputs = formatting.one_line(location.trial)
    return f"outputs and {values}, inputs: {inputs}, {runs} in {formatting.seconds(location.seconds)}"


def _first(module: DifferingModule, most: int | None) -> Section:
    lines: list[Text] = [
        (
            Span(formatting.module(module.module), Tone.STRONG),
            Span(f"  {formatting.name(module.tag, 100)}", Tone.FAINT),
        ),
        f"'{formatting.name(module.value, 100)}' {formatting.one_line(module.reason)}",
        f"nodes: {_listed(module.nodes, most)}",
    ]
    if module.modules:
        lines.append(f"its nodes are those of {_listed(module.modules, most)}")
    return Section("First module that differs", (Notes(lines),))


def _table(location: Location, most: int | None) -> Table:
    rows = [
        Row(
            (
                _modules(share),
                _percent(share.share),
                _percent(share.alone),
                "·" if share.error is None else formatting.difference(share.error),
            )
        )
        for share in location.shares[:most]
    ]
    if most is not None and len(location.shares) > most:
        rows.append(Row((f"and {len(location.shares) - most} more (-v shows them)",)))
    return Table((text_column("module"), Column("share"), Column("alone"), Column("error of its output")), rows)


def _modules(share: ModuleShare) -> str:
    if not share.modules:
        return formatting.module(share.module)
    return f"{formatting.module(share.modules[0])} … {formatting.module(share.modules[-1])}"


def _listed(names: tuple[str, ...], most: int | None) -> str:
    shown = [formatting.name(name) or "the model" for name in names[:most]]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _percent(share: float | None) -> str:
    return "·" if share is None else f"{100 * min(max(share, 0.0), 1.0):.0f} %"
