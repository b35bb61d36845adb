// Draws a graph that was laid out when the page was written. Signs repeat the meaning of colours.

const GRAPH_SIGNS = { made: "+ ", gone: "− ", module: "▸ " };
const GRAPH_WORDS = { made: "new: ", gone: "removed: ", module: "module ", port: "", constant: "constant " };

/**
 * Returns an SVG of a drawing, at most as wide as its host but never too small to read:
 * put it into an element of class "graph-host", which scrolls.
 * name: for screen readers; pick(box): called when a box is clicked; can(box): whether it is clickable, by default all are.
 */
function drawGraph(drawing, { name = "Graph", pick = null, can = null } = {}) {
  const lines = drawing.routes.map(graphLine).join("");
  const heads = drawing.routes.map(graphHead).join("");
  return s(
    "svg",
    {
      class: "graph",
      viewBox: `0 0 ${drawing.w} ${drawing.h}`,
      role: pick ? "group" : "img",
      "aria-label": name,
      style: { width: `${drawing.w}px`, "min-width": `${Math.round(drawing.w * 0.7)}px` },
    },
    s("path", { class: "graph-line", d: lines || "M0 0" }),
    s("path", { class: "graph-head", d: heads || "M0 0" }),
    drawing.boxes.map((box, index) => graphBox(box, pick && (!can || can(index)) ? () => pick(index) : null)),
  );
}

function graphBox([x, y, width, height, text, kind, hover], chosen) {
  const answer = (event) => {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    chosen();
  };
  const said = `${GRAPH_WORDS[kind] ?? ""}${hover || text}`;
  return s(
    "g",
    {
      class: `graph-box graph-${kind}${chosen ? " graph-picked" : ""}`,
      ...(chosen && { role: "button", tabindex: "0", "aria-label": said, on: { click: answer, keydown: answer } }),
    },
    s("title", null, said),
    s("rect", { x, y, width, height, rx: kind === "port" ? height / 2 : kind === "module" ? 6 : 3 }),
    s("text", { x: x + width / 2, y: y + height / 2 + 4 }, `${GRAPH_SIGNS[kind] ?? ""}${text}`),
  );
}

/** Returns the path of an edge: straight down, bent between layers, up to the arrow head. */
function graphLine(route) {
  let d = `M${route[0]} ${route[1]}`;
  for (let at = 2; at < route.length; at += 2) {
    const [x0, y0, x, y] = [route[at - 2], route[at - 1], route[at], route[at + 1]];
    const end = at === route.length - 2 ? y - 5 : y;
    const middle = (y0 + end) / 2;
    d += x === x0 ? `V${end}` : `C${x0} ${middle} ${x} ${middle} ${x} ${end}`;
  }
  return d;
}

function graphHead(route) {
  const [x, y] = route.slice(-2);
  return `M${x} ${y}l-3.5 -7h7z`;
}
