"""The tree of boxes in the page's script, on random graphs: no node or edge is lost, no box has very many others."""

from __future__ import annotations

import json
import random
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import Wiring
from sardonyx.reporting.page.graph import graph_data
from sardonyx.reporting.run_bundle import RunBundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = resources.files("sardonyx.reporting.page") / "assets"
SCRIPTS = "\n".join(
    (FOLDER / name).read_text("utf-8") for name in ("core.js", "strings.js", "devices.js", "graph_data.js")
)
GRAPHS = 30

# The properties of one graph; returns the first one that fails.
HOLDS = """
(data) => {
  const graph = new Graph(data.before, { ...data, strings: readStrings(data.strings) });
  const all = [];
  const visit = (box) => { all.push(box); (box.children ?? []).forEach(visit); };
  visit(graph.root);
  const nodes = all.filter(({ kind }) => kind === "op").map(({ node }) => node);
  if (nodes.length !== graph.names.length || new Set(nodes).size !== nodes.length) return "a node is lost or doubled";
  if (new Set(all.map(({ key }) => key)).size !== all.length) return "two boxes have one key";
  for (const box of all) {
    if (box.children && box.nodes !== graph.nodesIn(box).length) return `count of ${box.key}`;
    if (!box.children) continue;
    if (box.children.length > MOST_BOXES) return `${box.children.length} boxes in ${box.key}`;
    if (box.children.some((child) => child.parent !== box)) return `parent in ${box.key}`;
    const alone = box.children.length === 1 && box.children[0].kind === "module";
    if (box.kind === "module" && alone) return "a container of one module";
    const { boxes, edges } = graph.contents(box);
    const known = new Set(boxes);
    if (edges.some(({ from, to }) => !known.has(from) || !known.has(to) || from === to)) return "an edge to nowhere";
    const touched = new Set(edges.flatMap(({ from, to }) => [from, to]));
    for (const port of boxes.filter(({ kind }) => kind === "port")) if (!touched.has(port)) return "an idle port";
    for (const child of box.children) {
      const reads = graph.edges.some(([from, to]) => graph.contains(child, to) && !graph.contains(child, from));
      const feeds = graph.edges.some(([from, to]) => graph.contains(child, from) && !graph.contains(child, to));
      const given = graph.inputs.some((input) => input.nodes.some((node) => graph.contains(child, node)));
      const asked = graph.outputs.some((output) => output.nodes.some((node) => graph.contains(child, node)));
      if ((reads || given) !== edges.some(({ to }) => to === child)) return `inputs of ${child.key}`;
      if ((feeds || asked) !== edges.some(({ from }) => from === child)) return `outputs of ${child.key}`;
    }
    for (const end of boxes) {
      const read = edges.filter(({ from, to }) => from === end && to.kind !== "port");
      if (read.length > MOST_ENDS) return "very many consumers of one box";
    }
  }
  for (const [path, box] of graph.modules) if (!all.includes(box)) return `the module ${path} is not shown`;
  return "";
}
"""


def _random_graph(seed: int) -> dict[str, Any]:
    """A graph with modules of any depth, containers of one module, many boxes in one module and values read often."""
    generator = random.Random(seed)
    size = generator.choice((1, 5, 40, 200, 3000))
    modules = ["", *(".".join(generator.choices(("a", "b", "0", "1"), k=generator.randrange(1, 6))) for _ in range(12))]
    if seed % 3 == 0:
        modules = [f"only.{path}".rstrip(".") for path in modules]
    if seed % 4 == 0:
        modules = [*modules, *(f"layers.{at}" for at in range(size // 4))]
    modules = list(dict.fromkeys(modules))
    names = tuple(f"n{at}" for at in range(size))
    pairs = {(generator.randrange(at), at) for at in range(1, size) for _ in range(generator.randrange(3))}
    pairs |= {(0, at) for at in range(1, size) if generator.random() < 0.05}
    wiring = Wiring(
        modules=tuple(modules),
        names=names,
        ops=tuple(generator.choice(("Add", "Mul", "MatMul")) for _ in names),
        owners=tuple(generator.randrange(len(modules)) for _ in names),
        edges=tuple(pairs),
        inputs={f"x{at}": tuple({generator.randrange(size) for _ in range(3)}) for at in range(generator.randrange(9))},
        outputs={"y": size - 1, "c": -1},
    )
    return graph_data(RunBundle("some", replace(sample_run(), events=())), wiring, wiring)


# Six layers of which the last one differs: the first five are one box, on both sides.
STACK = """
(data) => {
  const strings = readStrings(data.strings);
  const forms = graphForms([data.before, data.after], strings);
  return [data.before, data.after].map((side) => {
    const graph = new Graph(side, { ...data, strings, forms });
    const labels = [];
    const visit = (box) => { if (box.kind === "group") labels.push(box.label); (box.children ?? []).forEach(visit); };
    visit(graph.root);
    return labels;
  });
}
"""


def test_equal_layers_are_one_box(browser: Browser) -> None:
    modules = ["", *(f"layers.{layer}" for layer in range(6))]
    nodes = [(f"n{layer}.{at}", op, layer + 1) for layer in range(6) for at, op in enumerate(("MatMul", "Add"))]
    nodes.append(("tail", "Relu", 6))
    names, ops, owners = zip(("head", "Exp", 0), *nodes, strict=True)
    edges = tuple((at, at + 1) for at in range(len(names) - 1))
    wiring = Wiring(tuple(modules), names, ops, owners, edges, {"x": (0,)}, {"y": len(names) - 1})
    data = graph_data(RunBundle("some", replace(sample_run(), events=())), wiring, wiring)
    page = browser.new_page()
    try:
        labels = page.evaluate(f"(data) => {{ {SCRIPTS}\n return ({STACK})(data); }}", data)
    finally:
        page.close()
    assert labels == [["0 … 4 ×5"]] * 2


@pytest.fixture(scope="module")
def graphs() -> list[dict[str, Any]]:
    return [_random_graph(seed) for seed in range(GRAPHS)]


def test_every_node_and_edge_is_in_the_tree(browser: Browser, graphs: list[dict[str, Any]]) -> None:
    page = browser.new_page()
    try:
        results = page.evaluate(f"(graphs) => {{ {SCRIPTS}\n return graphs.map({HOLDS}); }}", graphs)
    finally:
        page.close()
    wrong = {seed: result for seed, result in enumerate(results) if result}
    assert wrong == {}, json.dumps(next((graphs[seed] for seed in wrong), None))[:2000]
