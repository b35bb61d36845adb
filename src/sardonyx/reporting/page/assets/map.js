// The map: bars as wide as nodes, bytes or time of each module, before above after, fitted to the page.

const MAP_ROW = 22;
const MAP_LETTER = 6.9; // upper bound of the width of a character
const MAP_WRITTEN = { nodes: (n) => fmt.plural(n, "node"), bytes: fmt.size, ms: (n) => `${fmt.ms(n)} ms` };

section("map", (root, data, model) => new ModuleMap(root, data, model));

class ModuleMap {
  constructor(root, data, model) {
    this.root = root;
    this.model = model;
    this.host = root.querySelector(".map-host");
    this.status = root.querySelector(".map-status");
    this.inside = root.querySelector("[data-inside]");
    this.tree = new ModuleTree(model.data("modules"));
    this.colors = mapColors(this.tree, data.families);
    this.children = this.tree.parents.map(() => []);
    for (const [at, above] of this.tree.parents.entries()) if (above >= 0) this.children[above].push(at);
    this.families = data.families;
    this.measure = "nodes";
    this.scale = "same";
    this.top = 0;
    this.focused = null; // "before:12": the one bar that Tab reaches
    for (const button of root.querySelectorAll("[data-measure]")) this.choice(button, "measure");
    for (const button of root.querySelectorAll("[data-scale]")) this.choice(button, "scale");
    this.inside.addEventListener("click", () => this.look());
    model.listen(() => this.mark());
    new ResizeObserver(() => this.width() !== this.drawn && this.draw()).observe(root);
    this.draw();
  }

  choice(button, name) {
    button.addEventListener("click", () => {
      this[name] = button.dataset[name];
      for (const each of this.root.querySelectorAll(`[data-${name}]`)) each.setAttribute("aria-pressed", String(each === button));
      this.draw();
    });
  }

  width() {
    return Math.max(280, Math.floor(this.root.clientWidth));
  }

  /** Draws only the selected module, or the whole model again. */
  look() {
    const selected = this.tree.at.get(this.model.selection.module);
    this.top = this.top || selected === undefined ? 0 : selected;
    this.draw();
  }

  draw() {
    this.drawn = this.width();
    if (!this.drawn || !this.root.clientWidth) return;
    const wholes = ["before", "after"].map((side) => this.tree.totals[`${this.measure}_${side}`][this.top]);
    const panels = ["before", "after"].map((side, at) => this.panel(side, this.scale === "full" ? wholes[at] : Math.max(...wholes)));
    this.host.replaceChildren(...panels, this.legend());
    const reached = this.host.querySelector('.map-bar[tabindex="0"]');
    if (!reached) this.host.querySelector(".map-bar")?.setAttribute("tabindex", "0"); // the last one is not visible now
    this.mark();
  }

  panel(side, most) {
    const totals = this.tree.totals[`${this.measure}_${side}`];
    const written = MAP_WRITTEN[this.measure];
    const bars = mapBars(this.tree, this.children, totals, this.top, most ? this.drawn / most : 0);
    const rows = 1 + bars.reduce((deepest, bar) => Math.max(deepest, bar.depth), 0);
    const title = side === "before" ? "Before" : "After";
    const about = bars.length ? written(totals[this.top]) : "nothing here";
    return h(
      "figure",
      { class: "map-panel" },
      h("figcaption", null, h("strong", null, title), h("span", { class: "soft" }, ` ${about}`)),
      s(
        "svg",
        { class: "map", width: this.drawn, height: rows * MAP_ROW, viewBox: `0 0 ${this.drawn} ${rows * MAP_ROW}`, role: "group", "aria-label": `${title}: bars of modules` },
        bars.map((bar) => this.bar(bar, side, totals)),
      ),
    );
  }

  bar(bar, side, totals) {
    const { place, x, width, depth } = bar;
    const color = this.colors[place];
    const name = mapLabel(this.tree, place, bar.above);
    const own = this.tree.own[`${this.measure}_${side}`][place];
    const written = MAP_WRITTEN[this.measure];
    const kind = this.tree.kinds[place];
    const itself = own === totals[place] ? "all of it" : own ? `${written(own)} of it` : "nothing";
    const said = `${this.tree.paths[place] || "(model)"}${kind ? ` ${kind}` : ""}, ${side}: ${written(totals[place])}, ${itself} itself`;
    const fits = [`${name} ${kind}`.trim(), name].find((text) => text.length * MAP_LETTER + 8 <= width);
    const key = `${side}:${place}`;
    this.focused ??= key;
    const tell = () => this.status.replaceChildren(said);
    const choose = () => this.model.select({ module: this.tree.paths[place] });
    return s(
      "g",
      {
        class: `map-bar ${color < 0 ? "map-other" : `own${color}`}`,
        role: "button",
        tabindex: key === this.focused ? "0" : "-1",
        "aria-label": said,
        dataset: { key, path: this.tree.paths[place], held: this.tree.paths[bar.above] },
        on: {
          click: choose,
          pointerenter: tell,
          focus: tell,
          keydown: (event) => this.key(event, key, choose),
        },
      },
      s("rect", { x, y: depth * MAP_ROW, width: width - Math.min(1, width * 0.15), height: MAP_ROW - 1 }),
      fits && s("text", { x: x + 5, y: depth * MAP_ROW + 15 }, fits),
    );
  }

  /** Arrow keys: along the row, up to the module above and down to the first one below. */
  key(event, key, choose) {
    const bars = [...event.currentTarget.parentNode.querySelectorAll(".map-bar")];
    const at = bars.indexOf(event.currentTarget);
    const row = (bar) => bar.firstChild.getAttribute("y");
    const alike = (direction) => {
      for (let next = at + direction; next >= 0 && next < bars.length; next += direction)
        if (row(bars[next]) === row(bars[at])) return bars[next];
      return null;
    };
    const above = () => bars.slice(0, at).reverse().find((bar) => Number(row(bar)) < Number(row(bars[at])));
    const below = () => (bars[at + 1] && Number(row(bars[at + 1])) > Number(row(bars[at])) ? bars[at + 1] : null);
    const moves = { ArrowRight: () => alike(1), ArrowLeft: () => alike(-1), ArrowUp: above, ArrowDown: below };
    if (event.key === "Enter" || event.key === " ") choose();
    else if (!Object.hasOwn(moves, event.key)) return;
    else {
      const next = moves[event.key]();
      if (next) {
        event.currentTarget.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
        this.focused = next.dataset.key;
      }
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** Outlines the selected module, or the nearest visible one above it. */
  mark() {
    const selected = this.model.selection.module;
    const bars = [...this.host.querySelectorAll(".map-bar")];
    for (const svg of this.host.querySelectorAll("svg.map")) {
      const holding = bars.filter((bar) => bar.parentNode === svg && selected !== null && matchModule(selected, bar.dataset.held));
      const nearest = holding.reduce((best, bar) => (bar.dataset.held.length >= (best?.dataset.held.length ?? 0) ? bar : best), null);
      for (const bar of bars) if (bar.parentNode === svg) bar.classList.toggle("map-selected", bar === nearest && selected !== "");
    }
    const place = this.tree.at.get(selected);
    this.inside.hidden = !this.top && !place;
    this.inside.replaceChildren(this.top ? "Whole model" : `Look inside ${selected ?? ""}`);
  }

  legend() {
    const items = this.families.map((name, at) => h("li", { class: `own${at}` }, h("span", { class: "map-swatch" }), name));
    return h("ul", { class: "map-legend", "aria-label": "Colours" }, items, h("li", null, h("span", { class: "map-swatch map-grey" }), "all others"));
  }
}

/** Returns the label of a bar: its module, with the containers that it represents. */
function mapLabel(tree, place, above) {
  const name = above === place ? tree.names[place] : tree.paths[place].slice(tree.paths[above].length - tree.names[above].length);
  return name || "(model)";
}

/** Returns the colour of each module by its family, -1 for families without one. */
function mapColors(tree, families) {
  const known = new Map(families.map((name, at) => [name, at]));
  const called = (name, at) => (/^\d+$/.test(name) ? `${tree.names[tree.parents[at]]}.*`.replace(/^\./, "") : name);
  return tree.names.map((name, at) => known.get(tree.kinds[at] || called(name, at) || "(model)") ?? -1);
}

/** Returns bars from the top, parents before children; an only child with the parent's total represents both. */
function mapBars(tree, children, totals, top, scale) {
  const bars = [];
  const stack = [{ place: top, x: 0, depth: 0 }];
  while (stack.length) {
    let { place, x, depth } = stack.pop();
    const above = place;
    const width = totals[place] * scale;
    if (width < 0.5 || depth > 24) continue;
    const only = (at) => children[at].filter((child) => totals[child] > 0);
    while (place && only(place).length === 1 && totals[only(place)[0]] === totals[place] && !tree.kinds[place]) place = only(place)[0];
    bars.push({ place, above, x, width, depth });
    let at = x;
    const below = [];
    for (const child of children[place]) {
      below.push({ place: child, x: at, depth: depth + 1 });
      at += totals[child] * scale;
    }
    stack.push(...below.reverse());
  }
  return bars;
}
