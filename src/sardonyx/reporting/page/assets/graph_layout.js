// Sizes and positions of boxes. The library places the boxes of one module at a time; equal modules share the result.

const GRAPH_FONT = 12; // pixels; graph.css has the same
const GRAPH_LABEL_FONT = 10;
const GRAPH_LONGEST = 34; // characters of a label
const GRAPH_BOX = { op: 26, port: 22, module: 42, group: 42 }; // heights of closed boxes
const GRAPH_HEADER = 30; // of an open box
const GRAPH_PADDING = 12;
const GRAPH_SPACE = { rankdir: "TB", nodesep: 16, ranksep: 28, edgesep: 10, ranker: "network-simplex", align: "UL" };

const graphPlaced = new Map(); // by the form of the contents
const graphWidths = new Map(); // by text
const graphPen = document.createElement("canvas").getContext("2d");

/** Returns the width of a text in pixels. */
function graphTextWidth(text, size) {
  const key = `${size} ${text}`;
  if (!graphWidths.has(key)) {
    graphPen.font = `${size}px system-ui, sans-serif`;
    graphWidths.set(key, Math.ceil(graphPen.measureText(text).width));
  }
  return graphWidths.get(key);
}

/** Returns a name that fits into a box: its end is cut. */
function graphShort(text, longest = GRAPH_LONGEST) {
  const chars = Array.from(visible(text));
  return chars.length <= longest ? chars.join("") : `${chars.slice(0, longest - 1).join("")}…`;
}

/** Returns the text on an edge: its shape, or the first one and how many others there are. */
function graphEdgeText({ types }) {
  const [first, ...others] = types;
  return first === undefined ? "" : graphShort(shortType(first), 26) + (others.length ? ` +${others.length}` : "");
}

/** Returns the second line of a closed module. */
function graphNodesText(box, change) {
  const nodes = fmt.plural(box.nodes, "node");
  return box.changed ? `${nodes}, ${fmt.count(box.changed)} ${change}` : nodes;
}

/** Places boxes of the given sizes: edges are [from, to, width of the text]. */
function placeBoxes(sizes, edges) {
  const form = JSON.stringify([sizes, edges]);
  if (!graphPlaced.has(form)) graphPlaced.set(form, placedByLibrary(sizes, edges));
  return graphPlaced.get(form);
}

function placedByLibrary(sizes, edges) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ ...GRAPH_SPACE });
  for (const [at, [width, height]] of sizes.entries()) graph.setNode(String(at), { width, height });
  for (const [from, to, width] of edges) graph.setEdge(String(from), String(to), { width, height: width ? GRAPH_LABEL_FONT + 4 : 0, labelpos: "c" });
  dagre.layout(graph);
  const places = sizes.map(([width, height], at) => {
    const { x, y } = graph.node(String(at));
    return [x - width / 2, y - height / 2];
  });
  const routes = edges.map(([from, to]) => {
    const { points, x, y } = graph.edge(String(from), String(to));
    return { points: points.map((point) => [point.x, point.y]), label: x === undefined ? null : [x, y] };
  });
  return { places, routes, ...bounds(sizes, places, routes, edges) };
}

/** Returns the size of everything, and moves it to the origin. */
function bounds(sizes, places, routes, edges) {
  const xs = [...places.flatMap(([x], at) => [x, x + sizes[at][0]]), ...routes.flatMap(({ points }) => points.map(([x]) => x))];
  const ys = [...places.flatMap(([, y], at) => [y, y + sizes[at][1]]), ...routes.flatMap(({ points }) => points.map(([, y]) => y))];
  for (const [at, { label }] of routes.entries()) if (label) xs.push(label[0] - edges[at][2] / 2, label[0] + edges[at][2] / 2);
  const [left, top] = [Math.min(...xs, Infinity), Math.min(...ys, Infinity)];
  for (const place of [...places, ...routes.flatMap(({ points, label }) => [...points, ...(label ? [label] : [])])]) {
    place[0] -= left;
    place[1] -= top;
  }
  return sizes.length ? { width: Math.max(...xs) - left, height: Math.max(...ys) - top } : { width: 0, height: 0 };
}

/** Returns the path of an edge through its points, bent at each. */
function graphRoute(points, dx, dy) {
  const at = ([x, y]) => `${Math.round(x + dx)} ${Math.round(y + dy)}`;
  const middle = ([x0, y0], [x, y]) => [(x0 + x) / 2, (y0 + y) / 2];
  let path = `M${at(points[0])}`;
  for (let place = 1; place < points.length - 1; place++) path += `Q${at(points[place])} ${at(middle(points[place], points[place + 1]))}`;
  return `${path}L${at(points.at(-1))}`;
}

/** Returns the arrow head at the end of an edge. */
function graphArrow(points, dx, dy) {
  const [[x0, y0], [x, y]] = points.slice(-2);
  const length = Math.hypot(x - x0, y - y0) || 1;
  const [ux, uy] = [(x - x0) / length, (y - y0) / length];
  const corner = (side) => `${(x + dx - 7 * ux - 3.5 * side * uy).toFixed(1)} ${(y + dy - 7 * uy + 3.5 * side * ux).toFixed(1)}`;
  return `M${(x + dx).toFixed(1)} ${(y + dy).toFixed(1)}L${corner(1)}L${corner(-1)}Z`;
}
