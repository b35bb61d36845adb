"""An Export as text: what was exported, on which inputs, how its nodes got their modules, and the proof."""

from __future__ import annotations

from sardonyx.records.export import ExampleInput, Export
from sardonyx.reporting import formatting
from sardonyx.reporting.formatting import Style, plural
from sardonyx.reporting.inspection import coverage_line, root_table, titled, weight_table
from sardonyx.reporting.name_groups import grouped, short_lines, short_names
from sardonyx.reporting.options import View
from sardonyx.reporting.run import closing_sentence
from sardonyx.reporting.table import Line, table, text_column
from sardonyx.reporting.verdict import proof, verdict_lines

ROOTS_SHOWN = 10
UNREACHED_SHOWN = 8


def render_export(made: Export, view: View | None = None) -> str:
    """The whole answer of `export`; its last line is the sentence."""
    view = view or View()
    blocks = [
        _facts(made, view),
        _inputs(made, view),
        [f"  {formatting.one_line(note)}" for note in short_lines(made.notes)],
        [unreached_line(made)] if made.unreached else [],
        weight_table("Weights of several modules", made.tied, view),
        root_table(made.root_nodes if view.verbose else made.root_nodes[:ROOTS_SHOWN], view),
        verdict_lines(made.verdict, view.style, verbose=view.verbose),
        [] if made.optimized is None else [f"optimized: {closing_sentence(made.optimized)}"],
        [export_sentence(made, view.style)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def export_sentence(made: Export, style: Style | None = None) -> str:
    """What happened, in one line."""
    style = style or Style()
    total = made.coverage.direct + made.coverage.inherited + made.coverage.root
    known = made.coverage.direct + made.coverage.inherited
    share = "all" if known == total else f"{100 * known / total:.1f} %"
    clauses = [
        plural(made.counts.nodes, "node"),
        f"{share} of them placed in {plural(made.modules, 'module')}",
        f"PyTorch and ONNX {proof(made.verdict)}" if made.verdict else "not verified",
    ]
    where = f" → {formatting.visible(made.result.path)}" if made.result.path else ""
    return style.strong(", ".join(clauses) + where)


def unreached_line(made: Export) -> str:
    """Which modules the export does not hold because the example inputs never reach them."""
    shown = [formatting.name(path) for path in made.unreached[:UNREACHED_SHOWN]]
    rest = f" and {len(made.unreached) - len(shown)} more" if len(made.unreached) > len(shown) else ""
    return f"never reached by these inputs, and not in the file: {', '.join(shown)}{rest}"


def _facts(made: Export, view: View) -> list[str]:
    facts = {
        "class": formatting.name(made.module.class_name, 100),
        "size": f"{plural(made.module.modules, 'module')}, {plural(made.module.parameters, 'parameter')}",
        "nodes": f"{formatting.count(made.counts.nodes)}, and {plural(made.counts.constants, 'Constant')} apart",
        "nodes by module": coverage_line(made.coverage),
    }
    if view.verbose:
        spent = ", ".join(
            f"{formatting.name(phase)} {formatting.seconds(time)}" for phase, time in made.seconds.items()
        )
        facts |= {"time": spent, "weights": f"sha256 {made.module.sha256}", "file": f"sha256 {made.result.sha256}"}
    return titled(formatting.visible(made.module.label), facts, view)


def _inputs(made: Export, view: View) -> list[str]:
    columns = (text_column("--input"), text_column("dynamic"))
    found = grouped(made.inputs, lambda each: each.name, _sizes)
    lines = [Line((f"{label}={dtype}", dims)) for label, (each, *_) in found for dtype, dims in [_sizes(each)]]
    outputs = ", ".join(short_names(made.outputs))
    return [view.style.strong("Example inputs"), *table(columns, lines, view.style), f"  outputs: {outputs}"]


def _sizes(each: ExampleInput) -> tuple[str, str]:
    """What is shown of an example input besides its name."""
    dims = ", ".join(f"{axis}={formatting.name(dim)}" for axis, dim in each.dynamic.items())
    return formatting.visible(str(each).removeprefix(f"{each.name}=")), dims
