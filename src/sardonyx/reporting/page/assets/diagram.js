// Draws a small graph that does not change. Signs repeat the meaning of colours.

const GRAPH_SIGNS = { made: "+ ", gone: "− " };
const GRAPH_WORDS = { made: "new: ", gone: "removed: " };
const GRAPH_MARGIN = 6;
const GRAPH_BESIDE_TEXT = 30; // of a box: both sides together, with space for a sign

/** Lays out boxes, given as [text, kind, hover], and edges, given as [from, to], from top to bottom. */
function layOutGraph(boxes, edges) {
  const sizes = boxes.map(([text]) => [graphTextWidth(text, GRAPH_FONT) + GRAPH_BESIDE_TEXT, GRAPH_BOX.op]);
  return { boxes, sizes, ...placeBoxes(sizes, edges.map(([from, to]) => [from, to, 0])) };
}

/**
 * Returns an SVG of a graph, at most as wide as its host but never too small to read:
 * put it into an element of class "graph-host", which scrolls. `name` is for screen readers.
 */
function drawGraph({ boxes, sizes, places, routes, width, height }, name) {
  const [lines, heads] = [graphRoute, graphArrow].map((draw) => routes.map(({ points }) => draw(points, 0, 0)).join(""));
  const wide = Math.ceil(width) + 2 * GRAPH_MARGIN;
  return s(
    "svg",
    {
      class: "graph",
      viewBox: `${-GRAPH_MARGIN} ${-GRAPH_MARGIN} ${wide} ${Math.ceil(height) + 2 * GRAPH_MARGIN}`,
      role: "img",
      "aria-label": name,
      style: { width: `${wide}px`, "min-width": `${Math.round(wide * 0.7)}px` },
    },
    s("path", { class: "graph-line", d: lines || "M0 0" }),
    s("path", { class: "graph-head", d: heads || "M0 0" }),
    boxes.map((box, at) => graphBox(box, places[at], sizes[at])),
  );
}

function graphBox([text, kind, hover], [x, y], [width, height]) {
  return s(
    "g",
    { class: `graph-box graph-${kind}` },
    s("title", null, `${GRAPH_WORDS[kind] ?? ""}${hover}`),
    s("rect", { x, y, width, height, rx: kind === "port" ? height / 2 : 3 }),
    s("text", { x: x + width / 2, y: y + height / 2 + 4 }, `${GRAPH_SIGNS[kind] ?? ""}${text}`),
  );
}
