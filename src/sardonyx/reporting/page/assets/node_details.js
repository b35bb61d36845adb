// What is known of one node: attributes, inputs and outputs by name with types, and the numbers of constants.

/** Returns the tables of a node; none if the record does not have them. */
function nodeDetails(graph, node) {
  const known = graph.details;
  if (!known) return [];
  const attributes = known.attributes[node].map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value)));
  const values = [...known.operands[node].map((name) => ["input", name]), ...known.results[node].map((name) => ["output", name])];
  return [
    h("div", { class: "node-tables" },
      attributes.length ? nodeTable("Attributes", ["attribute", "value"], attributes) : null,
      nodeTable("Inputs and outputs", ["", "name", "type", "numbers"], values.filter(([, name]) => name).map(([way, name]) => valueRow(known, graph, way, name)))),
  ];
}

function nodeTable(caption, heads, rows) {
  const head = h("thead", null, h("tr", null, heads.map((each) => h("th", { scope: "col" }, each))));
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, h("table", { class: "plain" }, h("caption", { class: "visually-hidden" }, caption), head, h("tbody", null, rows)));
}

function valueRow(known, graph, way, name) {
  const weight = known.weights.get(name);
  const type = weight?.type ?? (known.types.has(name) ? graph.typeOf(known.types.get(name)) : "");
  return h("tr", null, h("td", null, weight ? "constant" : way), h("th", { scope: "row", class: "path" }, name), h("td", { class: "path" }, type), h("td", null, weight ? numbersOf(weight) : null));
}

/** Returns the range of a constant and its histogram. */
function numbersOf({ low, high, histogram, odd }) {
  if (low === null) return h("span", { class: "soft" }, "not read: large, or no numbers");
  const range = low === high ? `all ${shortNumber(low)}` : `${shortNumber(low)} … ${shortNumber(high)}`;
  return [histogram.length ? histogramOf(histogram) : null, h("span", null, ` ${range}`), odd ? h("span", { class: "bad" }, ` ${fmt.count(odd)} not finite`) : null];
}

function shortNumber(number) {
  return Number.isInteger(number) && Math.abs(number) < 1e6 ? fmt.count(number) : String(Number(number.toPrecision(3))).replace("-", "−");
}

function histogramOf(counts) {
  const most = Math.max(...counts);
  const bars = counts.map((count, at) => s("rect", { x: at * 4, y: 18 - Math.ceil((18 * count) / most), width: 3, height: Math.ceil((18 * count) / most) }));
  return s("svg", { class: "node-histogram", width: counts.length * 4, height: 18, role: "img", "aria-label": `Histogram in ${counts.length} intervals` }, bars);
}
