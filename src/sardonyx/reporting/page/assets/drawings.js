// The contents of a module before and after: its own nodes, the modules below it, and its neighbours.

const DRAWING_KINDS = ["op", "made", "gone", "module", "port"];
const drawingBooks = new WeakMap(); // by model, read on first use

function drawingBook(model) {
  const data = model.data("drawings");
  if (!data) return null;
  if (!drawingBooks.has(model)) {
    const strings = readStrings(data.strings);
    const side = (modules) => new Map(modules.map((module) => [strings[module[0]], module]));
    drawingBooks.set(model, { strings, frames: data.frames, before: side(data.before), after: side(data.after) });
  }
  return drawingBooks.get(model);
}

/** Returns the drawing of a module on one side, the number of boxes if there are too many, null if it does not exist. */
function moduleDrawing(book, side, path) {
  const found = book[side].get(path);
  if (!found) return null;
  const [, at, names, shown] = found;
  if (at < 0) return names;
  const [w, height, boxes, routes] = book.frames[at];
  let open = 0;
  const named = boxes.map(([x, y, width, h, kind, text], index) => {
    const said = book.strings[text >= 0 ? text : shown[open++]];
    return [x, y, width, h, said, DRAWING_KINDS[kind], `${said}, ${book.strings[names[index]] || "(model)"}`];
  });
  const paths = boxes.map(([, , , , kind], index) => (kind >= 3 ? book.strings[names[index]] : null));
  return { w, h: height, boxes: named, routes, paths };
}

/** Draws a module into its host; boxes of modules and neighbours select them. */
function drawModule(host, model, path) {
  const book = drawingBook(model);
  if (!book) {
    host.replaceChildren(h("p", { class: "soft" }, "This run has no graph: optimize the model again to get one."));
    return;
  }
  const [before, after] = ["before", "after"].map((side) => moduleDrawing(book, side, path));
  const same = before && after && JSON.stringify(before) === JSON.stringify(after);
  const sides = same ? [["Before and after", before]] : [["Before", before], ["After", after]];
  host.replaceChildren(
    h("div", { class: "drawings-sides" }, sides.map(([title, drawing]) => drawnSide(title, drawing, book, model, path))),
    h("p", { class: "soft drawings-legend" }, drawingLegend([before, after])),
  );
}

function drawingLegend(drawings) {
  const kinds = new Set(drawings.flatMap((each) => each?.boxes?.map((box) => box[5]) ?? []));
  const said = [
    kinds.has("gone") && "− dashed: removed",
    kinds.has("made") && "+ bold: new",
    kinds.has("module") && "▸ module below, with its number of nodes: choose it to go there",
    kinds.has("port") && "round: what it reads from and hands to",
  ];
  return said.filter(Boolean).join(" · ");
}

function drawnSide(title, drawing, book, model, path) {
  const name = `${path || "(model)"}, ${title.toLowerCase()}`;
  const known = (to) => book.before.has(to) || book.after.has(to);
  const open = (box) => drawing.boxes[box][5] !== "op" && drawing.paths[box] !== null && known(drawing.paths[box]);
  return h(
    "figure",
    { class: "drawings-side", style: { flex: `${drawing?.w ?? 300} 1 ${drawing?.w ? Math.min(drawing.w, 640) * 0.7 : 200}px` } },
    h("figcaption", null, title),
    drawing === null
      ? h("p", { class: "soft" }, "This module does not exist here.")
      : typeof drawing === "number"
        ? h("p", { class: "soft" }, `${fmt.count(drawing)} boxes side by side: too many to be read as a drawing. The modules below it are drawn one by one.`)
        : h("div", { class: "graph-host" }, drawGraph(drawing, { name, can: open, pick: (box) => model.select({ module: drawing.paths[box] }) })),
  );
}
