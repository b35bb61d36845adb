"""Paths of running modules: chains of calls, and random trees of modules exported and read back node by node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from frontend.exported import Exported, exported
from sardonyx.frontend.tracing.module_tree import LiveTree, ModuleStep
from sardonyx.frontend.tracing.traced import Exporter
from sardonyx.ir import origins
from sardonyx.records import provenance as p
from sardonyx.records.run import How


def test_paths_of_chains_use_the_nearest_module_that_contains_the_called_one() -> None:
    leaf = nn.Tanh()
    a, b = nn.Sequential(leaf), nn.Sequential(leaf)
    root = nn.ModuleDict({"a": a, "b": b})
    tree = LiveTree(root)
    top = ModuleStep(root, 0)
    assert tree.path([]) == tree.path([top]) == ""
    assert tree.path([top, ModuleStep(a, 0), ModuleStep(leaf, 0)]) == "a.0"
    assert tree.path([top, ModuleStep(b, 0), ModuleStep(leaf, 1)]) == "b.0"
    assert tree.path([top, ModuleStep(a, 1), ModuleStep(leaf, 2)]) == "a@1.0"
    assert tree.path([top, ModuleStep(a, 1), ModuleStep(leaf, 3)]) == "a@1.0@1"
    assert tree.path([top, ModuleStep(a, 0), ModuleStep(leaf, 0)]) == "a.0"  # repeated, it is the same call
    assert tree.path([top, ModuleStep(a, 2), ModuleStep(b, 1), ModuleStep(leaf, 4)]) == "b@1.0"
    assert tree.hierarchy().aliases == {"b.0": "a.0"}


class Marked(nn.Module):
    """Calls its children, some of them twice, then adds a number that no other module adds."""

    def __init__(self, number: int, order: list[str]) -> None:
        super().__init__()
        self.number = float(number)
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.order:
            x = self._through(self.get_submodule(name), x)
        return x + self.number

    def _through(self, child: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if not isinstance(child, nn.ModuleList | nn.ModuleDict):
            return child(x)
        for item in child.children():
            x = self._through(item, x)
        return x


class Other(Marked):
    """Another class."""


@dataclass
class Sketch:
    """A module tree under construction, and the expected result of a run."""

    draw: st.DrawFn
    count: int = 0

    def module(self, depth: int) -> nn.Module:
        kinds = ["marked", "other"] if depth == 0 else ["marked", "other", "sequential", "list", "dict"]
        kind = self.draw(st.sampled_from(kinds))
        self.count += 1
        number = self.count
        names = self.draw(st.lists(st.sampled_from(["a", "b", "conv", "0", "layer1"]), max_size=3, unique=True))
        children = {} if depth == 0 else {name: self.module(depth - 1) for name in names}
        if kind == "sequential":
            callable_ones = [each for each in children.values() if not isinstance(each, nn.ModuleList | nn.ModuleDict)]
            return nn.Sequential(*callable_ones)
        if kind == "list":
            return nn.ModuleList(children.values())
        if kind == "dict":
            return nn.ModuleDict(children)
        order = self.draw(st.lists(st.sampled_from(list(children)), max_size=4)) if children else []
        made = (Marked if kind == "marked" else Other)(number, order)
        for name, child in children.items():
            made.add_module(name, child)
        return made


def expected(module: nn.Module, path: str, calls: Counter[str]) -> list[tuple[float, str]]:
    """The expected additions in order: the number that a module adds, and its path."""
    additions: list[tuple[float, str]] = []
    children: Any = module.named_children()
    if isinstance(module, Marked):
        children = [(name, module.get_submodule(name)) for name in module.order]
    for name, child in children:
        below = f"{path}.{name}" if path else name
        if not isinstance(child, nn.ModuleList | nn.ModuleDict):
            calls[below] += 1
            below = f"{below}@{calls[below] - 1}" if calls[below] > 1 else below
        additions += expected(child, below, calls)
    return [*additions, (module.number, path)] if isinstance(module, Marked) else additions


def ran(made: Exported) -> list[tuple[float, str]]:
    """The number of every addition in the graph, and its owner."""
    return [(_number(node), origins.owner(node)) for node in made.nodes if node.op_type == "Add"]


def _number(node: ir.Node) -> float:
    for value in node.inputs:
        while value is not None and (cast := value.producer()) is not None and cast.op_type == "CastLike":
            value = cast.inputs[0]
        constant = ir.convenience.get_const_tensor(value) if value is not None else None
        if constant is not None:
            return float(constant.numpy())
    raise AssertionError(f"{node} adds no constant")


@st.composite
def trees(draw: st.DrawFn) -> Marked:
    """A nested module, up to three levels deep, that calls at least one module."""
    sketch = Sketch(draw)
    root = Marked(0, [])
    for name in ("first", "second"):
        root.add_module(name, sketch.module(3))
        root.order += [name] * draw(st.integers(1, 2))
    root.number = float(sketch.count + 1)
    return root


def _check_owners(module: Marked, exporter: Exporter) -> None:
    made = exported(module, torch.ones(2), exporter=exporter)
    assert ran(made) == expected(module, "", Counter())
    modules = dict(module.named_modules(remove_duplicate=False))
    tags: dict[str, str] = {}
    for node in made.nodes:
        if node.op_type == "Add":
            assert origins.how(node) is How.DIRECT
        path, tag = node.metadata_props[p.MODULE_PATH], node.metadata_props[p.SOURCE_MODULE]
        assert p.module_of(origins.owner(node)) == path
        own = path  # the path of the module, or of its nearest parent that is not torch's own
        while own and type(modules[own]).__module__.startswith("torch."):
            own = own.rpartition(".")[0]
        assert tags.setdefault(tag, own) == own  # two modules never share a tag
        assert tag.rpartition("/")[2].partition(".")[0] == type(modules[own]).__name__


@settings(max_examples=25)
@given(trees())
def test_every_node_of_a_random_tree_names_the_module_that_ran_it(module: Marked) -> None:
    _check_owners(module, "torchscript")


@settings(max_examples=3)
@given(trees())
def test_every_node_of_a_random_tree_names_its_module_with_torch_export(module: Marked) -> None:
    _check_owners(module, "dynamo")


classes = st.sampled_from(["m.Net", "m.Block", "n.Block", "torch.nn.modules.linear.Linear"])
parts = st.sampled_from(["a", "b", "0", "1", "layer1"])


@given(st.dictionaries(st.lists(parts, min_size=1, max_size=4).map(".".join), classes, max_size=12), st.booleans())
def test_no_two_listed_modules_share_a_tag(below: dict[str, str], deep: bool) -> None:
    table = p.ModuleTable.of({"": "m.Net", **below}, {}, include_torch_nn=deep)
    hierarchy = p.Hierarchy((), table)
    shown = [path for path, kind in hierarchy.classes.items() if deep or not kind.startswith("torch.")]
    tags = {path: hierarchy.tag(path) for path in shown}
    assert len(set(tags.values())) == len(tags)
    assert tags[""] == "/Net"
    for path, tag in tags.items():
        above = p.nearest(path.rpartition(".")[0], shown) if path else None
        assert above is None or tag.startswith(tags[above] + "/")
