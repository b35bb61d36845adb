// The graph that a reader walks through: both sides, what is open, colours, search, and the details of what is chosen.

const GRAPH_FOUND = 40; // results of a search that are listed
const GRAPH_DECADES = 4; // of the colour scale: from a ten-thousandth of the model to all of it
const GRAPH_STRONGEST = 60; // percent of the colour
const GRAPH_DEVICE = "device "; // before the name of a device in the choice of colours
const GRAPH_COLORED = 8; // passes with a colour of their own
const GRAPH_UNITS = {
  time: (value) => `${fmt.ms(value)} ms`,
  flops: (value) => `${fmt.amount(Math.round(value))} FLOPs`,
  bytes: (value) => `${fmt.size(Math.round(value))} moved`,
};

/** How boxes are coloured: by a cost as a share of the source, by the pass that changed them, or by their device. */
class GraphColors {
  constructor(graphs, passes, passOf) {
    this.graphs = graphs;
    this.passes = passes;
    this.passOf = passOf;
    this.kind = "none";
    const counts = new Map();
    for (const graph of Object.values(graphs)) {
      for (const event of graph.rewrites.values()) if (event >= 0) counts.set(passOf[event], (counts.get(passOf[event]) ?? 0) + 1);
    }
    this.order = [...counts.keys()].sort((left, right) => counts.get(right) - counts.get(left));
  }

  /** The device whose nodes are shown, null if colours show something else. */
  get device() {
    return this.kind.startsWith(GRAPH_DEVICE) ? this.kind.slice(GRAPH_DEVICE.length) : null;
  }

  /** Returns the class of a box, and its share of the colour in percent. */
  of(graph, box) {
    if (this.kind === "none" || box.kind === "port") return null;
    if (this.kind === "pass") {
      const pass = this.pass(graph, box);
      return pass === null ? null : { class: `nested-pass own${pass}` };
    }
    if (this.device !== null) return deviceColor(graph, box, this.device);
    const whole = this.graphs.before.cost(this.graphs.before.root, this.kind);
    const value = graph.cost(box, this.kind);
    if (!value || !whole) return null;
    const share = Math.min(Math.max(1 + Math.log10(value / whole) / GRAPH_DECADES, 0.03), 1);
    return { class: "nested-heat", share: Math.round(GRAPH_STRONGEST * share) };
  }

  /** Returns the number of the colour of the pass that changed most nodes of a box, null if nothing was changed. */
  pass(graph, box) {
    graph.passes ??= new Map();
    if (!graph.passes.has(box)) {
      const counts = new Map();
      for (const node of box.changed ? graph.nodesIn(box) : []) {
        const event = graph.rewrites.get(node) ?? -1;
        if (event >= 0) counts.set(this.passOf[event], (counts.get(this.passOf[event]) ?? 0) + 1);
      }
      const most = [...counts].reduce((best, each) => (each[1] > best[1] ? each : best), [null, 0])[0];
      graph.passes.set(box, most === null ? null : Math.min(this.order.indexOf(most), GRAPH_COLORED));
    }
    return graph.passes.get(box);
  }

  /** Returns the cost or the place of a box in words, "" if it is not shown. */
  text(graph, box) {
    if (this.device !== null) return deviceText(graph, box, this.device);
    const unit = GRAPH_UNITS[this.kind];
    return unit ? unit(graph.cost(box, this.kind)) : "";
  }

  legend() {
    if (this.kind === "pass") {
      const names = this.order.slice(0, GRAPH_COLORED).map((pass, at) => h("li", { class: `own${at}` }, h("span", { class: "nested-swatch" }), this.passes[pass]));
      return [...names, this.order.length > GRAPH_COLORED && h("li", { class: `own${GRAPH_COLORED}` }, h("span", { class: "nested-swatch" }), "other passes")];
    }
    if (this.kind === "none") return null;
    if (this.device !== null) return deviceLegend(this.graphs, this.device);
    const steps = [0.001, 0.01, 0.1, 1].map((share) => h("li", null, h("span", { class: "nested-swatch nested-heat", style: { "--share": `${Math.round(GRAPH_STRONGEST * (1 + Math.log10(share) / GRAPH_DECADES))}%` } }), `${share * 100} %`));
    return [...steps, h("li", null, "of the source, on a logarithmic scale")];
  }
}

class GraphSection {
  constructor(root, data, model) {
    this.root = root;
    this.model = model;
    this.graphs = graphsOf(model);
    this.passes = data.passes;
    this.passOf = data.pass_of;
    this.open = new Set();
    this.chosen = null;
    this.colors = new GraphColors(this.graphs, data.passes, data.pass_of);
    this.panels = Object.fromEntries(Object.entries(this.graphs).map(([side, graph]) => [side, new GraphPanel(this, graph, side, graph.root)]));
    this.find("sides").replaceChildren(...Object.entries(this.panels).map(([side, panel]) => this.figure(side, panel)));
    this.tools();
    for (const panel of Object.values(this.panels)) panel.fit();
    this.legend();
  }

  find(name) {
    return this.root.querySelector(`[data-graph="${name}"]`);
  }

  figure(side, panel) {
    const nodes = fmt.plural(panel.graph.names.length, "node");
    return h("figure", { class: "nested-side", dataset: { side } }, h("figcaption", null, `${side === "before" ? "Before" : "After"}: ${nodes}`), panel.element);
  }

  tools() {
    const shown = (side) => {
      for (const button of this.root.querySelectorAll("[data-graph-side]")) button.setAttribute("aria-pressed", String(button.dataset.graphSide === side));
      for (const figure of this.root.querySelectorAll(".nested-side")) figure.hidden = side !== "both" && figure.dataset.side !== side;
    };
    for (const button of this.root.querySelectorAll("[data-graph-side]")) button.addEventListener("click", () => shown(button.dataset.graphSide));
    const each = (act) => () => Object.values(this.panels).forEach((panel) => !panel.element.closest("[hidden]") && act(panel));
    this.find("in").addEventListener("click", each((panel) => panel.zoom(1.25)));
    this.find("out").addEventListener("click", each((panel) => panel.zoom(0.8)));
    this.find("fit").addEventListener("click", each((panel) => panel.fit()));
    this.find("close").addEventListener("click", () => this.closeAll());
    for (const button of this.root.querySelectorAll("[data-graph-save]")) button.addEventListener("click", () => this.save(button.dataset.graphSave));
    this.find("full").addEventListener("click", () => this.full(!this.root.classList.contains("nested-full")));
    this.find("color").addEventListener("change", (event) => this.color(event.target.value));
    this.root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && this.root.classList.contains("nested-full")) this.full(false);
    });
    this.root.addEventListener("click", (event) => event.target.closest("a[href]") && this.full(false)); // to see where it leads
    this.listenToSearch();
  }

  /** Saves what is shown, one picture for each side. */
  save(format) {
    for (const [side, panel] of Object.entries(this.panels)) {
      if (!panel.element.closest("[hidden]")) savePicture(panel.svg, format, `${this.model.label}-${side}`);
    }
  }

  full(wanted) {
    this.root.classList.toggle("nested-full", wanted);
    this.find("full").setAttribute("aria-pressed", String(wanted));
  }

  color(kind) {
    this.colors.kind = kind;
    this.legend();
    this.draw();
  }

  /** Colours the nodes that do not run on a device, if it is known. */
  showDevice(device) {
    const choice = this.find("color");
    const value = GRAPH_DEVICE + device;
    if (![...choice.options].some((each) => each.value === value)) return;
    choice.value = value;
    this.color(value);
  }

  legend() {
    this.find("legend").replaceChildren(...[this.colors.legend()].flat().filter(Boolean));
  }

  draw() {
    for (const panel of Object.values(this.panels)) panel.draw();
  }

  /** Returns the other panel and the box there that corresponds to one, if there is such a box. */
  other(box, panel) {
    const other = this.panels[panel.side === "before" ? "after" : "before"];
    if (box.kind === "module") return [other, other.graph.modules.get(box.path)];
    if (box.kind === "op") return [other, this.named(other.graph, panel.graph.names[box.node])];
    return [other, other.graph.groups.get(box.key)];
  }

  named(graph, name) {
    graph.byName ??= new Map(graph.names.map((each, node) => [each, node]));
    const node = graph.byName.get(name);
    return node === undefined ? null : graph.boxes[node];
  }

  /** Opens or closes a box on both sides. */
  toggle(box, panel) {
    const open = this.open.has(box.key);
    const [other, twin] = this.other(box, panel);
    for (const { key } of [box, twin].filter(Boolean)) {
      if (open) this.open.delete(key);
      else this.open.add(key);
    }
    panel.changed(box);
    panel.active = box.key;
    panel.bring(box);
    panel.focus(box);
    if (twin) {
      other.changed(twin);
      if (twin.parent && other.shown(twin) === twin) other.bring(twin);
      else other.draw();
    }
    this.tell(this.aboutModule(box, panel));
  }

  closeAll() {
    this.open.clear();
    for (const panel of Object.values(this.panels)) {
      panel.sizes.clear();
      panel.fit();
    }
  }

  /** Opens what is around a box, and goes to it. */
  reveal(box, panel, { focus = true } = {}) {
    for (let each = box.parent; each; each = each.parent) {
      for (const side of [each, this.other(each, panel)[1]].filter(Boolean)) this.open.add(side.key);
    }
    for (const each of Object.values(this.panels)) each.sizes.clear();
    const [other, twin] = this.other(box, panel);
    for (const each of [panel, other]) {
      each.view = { ...each.view, scale: Math.max(each.view.scale, 0.75) };
      each.touched = true;
    }
    panel.active = box.key;
    panel.bring(box, { center: true });
    if (twin) other.bring(other.shown(twin), { center: true });
    else other.draw();
    if (box.kind === "op") this.choose(box, panel);
    else this.tell(this.aboutModule(box, panel));
    if (focus) panel.focus(box);
  }

  /** Shows the details of an operator, and marks the nodes of the other graph that it stems from or that replaced it. */
  choose(box, panel) {
    this.chosen = box;
    const [other] = this.other(box, panel);
    const related = this.related(box, panel, other.graph);
    panel.marked.clear();
    other.marked = new Set(related.map((each) => other.shown(each)));
    panel.draw();
    if (related.length) other.bringAll([...other.marked]);
    else other.draw();
    this.tell(this.aboutNode(box, panel, other, related));
  }

  /** Returns the boxes of the other graph that are connected with a node by rewrites: those in its module, or else all. */
  related(box, panel, graph) {
    const all = this.connected(box, panel, graph);
    const own = homeOf(box).path;
    const near = all.filter((each) => homeOf(each).path === own);
    return near.length ? near : all;
  }

  connected(box, panel, graph) {
    const event = panel.graph.rewrites.get(box.node);
    const data = this.model.data("rewrites");
    if (event === undefined || event < 0 || !data) return [this.named(graph, panel.graph.names[box.node])].filter(Boolean);
    this.book ??= readRewrites(data);
    const names = new Set([panel.graph.names[box.node]]);
    const back = panel.side === "after";
    for (let at = event; back ? at >= 0 : at < this.book.count; at += back ? -1 : 1) {
      const { nodes } = this.book.event(at);
      const [from, to] = [nodes.filter(({ state }) => (state === "made") === back), nodes.filter(({ state }) => (state === "made") !== back)];
      if (from.some(({ name }) => names.has(name))) for (const { name } of to) names.add(name);
    }
    return [...names].map((name) => this.named(graph, name)).filter((each) => each && graph.rewrites.has(each.node));
  }

  tell(parts) {
    this.find("detail").replaceChildren(...parts.filter(Boolean));
  }

  moduleLink(path) {
    return h("a", { class: "path", href: `#module=${encodeURIComponent(path)}` }, path || "(model)");
  }

  aboutModule(box, panel) {
    const boxes = Object.entries(this.graphs).map(([side, graph]) => [graph, side === panel.side ? box : this.other(box, panel)[1]]);
    const both = (amount) => {
      const [before, after] = boxes.map(([graph, each]) => (each ? amount(graph, each) : "none"));
      const unit = before.slice(before.indexOf(" "));
      return before === after ? before : `${after.endsWith(unit) ? before.slice(0, -unit.length) : before} → ${after}`;
    };
    const costs = Object.entries(GRAPH_UNITS).filter(([kind]) => panel.graph.costs[kind]).map(([kind, unit]) => both((graph, each) => unit(graph.cost(each, kind))));
    const title = box.kind === "module" ? ["Module ", this.moduleLink(box.path)] : ["Part of ", this.moduleLink(box.path)];
    const nodes = box.kind === "module" ? both((_graph, each) => fmt.plural(each.nodes, "node")) : fmt.plural(box.nodes, "node");
    return [h("p", null, title, ": ", [nodes, ...(box.kind === "module" ? costs : [])].join(", "), "."), box.kind === "module" && modulePlaces(boxes)];
  }

  aboutNode(box, panel, other, related) {
    const { graph, side } = panel;
    const { node } = box;
    const event = graph.rewrites.get(node);
    const costs = Object.entries(GRAPH_UNITS).map(([kind, unit]) => graph.costs[kind] && unit(graph.cost(box, kind))).filter(Boolean);
    const reads = graph.edges.filter(([, to]) => to === node).map(([from, , type]) => [graph.boxes[from], type]);
    const feeds = graph.edges.filter(([from]) => from === node).map(([, to, type]) => [graph.boxes[to], type]);
    const inputs = graph.inputs.filter(({ nodes }) => nodes.includes(node)).map(({ name, type }) => `input ${name} ${graph.typeOf(type)}`);
    const outputs = graph.outputs.filter(({ nodes }) => nodes.includes(node)).map(({ name, type }) => `output ${name} ${graph.typeOf(type)}`);
    const home = homeOf(box);
    return [
      h("p", null, h("strong", null, box.label), " ", h("span", { class: "path" }, graph.names[node]), " in ", this.moduleLink(home.path), costs.length ? `: ${costs.join(", ")}` : "", "."),
      this.edgeLine("Reads", reads, inputs, panel),
      this.edgeLine("Feeds", feeds, outputs, panel),
      ...nodePlaces(graph, node),
      ...nodeDetails(graph, node),
      event !== undefined && this.aboutRewrite(event, side, other, related),
    ];
  }

  aboutRewrite(event, side, other, related) {
    const did = side === "before" ? "Removed" : "Created";
    if (event < 0) return h("p", null, `${did} by a rewrite that is not in the record.`);
    const count = fmt.plural(related.length, "node");
    const pass = this.passes[this.passOf[event]];
    const claims = this.model.data("rewrites")?.passes.find(({ name }) => name === pass)?.claims;
    return h("p", null, `${did} by `, h("a", { href: `#rewrite=${event}` }, `rewrite ${event}`), ` of ${pass}${claims ? `, whose rewrites are equal for: ${claims}` : ""}. `,
      related.length ? [side === "before" ? `It became part of ${count}. ` : `It stems from ${count}. `, this.goTo(related[0], other, "Show")] : null);
  }

  edgeLine(title, ends, others, panel) {
    if (!ends.length && !others.length) return null;
    const shown = ends.slice(0, 12).map(([box, type]) => [this.goTo(box, panel, box.label), " ", h("span", { class: "soft" }, panel.graph.typeOf(type)), ", "]).flat();
    const more = ends.length > 12 ? `and ${fmt.count(ends.length - 12)} more` : others.join(", ");
    if (!more) shown.pop();
    return h("p", null, `${title} `, shown, more, ".");
  }

  goTo(box, panel, text) {
    return h("button", { type: "button", class: "link", on: { click: () => this.reveal(box, panel) } }, text);
  }

  listenToSearch() {
    const field = this.find("search");
    const list = this.find("found");
    const clear = () => list.replaceChildren();
    field.addEventListener("input", () => this.list(field.value.trim(), list));
    field.addEventListener("keydown", (event) => {
      const first = list.querySelector("button");
      if (event.key === "Enter" && first) first.click();
      else if (event.key === "ArrowDown" && first) first.focus();
      else if (event.key === "Escape" && field.value) {
        field.value = "";
        clear();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    list.addEventListener("keydown", (event) => {
      const rows = [...list.querySelectorAll("button")];
      const at = rows.indexOf(document.activeElement);
      const next = { ArrowDown: rows[at + 1], ArrowUp: rows[at - 1] ?? field, Escape: field }[event.key];
      if (!next) return;
      next.focus();
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** Returns modules, then nodes, whose name or operator contains a text; those in both graphs once. */
  search(text) {
    const wanted = text.toLowerCase();
    const found = new Map();
    const add = (name, box, side, module = "") => {
      if (!found.has(name)) found.set(name, { name, module, sides: [] });
      found.get(name).sides.push([side, box]);
    };
    for (const [side, graph] of Object.entries(this.graphs)) {
      for (const [path, box] of graph.modules) if (path && path.toLowerCase().includes(wanted) && box.parent) add(`module ${path}`, box, side);
    }
    for (const [side, graph] of Object.entries(this.graphs)) {
      for (const [node, name] of graph.names.entries()) {
        if (name.toLowerCase().includes(wanted) || graph.ops[node].toLowerCase().includes(wanted)) add(`${graph.ops[node]} ${name}`, graph.boxes[node], side, homeOf(graph.boxes[node]).path || "(model)");
      }
    }
    return [...found.values()];
  }

  list(text, list) {
    if (!text) return list.replaceChildren();
    const found = this.search(text);
    const rows = found.slice(0, GRAPH_FOUND).map(({ name, module, sides }) => {
      const [side, box] = sides.at(-1); // in the result if it is there
      const where = `${module && ` in ${graphShort(module, 60)}`}${sides.length > 1 ? "" : ` (${side} only)`}`;
      const go = () => {
        list.replaceChildren();
        this.reveal(box, this.panels[side]);
      };
      return h("li", null, h("button", { type: "button", class: "link path", on: { click: go } }, graphShort(name, 100), h("span", { class: "soft" }, where)));
    });
    const rest = found.length - rows.length;
    list.replaceChildren(...rows, found.length ? (rest > 0 ? h("li", { class: "soft" }, `and ${fmt.count(rest)} more`) : "") : h("li", { class: "soft" }, "Nothing has this name."));
  }
}

/** Returns the module that a box is in. */
function homeOf(box) {
  let home = box.parent;
  while (home.kind === "group") home = home.parent;
  return home;
}

section("graph", (root, data, model) => {
  const graph = new GraphSection(root, data, model);
  const follow = (selection, previous) => {
    if (selection.device !== null && selection.device !== previous?.device) graph.showDevice(selection.device);
    if (selection.section !== "graph" || selection.module === null) return;
    for (const side of ["after", "before"]) {
      const box = graph.graphs[side].modules.get(selection.module);
      if (!box) continue;
      if (box.parent) graph.open.add(box.key);
      return graph.reveal(box, graph.panels[side], { focus: false });
    }
  };
  model.listen(follow);
  follow(model.selection);
});
