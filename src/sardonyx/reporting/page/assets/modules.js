// The interactive module tree: a table that opens, sorts, searches, and shows the details of a module.

const PIECE = 150; // rows rendered at once; more follow on scrolling
const DEEPEST_INDENT = 20;
const HEATS = [
  ["nodes", "nodes", ["nodes_before", "nodes_after"]],
  ["parameters", "parameters", ["parameters"]],
  ["bytes", "bytes", ["bytes_before", "bytes_after"]],
  ["ms", "time", ["ms_before", "ms_after"]],
];
const WRITTEN = {
  nodes: (number) => fmt.count(number),
  parameters: (number) => (number ? fmt.amount(number) : "·"),
  bytes: (number) => (number ? fmt.size(number) : "·"),
  ms: (number) => fmt.ms(number),
};

/** Returns an amount in the format of its column. */
function writtenAmount(column, number) {
  return WRITTEN[column.split("_")[0]](number);
}

section("modules", (root, data, model) => new ModuleTable(root, data, model));

class ModuleTable {
  constructor(root, data, model) {
    this.model = model;
    this.tree = new ModuleTree(data);
    this.table = root.querySelector("table");
    this.body = this.table.tBodies[0];
    this.status = root.querySelector(".modules-status");
    this.view = new ModuleView(this.tree, Number(this.table.dataset.depth));
    this.heat = HEATS.find(([name]) => name === (data.precisions ? "bytes" : "nodes"));
    this.detail = new ModuleDetail(model, this.tree, data, () => this.focusSelected());
    this.active = null; // key of the line with the keyboard focus
    this.more = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && this.draw(), { rootMargin: "800px 0px" });
    this.table.setAttribute("role", "treegrid");
    this.listenToTools(root);
    this.listenToHeads();
    this.listenToRows();
    model.listen((now, before) => now.module !== before.module && this.adopt(now.module));
    if (model.selection.module === null) this.refresh();
    else this.adopt(model.selection.module);
  }

  listenToTools(root) {
    const tool = (name) => root.querySelector(`[data-tool="${name}"]`);
    this.field = tool("search");
    this.field.addEventListener("input", () => this.search(this.field.value));
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.field.value) this.search("");
      else if (event.key === "Enter" || event.key === "ArrowDown") this.focusRow(this.firstFound());
      else return;
      event.preventDefault();
    });
    const deepest = this.tree.rows.reduce((most, row) => Math.max(most, row.depth), 0);
    const levels = tool("depth");
    for (let depth = 1; depth <= Math.min(deepest, 12); depth++) levels.append(h("option", { value: depth }, String(depth)));
    levels.append(h("option", { value: Infinity }, "all"));
    levels.value = String(this.view.depth >= deepest ? Infinity : this.view.depth);
    levels.addEventListener("change", () => this.open(Number(levels.value)));
    this.levels = levels;
    tool("expand").addEventListener("click", () => this.open(Infinity));
    tool("collapse").addEventListener("click", () => this.open(1));
    tool("part").addEventListener("change", (event) => {
      this.view.partAll = event.target.checked;
      this.refresh();
    });
    const heats = tool("heat");
    for (const heat of HEATS) if (heat[2][0] in this.tree.own) heats.append(h("option", { value: heat[0] }, heat[1]));
    heats.value = this.heat[0];
    heats.addEventListener("change", () => {
      this.heat = HEATS.find((each) => each[0] === heats.value);
      this.refresh();
    });
  }

  listenToHeads() {
    for (const head of this.table.tHead.querySelectorAll("th[data-column]")) {
      const label = h("button", { type: "button", class: "link modules-sort", on: { click: () => this.sort(head.dataset.column) } });
      label.append(...head.childNodes);
      head.append(label);
    }
  }

  listenToRows() {
    const lineAt = (event) => this.lines[event.target.closest("tr[data-line]")?.dataset.line];
    this.body.addEventListener("click", (event) => {
      const line = lineAt(event);
      if (!line || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.active = line.key;
      if (event.target.closest(".modules-toggle")) this.change(line, () => this.view.toggle(line));
      else if (event.target.closest(".modules-copies")) this.part(line);
      else this.choose(line);
    });
    this.body.addEventListener("keydown", (event) => {
      const line = event.target.matches("tr[data-line]") ? lineAt(event) : null;
      if (!line || event.ctrlKey || event.metaKey || event.altKey || !this.answer(event.key, line)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.body.addEventListener("focusin", (event) => {
      const line = event.target.matches("tr[data-line]") ? lineAt(event) : null;
      if (line) this.activate(line);
    });
  }

  /** Handles a key on a row; returns whether it was a known one. */
  answer(key, line) {
    const at = this.lines.indexOf(line);
    const open = this.view.isOpen(line);
    if (key === "ArrowDown" || key === "j") this.focusRow(this.lines[at + 1]);
    else if (key === "ArrowUp" || key === "k") this.focusRow(this.lines[at - 1]);
    else if (key === "Home") this.focusRow(this.lines[0]);
    else if (key === "End") this.focusRow(this.lines.at(-1));
    else if (key === "ArrowRight" && open) this.focusRow(this.lines[at + 1]);
    else if (key === "ArrowRight" && this.view.hasChildren(line)) this.change(line, () => this.view.toggle(line, true));
    else if (key === "ArrowLeft" && open) this.change(line, () => this.view.toggle(line, false));
    else if (key === "ArrowLeft") this.focusRow(line.above && this.lines.find((each) => each.key === line.above.key));
    else if (key === "Enter" || key === " ") this.choose(line);
    else if (key === "x") this.part(line);
    else if (key === "Escape" && this.model.selection.module !== null) this.model.select({ module: null });
    else return false;
    return true;
  }

  search(query) {
    if (this.field.value !== query) this.field.value = query;
    const found = this.view.search(query);
    this.status.textContent = this.view.matches ? `${fmt.plural(found, "module")} found` : "";
    this.refresh();
  }

  open(depth) {
    this.view.openTo(depth);
    this.levels.value = String(depth);
    this.refresh();
  }

  sort(column) {
    const now = this.view.sorting;
    const first = column !== "name"; // numbers descending, names ascending
    const turn = now?.column !== column ? { column, down: first } : now.down === first ? { column, down: !first } : null;
    this.view.sorting = turn;
    for (const head of this.table.tHead.querySelectorAll("th[data-column]")) {
      const sorted = turn?.column === head.dataset.column;
      if (sorted) head.setAttribute("aria-sort", turn.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.refresh();
  }

  part(line) {
    if (this.view.canPart(line)) this.view.part(line);
    else if (this.view.isPart(line)) this.active = this.view.rejoin(line).key;
    else return;
    this.refresh();
    this.focusRow(this.lines.find((each) => each.key === this.active) ?? this.lines.find((each) => each.row === line.row));
  }

  change(line, act) {
    act();
    this.refresh();
    this.focusRow(this.lines.find((each) => each.key === line.key));
  }

  /** Shows the details of a line's module, or closes them. */
  choose(line) {
    const members = this.view.members(line);
    const shown = this.tree.at.get(this.model.selection.module);
    this.active = line.key;
    this.model.select({ module: members.includes(shown) ? null : this.tree.paths[members[0]], rewrite: null, pass: null });
    this.focusRow(this.lines.find((each) => each.key === line.key));
  }

  /** Applies the selection of a link or of another section. */
  adopt(path) {
    const module = this.tree.at.get(path);
    if (module !== undefined) {
      this.active = this.view.reveal(module).key;
      if (!this.view.matches) this.field.value = "";
    }
    this.detail.show(path);
    this.refresh();
    if (!this.view.matches) this.status.textContent = path !== null && module === undefined ? this.unknown(path) : "";
    while (module !== undefined && this.drawn < this.lines.length && !this.detail.element.isConnected) this.draw();
  }

  unknown(path) {
    return `This model has no module called “${path.length > 80 ? `${path.slice(0, 80)}…` : path}”.`;
  }

  focusSelected() {
    this.focusRow(this.lines.find((line) => line.key === this.active) ?? this.lines[0]);
  }

  firstFound() {
    return this.lines.find((line) => this.view.isFound(line)) ?? this.lines[0];
  }

  focusRow(line) {
    if (!line) return;
    const at = this.lines.indexOf(line);
    while (this.drawn <= at) this.draw();
    this.activate(line);
    this.body.querySelector(`tr[data-line="${at}"]`).focus();
  }

  activate(line) {
    this.active = line.key;
    for (const row of this.body.querySelectorAll('tr[tabindex="0"]')) row.tabIndex = -1;
    this.body.querySelector(`tr[data-line="${this.lines.indexOf(line)}"]`).tabIndex = 0;
  }

  refresh() {
    this.lines = this.view.lines();
    this.drawn = 0;
    this.most = Math.max(...this.heat[2].map((column) => this.tree.totals[column][0]), 1e-12);
    const shown = this.tree.at.get(this.model.selection.module);
    const member = shown === undefined ? -1 : this.tree.lined(shown);
    this.chosen = this.lines.find((line) => this.view.members(line).includes(member));
    if (!this.lines.some((line) => line.key === this.active)) this.active = this.lines[0].key;
    const held = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.body.replaceChildren();
    this.draw();
    if (held) this.holdOn(held);
  }

  /** Keeps the focus in the table after rendering. */
  holdOn(held) {
    if (held.isConnected) held.focus({ preventScroll: true });
    else if (held.matches("select") && this.chosen) this.detail.element.querySelector("select")?.focus({ preventScroll: true });
    else this.focusSelected();
  }

  /** Renders the next rows. */
  draw() {
    this.more.disconnect();
    const end = Math.min(this.drawn + PIECE, this.lines.length);
    for (; this.drawn < end; this.drawn++) {
      const line = this.lines[this.drawn];
      this.body.append(this.rowOf(line, this.drawn));
      if (line === this.chosen) this.body.append(this.detail.element);
    }
    if (this.drawn < this.lines.length) this.more.observe(this.body.lastElementChild);
  }

  rowOf(line, at) {
    const members = this.view.members(line);
    const open = this.view.hasChildren(line) ? this.view.isOpen(line) : null;
    const cells = this.tree.columns.map((column) => {
      const kind = `num${column.endsWith("_before") ? " soft" : ""}`;
      return h("td", { class: kind, role: "gridcell" }, writtenAmount(column, this.view.value(line, column)));
    });
    const props = {
      role: "row", tabindex: line.key === this.active ? 0 : -1, dataset: line === this.chosen ? { line: at, here: "" } : { line: at }, "aria-level": line.depth + 1,
      "aria-expanded": open === null ? null : String(open), "aria-selected": String(line === this.chosen),
    };
    return h("tr", props, this.nameCell(line, members, open), this.heatCell(line), cells);
  }

  nameCell(line, members, open) {
    const toggle = h("span", { class: "modules-toggle", "aria-hidden": "true" }, open === null ? "" : open ? "▾" : "▸");
    const kind = this.tree.kinds[members[0]];
    return h(
      "th",
      { scope: "row", role: "rowheader", class: "modules-name", style: { "--level": Math.min(line.depth, DEEPEST_INDENT) } },
      toggle,
      h("a", { class: "path", href: `#module=${encodeURIComponent(this.tree.paths[members[0]])}`, tabindex: -1 }, this.marked(this.view.label(line))),
      this.copies(line),
      this.precisions(members),
      kind ? h("span", { class: "modules-kind" }, this.marked(kind)) : null,
    );
  }

  copies(line) {
    const props = { type: "button", class: "chip modules-copies", tabindex: -1 };
    if (this.view.canPart(line)) return h("button", { ...props, title: `${line.copies} that are equal: show them one by one (x)` }, `×${line.copies}`);
    if (line.copies > 1 && line.count > 1) return h("span", { class: "chip" }, `×${line.copies}`);
    return this.view.isPart(line) ? h("button", { ...props, title: "Show repeated layers together again (x)" }, "⊟") : null;
  }

  /** Returns the precisions of modules and of those below them, null if nothing was quantized. */
  precisions(members) {
    const names = new Set(members.flatMap((member) => this.tree.precisions[member] ?? []));
    return names.size ? h("span", { class: "chip" }, [...names].sort().join(", ")) : null;
  }

  /** Returns a name with the search text marked in it. */
  marked(text) {
    const at = this.view.matches ? text.toLowerCase().indexOf(this.view.query) : -1;
    if (at < 0) return text;
    const end = at + this.view.query.length;
    return [text.slice(0, at), h("mark", {}, text.slice(at, end)), text.slice(end)];
  }

  heatCell(line) {
    const bars = this.heat[2].map((column) => {
      const width = (100 * this.view.value(line, column)) / this.most;
      const kind = column.endsWith("_before") ? "bar before" : "bar";
      return h("span", { class: width ? kind : `${kind} none`, style: { width: `${width.toFixed(2)}%` } });
    });
    return h("td", { class: "modules-heat", role: "gridcell", "aria-hidden": "true" }, bars);
  }
}
