// The contents of one module before and after, in its details: boxes of modules and neighbours select them.

const drawnGraphs = new WeakMap(); // by model, read on first use

/** Returns both graphs of a model, null if the run has none. */
function graphsOf(model) {
  const data = model.data("graph");
  if (!data) return null;
  if (!drawnGraphs.has(model)) {
    const strings = readStrings(data.strings);
    const tables = { ...data, strings, forms: graphForms([data.before, data.after], strings) };
    const graph = (side) => new Graph(data[side], { ...tables, times: moduleTimes(model, side) });
    drawnGraphs.set(model, { before: graph("before"), after: graph("after") });
  }
  return drawnGraphs.get(model);
}

/** Returns the time of each module by path, as in the table of modules; null if it was not measured. */
function moduleTimes(model, side) {
  const data = model.data("modules"); // a page of the graph alone has none
  if (!data) return null;
  const tree = new ModuleTree(data);
  const times = tree.totals[`ms_${side}`];
  return times ? new Map(tree.paths.map((path, at) => [path, times[at]])) : null;
}

/** Draws a module into its host. */
function drawModule(host, model, path) {
  if (!model.part("graph")) return; // of a quantization, whose record has none
  const graphs = graphsOf(model);
  if (!graphs) {
    host.replaceChildren(h("p", { class: "soft" }, "This run has no graph: optimize the model again to get one."));
    return;
  }
  const sides = Object.entries(graphs).map(([side, graph]) => ({ side, graph, box: graph.modules.get(path) }));
  const [before, after] = sides;
  const same = before.box && after.box && !before.box.changed && !after.box.changed && JSON.stringify(drawnTexts(before)) === JSON.stringify(drawnTexts(after));
  const figures = same ? [drawnSide("Before and after", before, model)] : [drawnSide("Before", before, model), drawnSide("After", after, model)];
  host.replaceChildren(
    h("div", { class: "drawings-sides" }, figures.map(({ element }) => element)),
    h("p", { class: "soft drawings-legend" }, drawingLegend(sides)),
    h("p", null, h("a", { href: `#module=${encodeURIComponent(path)}&section=graph` }, "Show it in the graph")),
  );
  for (const { panel } of figures) panel?.fit();
}

/** Returns the texts and edges of a module, which are equal for equal drawings. */
function drawnTexts({ graph, box }) {
  const { boxes, edges } = graph.contents(box);
  const at = new Map(boxes.map((each, place) => [each, place]));
  return [boxes.map(({ label, nodes }) => [label, nodes]), edges.map(({ from, to }) => [at.get(from), at.get(to)])];
}

function drawingLegend(sides) {
  const boxes = sides.flatMap(({ graph, box }) => (box ? graph.contents(box).boxes : []));
  const changed = (side) => sides[side].box?.children?.some((child) => child.kind === "op" && child.changed);
  const said = [
    changed(0) && "− dashed: removed",
    changed(1) && "+ bold: new",
    boxes.some(({ kind }) => kind === "module") && "▸ module below, with its number of nodes: choose it to go there",
    boxes.some(({ kind }) => kind === "port") && "round: what it reads from and hands to",
  ];
  return said.filter(Boolean).join(" · ");
}

function drawnSide(title, { side, graph, box }, model) {
  if (!box) return { element: h("figure", { class: "drawings-side" }, h("figcaption", null, title), h("p", { class: "soft" }, "This module does not exist here.")) };
  const panel = new GraphPanel(new DrawnModule(model), graph, side, box);
  const { width, height } = panel.layout(box);
  panel.element.style.setProperty("height", `${Math.min(Math.ceil(height), 520)}px`);
  return { panel, element: h("figure", { class: "drawings-side", style: { flex: `${Math.ceil(width)} 1 ${Math.min(width, 640) * 0.7}px` } }, h("figcaption", null, title), panel.element) };
}

/** What a panel does that shows one module: a module is selected, and only groups are opened in place. */
class DrawnModule {
  constructor(model) {
    this.model = model;
    this.open = new Set();
    this.chosen = null;
    this.colors = { of: () => null, text: () => "" };
  }

  toggle(box, panel) {
    if (box.kind === "module") return this.model.select({ module: box.path });
    if (!this.open.delete(box.key)) this.open.add(box.key);
    panel.changed(box);
    panel.bring(box);
  }

  choose(box, panel) {
    this.chosen = box;
    panel.draw();
  }

  reveal(box) {
    let home = box;
    while (home.kind !== "module") home = home.parent;
    this.model.select({ module: home.path });
  }
}
