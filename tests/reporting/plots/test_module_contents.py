"""Graphs of modules: every node is drawn once in its module, and every edge in each module that it touches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.provenance import lineage
from sardonyx.records.run import Wiring
from sardonyx.reporting.module_contents import MAX_DEPTH, ModuleContents, module_contents

WIRING = Wiring(
    modules=("", "encoder.layer.0.attn", "encoder.layer.1.attn", "head"),
    names=("cast", "q0", "s0", "q1", "s1", "sum", "out"),
    ops=("Cast", "MatMul", "Softmax", "MatMul", "Softmax", "Add", "Gemm"),
    owners=(0, 1, 1, 2, 2, 0, 3),
    edges=((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (5, 6)),
    inputs={"ids": (0,)},
    outputs={"logits": 6, "constant": -1},
)


def all_contents(wiring: Wiring) -> dict[str, ModuleContents]:
    paths = dict.fromkeys(above for path in wiring.modules for above in lineage(path))
    found = {path: module_contents(wiring, path) for path in paths}
    return {path: inside for path, inside in found.items() if inside is not None}


def texts(inside: ModuleContents) -> list[str]:
    return [part.text for part in inside.parts]


def edges(inside: ModuleContents) -> set[tuple[str, str]]:
    return {(inside.parts[one].text, inside.parts[other].text) for one, other in inside.edges}


def test_a_module_shows_its_own_nodes_the_modules_below_and_its_neighbours() -> None:
    contents = all_contents(WIRING)
    assert texts(contents[""]) == ["Cast", "encoder.layer · 4", "Add", "head · 1", "input ids", "output logits"]
    assert edges(contents[""]) == {
        ("input ids", "Cast"),
        ("Cast", "encoder.layer · 4"),
        ("Cast", "Add"),
        ("encoder.layer · 4", "Add"),
        ("Add", "head · 1"),
        ("head · 1", "output logits"),
    }
    assert edges(contents["encoder.layer"]) == {
        ("from Cast", "0.attn · 2"),
        ("0.attn · 2", "1.attn · 2"),
        ("1.attn · 2", "to Add"),
    }
    assert edges(contents["encoder.layer.1.attn"]) == {
        ("from 0.attn", "MatMul"),
        ("MatMul", "Softmax"),
        ("Softmax", "to Add"),
    }


def test_a_container_of_one_module_is_named_with_it_and_can_be_opened() -> None:
    contents = all_contents(WIRING)
    assert texts(contents["encoder"])[0] == "layer · 4"
    paths = {part.text: part.path for part in contents[""].parts}
    assert paths["encoder.layer · 4"] == "encoder.layer"


def test_every_node_is_drawn_once_and_counted_in_all_modules_above() -> None:
    run = sample_run()
    assert run.wiring_before is not None
    contents = all_contents(run.wiring_before)
    names = [part.name for inside in contents.values() for part in inside.parts if part.kind == "op"]
    assert sorted(names) == sorted(run.wiring_before.names)
    below = [part for part in contents["encoder.layer.3"].parts if part.kind == "module"]
    assert [part.text for part in below] == ["attention · 16", "output · 8"]


PATHS = st.lists(st.sampled_from(["", "a", "a.b", "a.b.c", "a.d", "e", "e.0", "e.1.x"]), min_size=1, max_size=6)


@st.composite
def wirings(draw: st.DrawFn) -> Wiring:
    modules = tuple(dict.fromkeys(draw(PATHS)))
    owners = draw(st.lists(st.integers(0, len(modules) - 1), min_size=2, max_size=12))
    nodes = st.integers(0, len(owners) - 1)
    pairs = draw(st.lists(st.tuples(nodes, nodes).filter(lambda pair: pair[0] != pair[1]), max_size=20, unique=True))
    names = tuple(f"n{at}" for at in range(len(owners)))
    return Wiring(modules, names, names, tuple(owners), tuple(pairs), {"x": (0,)}, {"y": len(owners) - 1})


@given(wirings())
def test_an_edge_between_two_nodes_of_a_module_is_drawn_in_it(wiring: Wiring) -> None:
    contents = all_contents(wiring)
    for producer, reader in wiring.edges:
        one, other = (wiring.modules[wiring.owners[node]] for node in (producer, reader))
        if one == other:
            assert (wiring.names[producer], wiring.names[reader]) in edges(contents[one])
        else:
            assert any(wiring.names[producer] == edge[0] for edge in edges(contents[one]))
            assert any(wiring.names[reader] == edge[1] for edge in edges(contents[other]))


@given(wirings())
def test_counts_of_modules_add_up(wiring: Wiring) -> None:
    for inside in all_contents(wiring).values():
        nodes = sum(path == inside.path or f"{path}.".startswith(f"{inside.path}.") or not inside.path
                    for path in (wiring.modules[owner] for owner in wiring.owners))  # fmt: skip
        counted = sum(
            1 if part.kind == "op" else int(part.text.rpartition(" ")[2])
            for part in inside.parts
            if part.kind != "port"
        )
        assert counted == nodes


def test_a_path_may_have_any_depth() -> None:
    wiring = replace(WIRING, modules=("", ".".join("a" * 5000), "b", "c"))
    deepest = module_contents(wiring, ".".join("a" * MAX_DEPTH))
    assert deepest is not None
    assert texts(deepest)[:2] == ["MatMul", "Softmax"]
    assert module_contents(wiring, ".".join("a" * (MAX_DEPTH + 1))) is None


def test_a_module_that_is_called_more_than_once_is_drawn_for_each_call() -> None:
    wiring = Wiring(
        modules=("block", "block.conv1", "block.relu", "block.conv2"),
        names=("c1", "r1a", "r1b", "c2", "r2a", "r2b", "sum"),
        ops=("Conv", "Max", "Min", "Conv", "Max", "Min", "Add"),
        owners=(1, 2, 2, 3, 2, 2, 0),
        edges=((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)),
        inputs={"x": (0,)},
        outputs={"y": 6},
    )
    contents = all_contents(wiring)
    assert texts(contents["block"])[:5] == ["conv1 · 1", "relu · 2", "conv2 · 1", "relu · 2", "Add"]
    assert all(one < other for one, other in contents["block"].edges if max(one, other) < 5)
    assert {part.path for part in contents["block"].parts if part.text == "relu · 2"} == {"block.relu"}
    assert edges(contents["block.conv2"]) == {("from relu", "Conv"), ("Conv", "to relu")}
