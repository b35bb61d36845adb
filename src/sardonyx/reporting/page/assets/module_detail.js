// The details of a module, under its row: its numbers, rewrites and missed fusions, its graph before and after.

const SHOWN_REASONS = 6;
const AMOUNTS = [
  ["nodes", "Nodes", "nodes_before", "nodes_after"],
  ["parameters", "Parameters", "parameters", "parameters"],
  ["bytes", "Bytes", "bytes_before", "bytes_after"],
  ["ms", "ms", "ms_before", "ms_after"],
];

class ModuleDetail {
  constructor(model, tree, data, leave) {
    this.model = model;
    this.tree = tree;
    this.data = data;
    this.leave = leave; // where to go when it is closed
    this.element = h("tr", { class: "modules-detail" });
  }

  show(path) {
    const module = this.tree.at.get(path);
    if (module === undefined) return;
    const host = h("div", { class: "modules-graph" });
    const inner = h("div", { class: "modules-detail-inner", role: "region", "aria-label": `Module ${path || "(model)"}` },
      this.head(module, path), this.numbers(module), this.rewrites(path), this.missed(path), this.devices(path), host);
    inner.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      event.preventDefault();
      this.close();
    });
    this.element.replaceChildren(h("td", { colspan: 2 + this.tree.columns.length }, inner));
    drawModule(host, this.model, path);
  }

  close() {
    this.model.select({ module: null });
    this.leave();
  }

  head(module, path) {
    const { kinds, tags } = this.tree;
    const kind = tags[module] || kinds[module];
    return h("div", { class: "modules-detail-head" },
      h("h3", {}, h("span", { class: "path" }, path || "(model)"), this.siblings(module)),
      h("div", { class: "answers" },
        h("button", { type: "button", class: "quiet", on: { click: (event) => copyLink(event.currentTarget) } }, "Copy link"),
        " ",
        h("button", { type: "button", class: "quiet", on: { click: () => this.close() } }, "Close")),
      kind ? h("div", { class: "soft path" }, kind) : null);
  }

  /** Returns a selection among the modules that are equal to this one. */
  siblings(module) {
    const row = this.tree.rows[this.tree.rowOf[module]];
    if (!row || row.members.length < 2) return null;
    const options = row.members.map((member) => h("option", { value: this.tree.paths[member], selected: member === module }, this.tree.paths[member]));
    const choice = h("select", { "aria-label": "Equal modules", on: { change: () => this.model.select({ module: choice.value }) } }, options);
    return h("label", { class: "soft answers modules-siblings" }, `one of ${fmt.count(row.members.length)} alike`, choice);
  }

  numbers(module) {
    const known = AMOUNTS.filter(([, , before]) => before in this.tree.own);
    const all = [["with everything below it", this.tree.amounts(module, this.tree.totals)], ["by itself", this.tree.amounts(module, this.tree.own)]];
    const cell = (from, [, , before, after]) => {
      const [old, now] = [writtenAmount(before, from[before]), writtenAmount(after, from[after])];
      return h("td", { class: "num" }, before === after || old === now ? now : `${old} → ${now}`);
    };
    return h("table", { class: "plain modules-numbers" },
      h("thead", {}, h("tr", {}, h("td", {}), known.map(([, name]) => h("th", { class: "num", scope: "col" }, name)))),
      h("tbody", {}, all.map(([name, from]) => h("tr", {}, h("th", { scope: "row" }, name), known.map((column) => cell(from, column))))));
  }

  /** Returns the sum of the counts of the module and those below it. */
  within(counts, path) {
    let sum = 0;
    for (let at = 0; at < counts.length; at += 2) if (matchModule(this.tree.paths[counts[at]], path)) sum += counts[at + 1];
    return sum;
  }

  rewrites(path) {
    if (!this.data.rewrites) return null; // of a quantization
    const found = this.data.rewrites.map(([pass, counts]) => [pass, this.within(counts, path)]).filter(([, count]) => count);
    if (!found.length) return h("p", { class: "soft" }, "Nothing was rewritten in it.");
    const all = found.reduce((sum, [, count]) => sum + count, 0);
    found.sort((a, b) => b[1] - a[1]);
    const link = (pass, count) => h("a", { class: "chip", href: `#module=${encodeURIComponent(path)}&pass=${encodeURIComponent(pass)}` }, `${pass} ${fmt.count(count)}`);
    return h("div", { class: "modules-line" },
      h("a", { href: `#module=${encodeURIComponent(path)}&section=rewrites` }, fmt.plural(all, "rewrite")), " ", found.map(([pass, count]) => [link(pass, count), " "]));
  }

  devices(path) {
    const graphs = this.model.part("graph") ? graphsOf(this.model) : null;
    const sides = Object.values(graphs ?? {}).map((graph) => [graph, graph.modules.get(path)]);
    return sides.some(([, box]) => box) ? modulePlaces(sides) : null;
  }

  missed(path) {
    const found = (this.data.missed ?? []).map(([pass, reason, counts]) => [pass, reason, this.within(counts, path)]).filter((each) => each[2]);
    if (!found.length) return null;
    found.sort((a, b) => b[2] - a[2]);
    const rest = found.length - SHOWN_REASONS;
    return h("div", { class: "modules-line" },
      h("a", { href: `#module=${encodeURIComponent(path)}&section=missed` }, "Missed fusions in it"),
      h("ul", {}, found.slice(0, SHOWN_REASONS).map(([pass, reason, count]) => h("li", {}, `${pass}: ${reason} (${fmt.count(count)})`)),
        rest > 0 ? h("li", { class: "soft" }, `and ${fmt.plural(rest, "other reason")}`) : null));
  }
}

/** Copies the link of the selection to the clipboard, or shows it in a field if that is not allowed. */
async function copyLink(button) {
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy link"), 1500);
  } catch {
    const field = h("input", { type: "text", readonly: true, value: location.href, "aria-label": "Link to this module" });
    button.replaceWith(field);
    field.select();
  }
}
