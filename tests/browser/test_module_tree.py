"""The module tree in the page's script, on random trees: every module can be searched, and is shown and summed once."""

from __future__ import annotations

import json
import random
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.run import ModuleCount
from sardonyx.reporting.page.modules import island, module_tree
from sardonyx.reporting.run_bundle import RunBundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = resources.files("sardonyx.reporting.page") / "assets"
SCRIPTS = "\n".join((FOLDER / name).read_text("utf-8") for name in ("strings.js", "module_tree.js"))
TREES = 40

# The properties of one tree; returns the first one that fails.
HOLDS = """
(data) => {
  const tree = new ModuleTree(data), whole = tree.rows.flatMap((row) => row.members);
  const sum = (numbers) => numbers.reduce((all, each) => all + each, 0);
  for (const column of tree.columns)
    if (tree.totals[column][0] !== sum(tree.own[column])) return `sum of ${column}`;
  const fresh = () => new ModuleView(tree, 1);
  const seen = (view) => view.lines().flatMap((line) => view.members(line));
  for (const one of [false, true]) {
    const view = fresh();
    view.partAll = one;
    view.openTo(Infinity);
    if (seen(view).sort().join() !== whole.slice().sort().join()) return `all open, one by one ${one}`;
    if (one && view.lines().some((line) => line.count > 1)) return "still folded";
    for (const line of view.lines()) {
      const kids = view.isOpen(line) ? view.children(line) : [];
      const own = sum(view.members(line).map((member) => tree.own.nodes_before[member]));
      const below = sum(kids.map((kid) => view.value(kid, "nodes_before")));
      if (kids.length && view.value(line, "nodes_before") !== own + below) return "children do not add up";
    }
  }
  for (const [at, path] of tree.paths.entries()) {
    const view = fresh(), line = view.reveal(at);
    if (!view.members(line).includes(tree.lined(at))) return `${path} is not in its line`;
    if (!view.lines().some((each) => each.key === line.key)) return `${path} is not seen`;
    if (path && !view.search(path)) return `${path} is not found`;
    if (path && !seen(view).includes(tree.lined(at))) return `${path} is found and not shown`;
    const parted = fresh();
    parted.partAll = true;
    if (parted.members(parted.reveal(at)).join() !== String(tree.lined(at))) return `${path} alone is not in its line`;
  }
  const view = fresh();
  const before = JSON.stringify(view.lines().map((line) => line.key));
  view.search(tree.names.at(-1) || "x");
  view.search("");
  if (JSON.stringify(view.lines().map((line) => line.key)) !== before) return "a search changes the tree";
  for (const down of [true, false]) {
    view.openTo(Infinity);
    view.sorting = { column: "nodes_after", down };
    for (const line of view.lines()) {
      const kids = view.children(line).map((kid) => view.value(kid, "nodes_after"));
      if (kids.some((each, at) => at && (down ? kids[at - 1] < each : kids[at - 1] > each))) return "not sorted";
    }
    if (seen(view).length !== whole.length) return "sorting loses lines";
  }
  return "";
}
"""


def _random_tree(seed: int) -> dict[str, Any]:
    """A tree of equal and nearly equal layers, containers of one module, and modules without nodes."""
    generator = random.Random(seed)
    modules: dict[str, ModuleCount] = {}

    def add(path: str) -> None:
        before, after = generator.randrange(3), generator.randrange(3)
        kind = generator.choice(("", "/Net/Block", "/Net/Norm"))
        modules[path] = ModuleCount(path, kind, before, after, before * 10, before * 40, after * 40)

    inner = [
        f"part.{name}" if generator.random() < 0.4 else name
        for name in generator.sample("abcd", generator.randrange(1, 4))
    ]
    for layer in range(generator.randrange(1, 7)):
        state = generator.getstate()
        for name in inner:
            for copy in range(generator.randrange(1, 4)):
                add(f"body.layer.{layer}.{name}.{copy}")
        if generator.random() < 0.7:
            generator.setstate(state)  # the next layer is equal to this one
    for path in ("", "head", "head.0", "body")[: generator.randrange(5)]:
        add(path)
    run = replace(sample_run(), modules=tuple(modules.values()), passes=())
    return island(module_tree(RunBundle("m", run)), run)


@pytest.fixture(scope="module")
def trees() -> list[dict[str, Any]]:
    return [_random_tree(seed) for seed in range(TREES)]


def test_every_module_can_be_searched_and_is_shown_and_summed_once(
    browser: Browser, trees: list[dict[str, Any]]
) -> None:
    assert any(copies > 1 for tree in trees for _depth, _label, copies, _members in tree["rows"])
    page = browser.new_page()
    try:
        results = page.evaluate(f"(trees) => {{ {SCRIPTS}\n return trees.map({HOLDS}); }}", trees)
    finally:
        page.close()
    assert {seed: wrong for seed, wrong in enumerate(results) if wrong} == {}, json.dumps(
        next((trees[seed] for seed, wrong in enumerate(results) if wrong), None)
    )
