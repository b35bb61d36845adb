// Where nodes run on a device, as placement predicts: classes of boxes, legend, and reasons in words.

// What becomes of nodes, the worst first, with the class of their boxes and the words of the legend.
const DEVICE_PLACES = [
  ["fails", "nested-fails", "not supported: the model does not load"],
  ["wrong", "nested-fails", "other values than on the CPU"],
  ["elsewhere", "nested-heat", "falls back to the CPU"],
  ["depends", "nested-unmeasured", "depends on attributes"],
  ["unknown", "nested-unmeasured", "not measured"],
  ["host", "nested-sizes", "computes sizes, on the CPU on purpose"],
];

/** Returns by device a map from each node that is not on the device to [what becomes of it, why]. */
function readPlaces(placed, { devices, reasons }) {
  return new Map(devices.map((device, at) => {
    const nodes = new Map();
    for (let place = 0; place < placed[at].length; place += 2) nodes.set(placed[at][place], reasons[placed[at][place + 1]]);
    return [device, nodes];
  }));
}

/** Returns how many nodes of a box have each place other than the device. */
function placesIn(graph, box, device) {
  const known = (box.places ??= new Map());
  if (!known.has(device)) {
    const counts = {};
    if (box.kind === "op") {
      const place = graph.places.get(device).get(box.node)?.[0];
      if (place) counts[place] = 1;
    } else {
      for (const child of box.children) for (const [place, count] of Object.entries(placesIn(graph, child, device))) counts[place] = (counts[place] ?? 0) + count;
    }
    known.set(device, counts);
  }
  return known.get(device);
}

/** Returns how many nodes of a box do not run on a device, those that compute sizes left out. */
function awayIn(graph, box, device) {
  return Object.entries(placesIn(graph, box, device)).reduce((sum, [place, count]) => (place === "host" ? sum : sum + count), 0);
}

/** Returns the class of a box and its share of the colour in percent, null if all of it runs on the device. */
function deviceColor(graph, box, device) {
  const counts = placesIn(graph, box, device);
  const [place, name] = DEVICE_PLACES.find(([each]) => counts[each]) ?? [];
  if (!place || (place === "host" && box.kind !== "op")) return null;
  return { class: name, share: Math.max(15, Math.round((GRAPH_STRONGEST * counts[place]) / box.nodes)) };
}

/** Returns where a box runs in words. */
function deviceText(graph, box, device) {
  if (box.kind === "op") return graph.places.get(device).get(box.node)?.[1] ?? `runs on ${device}`;
  const away = awayIn(graph, box, device);
  return away ? `${fmt.count(away)} not on ${device}` : `all on ${device}`;
}

/** Returns the items of the legend for a device, with the counts of both graphs. */
function deviceLegend({ before, after }, device) {
  const [old, now] = [before, after].map((graph) => placesIn(graph, graph.root, device));
  const items = DEVICE_PLACES.filter(([place]) => old[place] || now[place]).map(([place, name, words]) =>
    h("li", null, h("span", { class: `nested-swatch ${name}`, style: { "--share": `${GRAPH_STRONGEST}%` } }), `${words}: ${fmt.count(old[place] ?? 0)} → ${fmt.count(now[place] ?? 0)}`));
  return [...items, h("li", null, `all other nodes run on ${device}`)];
}

/** Returns the lines about one node: the devices it runs on, and why it does not run on the others. */
function nodePlaces(graph, node) {
  const on = [...graph.places].filter(([, nodes]) => !nodes.has(node)).map(([device]) => device);
  const others = [...graph.places].filter(([, nodes]) => nodes.has(node));
  const lines = others.map(([device, nodes]) => h("p", null, h("strong", null, device), `: ${nodes.get(node)[1]}.`));
  return [on.length ? h("p", null, `Runs on ${on.join(", ")}.`) : null, ...lines];
}

/** Returns the line about a module that is in one graph or in both: nodes away by device; null if there are none. */
function modulePlaces(sides) {
  const [graph] = sides.map(([each]) => each);
  const parts = [...graph.places.keys()].map((device) => [device, sides.map(([each, box]) => (box ? awayIn(each, box, device) : 0))]);
  const shown = parts.filter(([, counts]) => counts.some(Boolean)).map(([device, [before, after]]) => `${device} ${fmt.count(before)} → ${fmt.count(after)}`);
  return shown.length ? h("p", null, `Nodes that do not run on the device: ${shown.join(", ")}.`) : null;
}
