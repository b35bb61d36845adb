// The details of a rewrite: its graph before and after, the owner of every node, and the origins of the result.

const REWRITE_STATES = { op: "kept", gone: "removed", made: "new" };
const REWRITE_AFTER = {
  fuse: "No node is left in its place.",
  share: "No new node: an existing equal node now serves its consumers too.",
  fold: "No node is left: a constant in the file replaces the result.",
  bypass: "No node is left: the consumers of the result now read its input.",
  drop: "Nothing is left: nothing used the result.",
};
const REWRITE_VALUES = {
  fuse: "The model as a whole was changed, no single node.",
  share: "A constant that was stored more than once, bit for bit the same. Its consumers now read one copy.",
  fold: "A constant replaced this value.",
  drop: "A constant that no node reads any more was removed from the file.",
};
const REWRITE_PORT = 15; // characters of a value's name that fit into its box
const REWRITE_ORIGINS = 8; // modules listed at first
const REWRITE_FEW = 5; // nodes listed unfolded

function rewriteDetail(event) {
  const { shape, nodes } = event;
  const wired = shape.parts.some(([, , inputs, outputs]) => inputs.length || outputs.length);
  return h(
    "div",
    { class: "rewrites-detail card", dataset: { rewrite: event.index } },
    rewriteHeading(event),
    wired ? rewritePictures(event) : rewriteSentence(event),
    nodes.length ? rewriteTags(nodes, wired) : null,
    rewriteOrigins(event, wired),
  );
}

function rewriteHeading({ index, owner, body, nodes }) {
  const count = (wanted) => nodes.filter(({ state }) => state === wanted).length;
  const link = h("a", { href: `#rewrite=${index}`, title: "link to this rewrite" }, `Rewrite ${index}`);
  const became = nodes.length ? `: ${fmt.plural(count("gone"), "node")} removed, ${count("made") ? fmt.count(count("made")) : "none"} new` : "";
  return h("p", { class: "rewrites-which" }, link, " in ", rewriteModule(owner), body ? [", inside ", h("code", null, body)] : null, became);
}

function rewriteModule(path) {
  return h("a", { class: "path", href: `#module=${encodeURIComponent(path)}` }, path || "(model)");
}

function rewritePictures(event) {
  const [before, after] = ["made", "gone"].map((other) => rewriteSide(event, other));
  const share = (side) => `${Math.min(Math.max(side?.width ?? 0, 250), 750)}fr`; // the wider graph gets more of the width
  return h(
    "div",
    { class: "rewrites-pictures", style: { "--before-share": share(before), "--after-share": share(after) } },
    rewritePicture("Before", event, before, "There was nothing."),
    rewritePicture("After", event, after, REWRITE_AFTER[event.shape.kind] ?? "No node is left."),
  );
}

function rewritePicture(title, event, side, otherwise) {
  const picture = side
    ? h("div", { class: "graph-host" }, drawGraph(side, `${title}: ${event.shape.pass} at ${event.root}`))
    : h("p", { class: "soft" }, otherwise);
  return h("figure", { class: "rewrites-picture" }, h("figcaption", null, title), picture);
}

/** Lays out the nodes that are not in the `other` state; values that enter and leave are boxes of their own. */
function rewriteSide({ shape: { parts, root }, nodes, values }, other) {
  const shown = [...parts.keys()].filter((at) => parts[at][1] !== other);
  if (!shown.length) return null;
  const links = (column) => shown.flatMap((at, box) => parts[at][column].filter((value) => value >= 0).map((value) => [value, box]));
  const [reads, writes] = [links(2), links(3)];
  const producers = new Map(writes);
  const read = new Set(reads.map(([value]) => value));
  const inputs = [...read].filter((value) => !producers.has(value)).sort((left, right) => left - right);
  const outputs = [...producers.keys()].filter((value) => !read.has(value) || value === root).sort((left, right) => left - right);
  const place = new Map([...inputs.map((value, at) => [value, shown.length + at]), ...producers]);
  const edges = reads.map(([value, box]) => [place.get(value), box]);
  outputs.forEach((value, at) => edges.push([producers.get(value), shown.length + inputs.length + at]));
  const boxes = shown.map((at) => {
    const { name, op, state, owner } = nodes[at];
    return [graphShort(op), state, `${op} ${name}, in ${owner || "(model)"}`];
  });
  const ports = [...inputs, ...outputs].map((value) => [rewriteTail(values[value]), "port", `value ${values[value]}`]);
  return layOutGraph([...boxes, ...ports], [...new Map(edges.map((edge) => [edge.join(), edge])).values()]);
}

/** Returns the end of a name, which usually distinguishes values. */
function rewriteTail(text) {
  const chars = Array.from(visible(text));
  return chars.length <= REWRITE_PORT ? chars.join("") : `…${chars.slice(1 - REWRITE_PORT).join("")}`;
}

/** For rewrites without a graph: constants, records without inputs of nodes, and rewrites of a whole model. */
function rewriteSentence({ shape, nodes }) {
  const [before, after] = shape.counted;
  if (!before.length && !after.length) {
    return h("p", null, REWRITE_VALUES[shape.kind] ?? "No node was touched.");
  }
  const sum = (side) => side.reduce((total, [, count]) => total + count, 0);
  const large = nodes.length ? [] : [`${fmt.plural(sum(before) + sum(after), "node")} in one rewrite, too many to draw. `];
  return h("p", null, ...large, "Matched: ", rewriteOperators(before), ". Replaced by: ", rewriteOperators(after), ".");
}

function rewriteOperators(counted) {
  return counted.map(([op, count]) => (count > 1 ? `${op} ×${fmt.count(count)}` : op)).join(", ") || "nothing";
}

/** Returns the list of nodes, with their owners if the record has them. */
function rewriteTags(nodes, owned) {
  const fate = h("span", { class: "visually-hidden" }, "what became of it");
  const heads = [fate, "operator", "node", owned && "module"].filter(Boolean).map((text) => h("th", { scope: "col" }, text));
  const row = ({ name, op, state, owner }) =>
    h(
      "tr",
      null,
      h("td", { class: `rewrites-${state}` }, REWRITE_STATES[state]),
      h("td", null, op),
      h("td", null, h("code", null, name)),
      owned && h("td", null, rewriteModule(owner)),
    );
  const table = h("table", { class: "plain rewrites-tags" }, h("thead", null, h("tr", null, heads)), h("tbody", null, nodes.map(row)));
  const title = h("summary", null, `${owned ? "Nodes and their modules" : "Nodes"} (${fmt.count(nodes.length)})`);
  return h("details", { open: nodes.length <= REWRITE_FEW }, title, h("div", { class: "scroll" }, table));
}

function rewriteOrigins({ origins, root }, wired) {
  const links = (paths) => paths.flatMap((path, at) => [at ? ", " : "", rewriteModule(path)]);
  const rest = origins.slice(REWRITE_ORIGINS);
  return h(
    "div",
    { class: "rewrites-origins" },
    "The result stands for work of ",
    origins.length ? links(origins.slice(0, REWRITE_ORIGINS)) : "no module that is known",
    rest.length ? h("details", null, h("summary", null, `and ${fmt.plural(rest.length, "more module")}`), links(rest)) : null,
    wired ? "; the value it replaced is " : "; in the record it is called ",
    h("code", null, root),
    ".",
  );
}
