"""The graphs and the attention blocks on the page.

The data of the graphs is in columns: a graph of ten thousand nodes takes less than half a megabyte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from sardonyx.records.analysis import Form
from sardonyx.records.bench import ProfiledModel
from sardonyx.records.run import Wiring
from sardonyx.reporting import formatting as fmt
from sardonyx.reporting import run
from sardonyx.reporting.module_contents import nodes_of
from sardonyx.reporting.page.devices import device_data
from sardonyx.reporting.page.section import Section, Strings, rendered
from sardonyx.reporting.plots.charts import timeline
from sardonyx.reporting.run import SiteGroup
from sardonyx.reporting.run_bundle import RunBundle


class Share(Struct, frozen=True):
    """A time or an amount of memory of attention blocks, and what it is a part of."""

    amount: float
    whole: float

    @property
    def share(self) -> float:
        """The share, 0 to 1."""
        return self.amount / self.whole if self.whole else 0.0


class AttentionRow(Struct, frozen=True):
    """A group of blocks with its costs before and after: empty if not measured, None if unknown."""

    group: SiteGroup
    time: tuple[Share | None, ...]  # in kernels that run its nodes
    within: tuple[Share | None, ...]  # in kernels that its modules own themselves
    moved: tuple[Share | None, ...]  # bytes that its modules read and write
    alive: tuple[Share | None, ...]  # most bytes of activations alive while one of their operations runs

    @classmethod
    def of(cls, group: SiteGroup, bundle: RunBundle) -> AttentionRow:
        """Return the costs of a group."""
        modules = {module for module in group.modules if module}  # which of the model's own nodes are attention?
        sites = ([site.before for site in group.sites], [site.after for site in group.sites])
        named = [{node for form in forms if form is not None for node in form.nodes} for forms in sites]
        time: list[Share | None] = []
        within: list[Share | None] = []
        for nodes, model in zip(named, bundle.profiled or (), strict=False):
            running = [kernel.milliseconds for kernel in model.kernels if not nodes.isdisjoint(kernel.nodes)]
            time.append(Share(sum(running), model.kernel_ms) if running else None)
            own = [module.self_ms for module in model.modules if module.path in modules and module.kernels]
            within.append(Share(sum(own), model.kernel_ms) if own else None)
        moved: list[Share | None] = []
        alive: list[Share | None] = []
        for form in bundle.forms or ():
            costs = [module for module in form.modules if module.path in modules]
            moved.append(Share(sum(each.bytes_moved for each in costs), form.work.bytes_moved) if costs else None)
            alive.append(Share(max(each.peak for each in costs), form.memory.peak.bytes) if costs else None)
        return cls(group, tuple(time), tuple(within), tuple(moved), tuple(alive))


def attention_section(bundle: RunBundle) -> Section:
    """Return the attention blocks and the memory timeline."""
    sites, memory = bundle.run.attention, None
    rows = [AttentionRow.of(group, bundle) for group in run.groups(sites)]
    if bundle.forms is not None:
        forms = dict(zip(("before", "after"), bundle.forms, strict=True))
        picture = timeline({label: form.memory.timeline for label, form in forms.items()}, bundle.label).inline()
        memory = {"picture": picture, "forms": forms.items(), "sizes": _sizes(bundle, "=")}
    html = rendered(
        "attention",
        figures=run,
        sentence=run.sentence(sites),
        rows=rows,
        total=AttentionRow.of(SiteGroup("all", "", sites), bundle) if len(rows) > 1 else None,
        timed=bundle.profiled is not None,
        weighed=bundle.forms is not None,
        memory=memory,
    )
    return Section("attention", "Attention and memory", html)


def _sizes(bundle: RunBundle, equals: str) -> str:
    """Return the sizes of the dynamic dimensions for which the costs hold."""
    sizes = bundle.analysis.sizes if bundle.analysis is not None else {}
    return ", ".join(f"{fmt.name(name)}{equals}{fmt.count(size)}" for name, size in sizes.items())


DIGITS = 4  # of milliseconds


def section(bundle: RunBundle) -> Section:
    """Return the controls and the data of both graphs, or a sentence if the Run has none."""
    before, after = bundle.run.wiring_before, bundle.run.wiring_after
    if before is None or after is None:
        return Section("graph", "Graph", rendered("graph", known=False, colors=[], devices=[], sizes=""))
    colors = [("none", "Kind"), ("pass", "Pass")]
    colors += [("time", "Time")] if bundle.profiled else []
    forms = bundle.forms
    if forms is not None and all(form.operations is not None for form in forms):
        colors += [("flops", "FLOPs"), ("bytes", "Bytes moved")]
    shown = {"colors": colors, "devices": list(bundle.devices), "sizes": _sizes(bundle, " = ")}
    markup = rendered("graph", known=True, **shown)
    return Section("graph", "Graph", markup, graph_data(bundle, before, after))


def graph_data(bundle: RunBundle, before: Wiring, after: Wiring) -> dict[str, Any]:
    """Return both graphs with tables of their texts, the rewrites of their nodes, and what is known of their costs."""
    read = (names for wiring in (before, after) for names in (*wiring.operands, *wiring.results))
    named = (names for w in (before, after) for names in (w.names, w.modules, w.inputs, w.outputs))
    strings = Strings(text for names in (*read, *named) for text in names)
    operators = list(dict.fromkeys((*before.ops, *after.ops)))
    types = list(dict.fromkeys((*before.types, *after.types)))
    passes = list(dict.fromkeys(event.pass_name for event in bundle.run.events))
    pass_at = {name: place for place, name in enumerate(passes)}
    removed_by = {node.name: at for at, event in enumerate(bundle.run.events) for node in event.before}
    created_by = {node.name: at for at, event in enumerate(bundle.run.events) for node in event.after}
    profiled, forms = bundle.profiled or (None, None), bundle.forms or (None, None)
    sides = zip((before, after), (after, before), (removed_by, created_by), profiled, forms, strict=True)
    columns = [
        _graph(wiring, strings, operators, types)
        | {"changed": _changed(wiring, other, rewrites)}
        | _costs(wiring, profile, form)
        | _details(wiring, strings, types)
        for wiring, other, rewrites, profile, form in sides
    ]
    devices, placed = device_data(bundle.devices, before, after)
    return {
        "strings": strings.data(),
        "operators": operators,
        "types": types,
        "passes": passes,
        "pass_of": [pass_at[event.pass_name] for event in bundle.run.events],
        **devices,
        "before": columns[0] | placed[0],
        "after": columns[1] | placed[1],
    }


def _graph(wiring: Wiring, strings: Strings, operators: Sequence[str], types: Sequence[str]) -> dict[str, Any]:
    """Return nodes and edges: for each node the number of its producers, then how far before it each of them is."""
    operator_at = {text: place for place, text in enumerate(operators)}
    type_at = {text: place for place, text in enumerate(types)}
    shared = [type_at[text] for text in wiring.types]
    known = wiring.edge_types or (-1,) * len(wiring.edges)
    edges = sorted(zip(wiring.edges, known, strict=True), key=lambda edge: edge[0][1])
    degrees = Counter(consumer for _producer, consumer in wiring.edges)
    ends = (
        zip(wiring.inputs.items(), wiring.input_types or (-1,) * len(wiring.inputs), strict=True),
        zip(wiring.outputs.items(), wiring.output_types or (-1,) * len(wiring.outputs), strict=True),
    )
    return {
        "names": [strings.at[name] for name in wiring.names],
        "ops": [operator_at[op] for op in wiring.ops],
        "modules": [strings.at[path] for path in wiring.modules],
        "owners": wiring.owners,
        "degrees": [degrees[node] for node in range(len(wiring.names))],
        "back": [consumer - producer for (producer, consumer), _type in edges],
        "types": [_typed(shared, place) for _edge, place in edges],
        "inputs": [[strings.at[name], _typed(shared, place), nodes] for (name, nodes), place in ends[0]],
        "outputs": [[strings.at[name], _typed(shared, place), node] for (name, node), place in ends[1]],
    }


def _details(wiring: Wiring, strings: Strings, types: Sequence[str]) -> dict[str, Any]:
    if not wiring.operands:
        return {}
    type_at = {text: place for place, text in enumerate(types)}
    return {
        "attributes": [list(each.items()) for each in wiring.attributes],
        "operands": [[strings.at[name] for name in names] for names in wiring.operands],
        "results": [[strings.at[name] for name in names] for names in wiring.results],
        "value_types": [[strings.at[name], type_at[wiring.types[at]]] for name, at in wiring.value_types.items()],
        "weights": [
            [strings.at[name], each.type, each.low, each.high, each.histogram, each.not_finite]
            for name, each in wiring.weights.items()
        ],
    }


def _typed(shared: Sequence[int], place: int) -> int:
    return shared[place] if place >= 0 else -1


def _changed(wiring: Wiring, other: Wiring, rewrites: Mapping[str, int]) -> list[list[int]]:
    """Return the nodes that only this graph has, each with the rewrite that removed or created it, -1 if not known."""
    kept = nodes_of(other)
    nodes = enumerate(zip(wiring.names, wiring.ops, strict=True))
    return [[at, rewrites.get(name, -1)] for at, (name, op) in nodes if (name, op) not in kept]


def _costs(wiring: Wiring, profile: ProfiledModel | None, form: Form | None) -> dict[str, Any]:
    """Return milliseconds, arithmetic and bytes moved of the nodes, as far as they were recorded."""
    costs: dict[str, Mapping[str, float]] = {}
    if profile is not None:
        costs["time"] = _times(profile)
    if form is not None and form.operations is not None:
        operations = form.operations
        costs["flops"] = dict(zip(operations.names, operations.flops, strict=True))
        costs["bytes"] = dict(zip(operations.names, operations.bytes_moved, strict=True))
    return {kind: [values.get(name, 0) for name in wiring.names] for kind, values in costs.items()}


def _times(profile: ProfiledModel) -> dict[str, float]:
    """Return the time of each node; that of a kernel which executes several nodes is divided evenly among them."""
    times: dict[str, float] = {}
    for kernel in profile.kernels:
        for name in kernel.nodes:
            times[name] = times.get(name, 0.0) + kernel.milliseconds / len(kernel.nodes)
    return {name: round(time, DIGITS) for name, time in times.items()}
