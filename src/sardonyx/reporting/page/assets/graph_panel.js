// One graph as a drawing that is zoomed and moved. Only boxes in and near the visible part are elements of the page.

const GRAPH_SCALES = [0.1, 2.5];
const GRAPH_READABLE = 0.45; // scale from which on texts are drawn
const GRAPH_COMFORTABLE = 0.5; // scale below which opening a box does not zoom out
const GRAPH_SMALLEST = 3; // pixels; smaller boxes are not drawn
const GRAPH_CHANGES = { before: "removed", after: "new" };

const graphPanels = new WeakMap(); // by element

class GraphPanel {
  /** owner: what answers to clicks, and knows what is open, chosen and coloured; top: the box whose contents are drawn. */
  constructor(owner, graph, side, top) {
    this.owner = owner;
    this.graph = graph;
    this.side = side;
    this.top = top;
    this.sizes = new Map(); // layouts of open boxes
    this.printed = null; // the view to return to after printing
    this.view = null; // {x, y, scale}: the point of the drawing at the upper left corner
    this.active = null; // key of the box that Tab reaches
    this.marked = new Set(); // boxes that correspond to the chosen one of the other graph
    this.world = s("g", null);
    this.svg = s("svg", { class: "nested", role: "group", "aria-label": `Graph ${side}` }, this.world);
    this.element = h("div", { class: "nested-host" }, this.svg);
    graphPanels.set(this.element, this);
    this.listen();
  }

  isOpen(box) {
    return box === this.top || this.owner.open.has(box.key);
  }

  /** Returns the size of a box, and the layout of what is in it if it is open. */
  layout(box) {
    if (!box.children || !this.isOpen(box)) return this.closed(box);
    if (!this.sizes.has(box)) {
      const { boxes, edges } = this.graph.contents(box);
      const inner = boxes.map((each) => this.layout(each));
      const at = new Map(boxes.map((each, place) => [each, place]));
      const texts = edges.map((edge) => (edge.reshapes ? graphEdgeText(edge) : ""));
      const placed = placeBoxes(
        inner.map(({ width, height }) => [width, height]),
        edges.map(({ from, to }, place) => [at.get(from), at.get(to), texts[place] ? graphTextWidth(texts[place], GRAPH_LABEL_FONT) + 6 : 0]),
      );
      const title = graphTextWidth(graphShort(box.label), GRAPH_FONT) + 50;
      const head = box === this.top ? 0 : GRAPH_HEADER;
      const width = Math.max(placed.width + 2 * GRAPH_PADDING, title);
      const left = (width - placed.width) / 2;
      this.sizes.set(box, { width, height: placed.height + head + 2 * GRAPH_PADDING, left, top: head + GRAPH_PADDING, boxes, edges, texts, placed });
    }
    return this.sizes.get(box);
  }

  closed(box) {
    const text = graphTextWidth(graphShort(box.label), GRAPH_FONT);
    const below = box.children ? graphTextWidth(graphNodesText(box, GRAPH_CHANGES[this.side]), GRAPH_LABEL_FONT) : 0;
    return { width: Math.max(text + 30, below + 20), height: GRAPH_BOX[box.kind] };
  }

  /** Applies a change of what is open; the layouts of the box and of those around it are computed again. */
  changed(box) {
    for (let each = box; each; each = each.parent) this.sizes.delete(each);
  }

  /** Returns the place of a box in the drawing; the boxes around it must be open. */
  place(box) {
    if (box === this.top) return { x: 0, y: 0, ...this.layout(box) };
    const around = this.place(box.parent);
    const { placed, boxes, left, top } = this.layout(box.parent);
    const [x, y] = placed.places[boxes.indexOf(box)];
    return { x: around.x + left + x, y: around.y + top + y, ...this.layout(box) };
  }

  /** Returns the box itself, or the closed one around it that is shown instead. */
  shown(box) {
    const around = [];
    for (let each = box.parent; each; each = each.parent) around.unshift(each);
    return around.find((each) => !this.isOpen(each)) ?? box;
  }

  /** Shows the whole drawing, or its upper part if it would be too small to read; on paper always the whole. */
  fit() {
    const { width, height } = this.layout(this.top);
    const [w, h] = this.panelSize();
    const whole = Math.min(w / width, h / height, 1);
    const scale = this.printed ? whole : Math.min(Math.max(whole, Math.min(w / width, GRAPH_COMFORTABLE), GRAPH_SCALES[0]), 1);
    this.view = { scale, x: (width - w / scale) / 2, y: height * scale > h ? 0 : (height - h / scale) / 2 };
    this.draw();
  }

  /** Shows everything while the page is printed. */
  print(isPrinted) {
    if (isPrinted) this.printed = this.view;
    else if (this.printed) [this.view, this.printed] = [this.printed, null];
    if (isPrinted) this.fit();
    else this.draw();
  }

  get isReadable() {
    return Boolean(this.printed) || this.view.scale >= GRAPH_READABLE;
  }

  panelSize() {
    return [this.element.clientWidth || 560, this.element.clientHeight || 560];
  }

  zoom(factor, x = this.panelSize()[0] / 2, y = this.panelSize()[1] / 2) {
    const { scale } = this.view;
    const next = Math.min(Math.max(scale * factor, GRAPH_SCALES[0]), GRAPH_SCALES[1]);
    this.view = { scale: next, x: this.view.x + x / scale - x / next, y: this.view.y + y / scale - y / next };
    this.draw();
  }

  /** Moves so that a box is seen, and zooms out if it does not fit, as long as texts can be read. */
  bring(box, { center = false } = {}) {
    const place = this.place(box);
    const [wide, high] = this.panelSize();
    const fitting = Math.min(wide / (place.width + 32), high / (place.height + 32));
    const scale = Math.min(this.view.scale, Math.max(fitting, GRAPH_COMFORTABLE));
    const margin = 16 / scale;
    const near = (from, start, size, visible) => {
      if (center) return start + size / 2 - visible / 2;
      return Math.min(Math.max(from, start + size + margin - visible), start - margin);
    };
    const tall = place.height + 2 * margin > high / scale;
    const broad = place.width + 2 * margin > wide / scale;
    this.view = {
      scale,
      x: broad ? place.x + place.width / 2 - wide / scale / 2 : near(this.view.x, place.x, place.width, wide / scale),
      y: tall ? place.y - margin : near(this.view.y, place.y, place.height, high / scale),
    };
    this.draw();
  }

  /** Moves and zooms so that all of some boxes are seen, as large as they may be up to the present scale. */
  bringAll(boxes) {
    const places = boxes.map((box) => this.place(box));
    const [left, top] = [Math.min(...places.map(({ x }) => x)), Math.min(...places.map(({ y }) => y))];
    const right = Math.max(...places.map(({ x, width }) => x + width));
    const bottom = Math.max(...places.map(({ y, height }) => y + height));
    const [wide, high] = this.panelSize();
    const fitting = Math.min(wide / (right - left + 48), high / (bottom - top + 48));
    const scale = Math.max(Math.min(Math.max(this.view.scale, GRAPH_COMFORTABLE), fitting), GRAPH_SCALES[0]);
    this.view = { scale, x: (left + right - wide / scale) / 2, y: (top + bottom - high / scale) / 2 };
    this.touched = true;
    this.draw();
  }

  /** Draws what is in and near the visible part. */
  draw() {
    const held = this.world.contains(document.activeElement);
    const [w, h] = this.panelSize();
    const { x, y, scale } = this.view;
    this.part = { left: x - w / scale / 2, top: y - h / scale / 2, right: x + (1.5 * w) / scale, bottom: y + (1.5 * h) / scale };
    this.drawn = new Map();
    const parts = [];
    this.drawInside(this.top, 0, 0, parts);
    if (!this.drawn.has(this.active)) this.active = this.drawn.keys().next().value ?? null;
    this.drawn.get(this.active)?.element.setAttribute("tabindex", "0");
    this.world.replaceChildren(...parts);
    this.move();
    if (held) this.drawn.get(this.active)?.element.focus({ preventScroll: true });
  }

  move() {
    const [w, h] = this.panelSize();
    const { x, y, scale } = this.view;
    this.svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    this.world.setAttribute("transform", `scale(${scale.toFixed(4)}) translate(${(-x).toFixed(1)} ${(-y).toFixed(1)})`);
  }

  isNear(x, y, width, height) {
    const { left, top, right, bottom } = this.part;
    return x < right && x + width > left && y < bottom && y + height > top;
  }

  drawInside(box, x, y, parts) {
    const { boxes, edges, texts, placed, left, top } = this.layout(box);
    const [dx, dy] = [x + left, y + top];
    const seen = placed.routes.filter(({ points }) => this.isNear(...graphExtent(points, dx, dy)));
    if (seen.length) {
      parts.push(s("path", { class: "nested-line", d: seen.map(({ points }) => graphRoute(points, dx, dy)).join("") }));
      parts.push(s("path", { class: "nested-arrow", d: seen.map(({ points }) => graphArrow(points, dx, dy)).join("") }));
    }
    for (const [at, each] of boxes.entries()) this.drawBox(each, dx + placed.places[at][0], dy + placed.places[at][1], parts);
    if (!this.isReadable) return;
    for (const [at, { label, points }] of placed.routes.entries()) {
      if (!texts[at] || !label || !this.isNear(...graphExtent(points, dx, dy))) continue;
      const title = s("title", null, [...edges[at].types].join("\n"));
      const width = graphTextWidth(texts[at], GRAPH_LABEL_FONT) + 4;
      parts.push(s("rect", { class: "nested-halo", x: label[0] + dx - width / 2, y: label[1] + dy - 7, width, height: 14, rx: 4 }));
      parts.push(s("text", { class: "nested-type", x: label[0] + dx, y: label[1] + dy + 3 }, title, texts[at]));
    }
  }

  drawBox(box, x, y, parts) {
    const { width, height } = this.layout(box);
    if (!this.isNear(x, y, width, height) || (!this.printed && height * this.view.scale < GRAPH_SMALLEST)) return;
    const open = Boolean(box.children) && this.isOpen(box);
    const element = this.boxElement(box, x, y, width, height, open);
    this.drawn.set(box.key, { box, element, x, y, width, height });
    parts.push(element);
    if (open) this.drawInside(box, x, y, parts);
  }

  boxElement(box, x, y, width, height, open) {
    const name = this.describe(box, open);
    const color = this.owner.colors.of(this.graph, box, this.side);
    const props = {
      class: ["nested-box", `nested-${this.kind(box)}`, open && "nested-open", this.owner.chosen === box && "nested-chosen", this.marked.has(box) && "nested-marked", color?.class].filter(Boolean).join(" "),
      role: "button", tabindex: "-1", "aria-label": name, dataset: { key: box.key },
      "aria-expanded": box.children ? String(open) : null,
      style: color?.share === undefined ? null : { "--share": `${color.share}%` },
    };
    const rounded = { port: height / 2, op: 3 }[box.kind] ?? 6;
    const rect = s("rect", { x, y, width, height, rx: rounded });
    if (!this.isReadable && !open && box.kind !== "module") return s("g", props, s("title", null, name), rect);
    return s("g", props, s("title", null, name), rect, this.texts(box, x, y, width, height, open));
  }

  texts(box, x, y, width, height, open) {
    const sign = { made: "+ ", gone: "− " }[this.kind(box)] ?? (box.children ? (open ? "▾ " : "▸ ") : "");
    const middle = x + width / 2;
    const line = (text, dy, name) => s("text", { class: name, x: middle, y: y + dy }, text);
    if (open) {
      const left = Math.max(x, Math.min(this.view.x, x + width - 120)); // also seen if the box begins further left
      return [s("text", { class: "nested-name nested-title", x: left + 10, y: y + 19 }, sign + graphShort(box.label))];
    }
    const name = line(sign + graphShort(box.label), box.children ? 18 : height / 2 + 4, "nested-name");
    return box.children ? [name, line(graphNodesText(box, GRAPH_CHANGES[this.side]), 33, "nested-count")] : [name];
  }

  kind(box) {
    if (box.kind !== "op" || !this.graph.rewrites.has(box.node)) return box.kind;
    return this.side === "before" ? "gone" : "made";
  }

  describe(box, open) {
    if (box.kind === "port") return box.label;
    const cost = this.owner.colors.text(this.graph, box, this.side);
    if (box.kind !== "op") return [`${box.kind} ${box.label}`, graphNodesText(box, GRAPH_CHANGES[this.side]), cost].filter(Boolean).join(", ") + (open ? ", open" : "");
    const change = this.graph.rewrites.has(box.node) ? `${GRAPH_CHANGES[this.side]}: ` : "";
    return [`${change}${box.label} ${this.graph.names[box.node]}`, cost].filter(Boolean).join(", ");
  }

  /** Puts the focus on a box that is drawn. */
  focus(box) {
    this.activate(box.key);
    this.drawn.get(box.key)?.element.focus({ preventScroll: true });
  }

  activate(key) {
    this.drawn.get(this.active)?.element.setAttribute("tabindex", "-1");
    this.active = key;
    this.drawn.get(key)?.element.setAttribute("tabindex", "0");
  }

  listen() {
    const boxAt = (event) => this.drawn?.get(event.target.closest?.("[data-key]")?.dataset.key)?.box;
    this.svg.addEventListener("click", (event) => {
      const box = boxAt(event);
      if (box && !this.dragged) this.answer(box);
    });
    this.svg.addEventListener("focusin", (event) => {
      const box = boxAt(event);
      if (box && box.key !== this.active) this.activate(box.key);
    });
    this.svg.addEventListener("keydown", (event) => {
      const box = boxAt(event);
      if (!box || event.ctrlKey || event.metaKey || event.altKey || !this.press(event.key, box)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const { left, top } = this.svg.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top);
    }, { passive: false });
    this.listenToDrag();
    new ResizeObserver(() => this.view && (this.touched ? this.draw() : this.fit())).observe(this.element);
  }

  listenToDrag() {
    const down = new Map(); // where each pointer that is down is now
    let from = null;
    let apart = null; // the distance of two fingers
    const spread = () => {
      const [[x, y], [u, v]] = [...down.values()];
      return { far: Math.hypot(u - x, v - y), x: (x + u) / 2, y: (y + v) / 2 };
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      down.set(event.pointerId, [event.clientX, event.clientY]);
      apart = down.size === 2 ? spread() : null;
      from = { x: event.clientX, y: event.clientY, view: this.view };
      this.dragged = false;
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from || !event.buttons) return;
      if (down.has(event.pointerId)) down.set(event.pointerId, [event.clientX, event.clientY]);
      if (apart && down.size === 2) {
        const now = spread();
        const { left, top } = this.svg.getBoundingClientRect();
        this.dragged = this.touched = true;
        this.view = { ...this.view, x: this.view.x - (now.x - apart.x) / this.view.scale, y: this.view.y - (now.y - apart.y) / this.view.scale };
        this.zoom(now.far / apart.far, now.x - left, now.y - top);
        apart = now;
        return;
      }
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (!this.dragged && Math.hypot(dx, dy) < 4) return;
      if (!this.dragged) this.svg.setPointerCapture(event.pointerId);
      this.dragged = this.touched = true;
      this.view = { ...this.view, x: from.view.x - dx / this.view.scale, y: from.view.y - dy / this.view.scale };
      const [w, h] = this.panelSize().map((size) => size / this.view.scale);
      const { left, top, right, bottom } = this.part;
      if (this.view.x < left || this.view.y < top || this.view.x + w > right || this.view.y + h > bottom) this.draw();
      else this.move();
    });
    for (const end of ["pointerup", "pointercancel"]) {
      this.svg.addEventListener(end, (event) => {
        down.delete(event.pointerId);
        apart = null;
        if (from && this.dragged) this.draw();
        from = down.size ? { x: [...down.values()][0][0], y: [...down.values()][0][1], view: this.view } : null;
      });
    }
  }

  /** Opens or closes a module, follows a port, or chooses an operator. */
  answer(box) {
    this.touched = true;
    this.activate(box.key);
    if (box.children) this.owner.toggle(box, this);
    else if (box.kind === "op") this.owner.choose(box, this);
    else if (box.to) this.owner.reveal(box.to, this);
  }

  /** Handles a key on a box; returns whether it was a known one. */
  press(key, box) {
    const ways = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };
    if (key === "Enter" || key === " ") this.answer(box);
    else if (Object.hasOwn(ways, key)) this.step(box, ...ways[key]);
    else if (key === "Escape" && box.children && this.isOpen(box)) this.owner.toggle(box, this);
    else if (key === "Escape" && box.parent && box.parent !== this.top) this.owner.toggle(box.parent, this);
    else if (key === "+" || key === "=") this.zoom(1.25);
    else if (key === "-") this.zoom(0.8);
    else if (key === "0") this.fit();
    else return false;
    return true;
  }

  /** Goes to the nearest box in a direction. */
  step(box, dx, dy) {
    const center = (spot) => [spot.x + spot.width / 2, spot.y + (Boolean(spot.box.children) && this.isOpen(spot.box) ? GRAPH_HEADER : spot.height) / 2];
    const [x0, y0] = center(this.drawn.get(box.key));
    let [best, least] = [null, Infinity];
    for (const spot of this.drawn.values()) {
      const [x, y] = center(spot);
      const [along, beside] = [(x - x0) * dx + (y - y0) * dy, Math.abs((x - x0) * dy) + Math.abs((y - y0) * dx)];
      const far = along + 2 * beside;
      if (along > 1 && spot.box !== box && far < least) [best, least] = [spot.box, far];
    }
    if (!best) return;
    this.touched = true;
    this.active = best.key;
    this.bring(best);
    this.focus(best);
  }
}

/** Returns the smallest rectangle around the points of an edge. */
function graphExtent(points, dx, dy) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return [left + dx - 1, top + dy - 1, Math.max(...xs) - left + 2, Math.max(...ys) - top + 2];
}

for (const event of ["beforeprint", "afterprint"]) {
  addEventListener(event, () => {
    for (const host of document.querySelectorAll(".nested-host")) graphPanels.get(host)?.print(event === "beforeprint");
  });
}
