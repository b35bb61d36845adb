"""The data of the graph section: both graphs with types, rewrites and costs; and the library that lays them out."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any

import msgspec
from msgspec.structs import replace

from reporting.sample_analysis import sample_analysis
from reporting.sample_profile import sample_profile
from reporting.sample_run import sample_run
from sardonyx.records.analysis import Form, OperationCosts
from sardonyx.records.bench import ProfiledModel
from sardonyx.records.run import Wiring
from sardonyx.reporting.module_contents import nodes_of
from sardonyx.reporting.page import VENDORED, graph, render_page
from sardonyx.reporting.run_bundle import RunBundle

RUN = sample_run()
ASSETS = resources.files("sardonyx.reporting.page") / "assets"
DAGRE = "3152d214941a5df3a3d4c079dfa338c3cd7a6c0d4c1b4c3a2fdb6bba6f6facf9"  # dist/dagre.min.js of @dagrejs/dagre 3.1.1


def _typed(wiring: Wiring | None) -> Wiring:
    """The wiring with a type for every second edge."""
    assert wiring is not None
    types = ("float[batch,4]", "int64[]")
    return replace(wiring, types=types, edge_types=tuple(at % 2 - 1 for at in range(len(wiring.edges))))


def _texts(table: dict[str, Any]) -> list[str]:
    texts: list[str] = []
    for keep, rest in zip(table["shared"], table["rest"], strict=True):
        texts.append((texts[-1] if texts else "")[:keep] + rest)
    return texts


def _edges(side: dict[str, Any]) -> list[tuple[int, int, int]]:
    ends = [node for node, degree in enumerate(side["degrees"]) for _ in range(degree)]
    return [(to - back, to, kind) for to, back, kind in zip(ends, side["back"], side["types"], strict=True)]


def test_nodes_edges_and_types_of_both_graphs_read_back() -> None:
    before, after = _typed(RUN.wiring_before), _typed(RUN.wiring_after)
    data = graph.graph_data(RunBundle("some", RUN), before, after)
    strings = _texts(data["strings"])
    for side, wiring in (("before", before), ("after", after)):
        columns = data[side]
        assert tuple(strings[at] for at in columns["names"]) == wiring.names
        assert tuple(data["operators"][at] for at in columns["ops"]) == wiring.ops
        assert [strings[columns["modules"][at]] for at in columns["owners"]] == [
            wiring.modules[at] for at in wiring.owners
        ]
        assert sorted(_edges(columns)) == sorted(
            (*edge, kind) for edge, kind in zip(wiring.edges, wiring.edge_types, strict=True)
        )
        assert {strings[name]: tuple(nodes) for name, _kind, nodes in columns["inputs"]} == wiring.inputs
        assert {strings[name]: node for name, _kind, node in columns["outputs"]} == wiring.outputs


def test_removed_and_new_nodes_name_their_rewrite() -> None:
    assert RUN.wiring_before is not None
    assert RUN.wiring_after is not None
    data = graph.graph_data(RunBundle("some", RUN), RUN.wiring_before, RUN.wiring_after)
    for side, wiring, other in (
        ("before", RUN.wiring_before, RUN.wiring_after),
        ("after", RUN.wiring_after, RUN.wiring_before),
    ):
        changed = dict(data[side]["changed"])
        assert {(wiring.names[at], wiring.ops[at]) for at in changed} == nodes_of(wiring) - nodes_of(other)
        for at, rewrite in changed.items():
            event = RUN.events[rewrite]
            assert wiring.names[at] in {node.name for node in (event.before if side == "before" else event.after)}
            assert data["passes"][data["pass_of"][rewrite]] == event.pass_name


def test_only_recorded_costs_can_be_chosen() -> None:
    alone = graph.section(RunBundle("some", RUN))
    assert [value in alone.html for value in ('"pass"', '"time"', '"flops"')] == [True, False, False]
    assert not {"time", "flops", "bytes"} & alone.data["before"].keys()
    bundle = _measured()
    both = graph.section(bundle)
    assert all(value in both.html for value in ('"pass"', '"time"', '"flops"', '"bytes"'))
    assert both.data["before"]["flops"][0] == 7
    assert both.data["after"]["bytes"][0] == 9
    assert any(both.data["before"]["time"])


def test_a_kernel_of_several_nodes_is_divided_among_them() -> None:
    profiled = _measured().profiled
    assert profiled is not None
    columns = graph.section(_measured()).data["before"]
    known = {name for kernel in profiled[0].kernels for name in kernel.nodes}
    assert RUN.wiring_before is not None
    times = dict(zip(RUN.wiring_before.names, columns["time"], strict=True))
    wanted = sum(kernel.milliseconds for kernel in profiled[0].kernels if set(kernel.nodes) & times.keys())
    assert sum(times[name] for name in known & times.keys()) == round(wanted, 3)


def _measured() -> RunBundle:
    """The run with a profile and an analysis of its nodes."""
    profile, analysis = sample_profile(), sample_analysis()
    sides = ((RUN.wiring_before, "model.onnx"), (RUN.wiring_after, "small.onnx"))
    models: list[ProfiledModel] = []
    forms: list[Form] = []
    for (wiring, path), model, form in zip(sides, profile.models, analysis.forms, strict=False):
        assert wiring is not None
        first, second, *others = wiring.names
        kernel = replace(model.kernels[0], nodes=(first, second), milliseconds=3.0)
        costs = OperationCosts((first, *others), (7,) * (1 + len(others)), (9,) * (1 + len(others)))
        models.append(replace(model, path=path, label=path, kernels=(kernel,)))
        forms.append(replace(form, name=path, operations=costs))
    profile = replace(profile, models=tuple(models))
    return RunBundle("some", RUN, profile=profile, analysis=replace(analysis, forms=tuple(forms)))


def test_a_run_without_graphs_says_so() -> None:
    made = graph.section(RunBundle("some", replace(RUN, wiring_before=None)))
    assert "has no graph" in made.html
    assert made.data is None


def test_ten_thousand_nodes_take_less_than_two_megabytes() -> None:
    size = 10_000
    modules = tuple(f"model.layers.{at}.attention.self" for at in range(size // 10))
    names = tuple(f"/model/layers.{at // 10}/attention/self/Operator_{at}" for at in range(size))
    edges = tuple((max(at - step, 0), at) for at in range(1, size) for step in (1, 7))
    wiring = Wiring(
        modules, names, ("MatMul", "Add") * (size // 2), tuple(at // 10 for at in range(size)), edges, {}, {},
        ("float[batch,sequence,768]",), (0,) * len(edges),
    )  # fmt: skip
    other = replace(wiring, ops=("Gemm",) * size)
    assert len(msgspec.json.encode(graph.graph_data(RunBundle("some", RUN), wiring, other))) < 2_000_000


def test_the_library_is_the_published_file_and_comes_with_its_licence() -> None:
    code = (ASSETS / VENDORED).read_bytes()
    licence = (ASSETS / f"{VENDORED}.LEGAL.txt").read_text("utf-8")
    assert hashlib.sha256(code).hexdigest() == DAGRE
    assert "Copyright (c) 2012-2014 Chris Pettitt" in licence
    assert "Permission is hereby granted, free of charge" in licence
    page = render_page([RunBundle("some", RUN)])
    assert licence in page
    assert "sourceMappingURL" not in page
