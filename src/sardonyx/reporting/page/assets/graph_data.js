// One graph of a run as a tree of boxes: modules, groups of very many boxes, and operators. All but the top start closed.

const MOST_BOXES = 48; // in one module; more are put into groups
const SHORTEST_RUN = 4; // operators that become a group
const DEEPEST_PATH = 32; // names of a path; deeper nodes are shown at this level
const MOST_ENDS = 4; // edges of one box to its consumers; more are replaced by ports
const SHORTEST_STACK = 3; // equal layers that become a group
const MOST_PORTS = 6; // neighbours of a module in one direction; more are shown as one

class Graph {
  /** forms: by path of a module, a text that is the same for equal layers (see graphForms). */
  constructor(data, tables) {
    const { strings, operators, types, times = null, forms = new Map() } = tables;
    this.forms = forms;
    this.names = data.names.map((at) => strings[at]);
    this.ops = data.ops.map((at) => operators[at]);
    this.types = types;
    this.times = times; // of modules
    this.places = readPlaces(data.placed, tables); // by device: nodes that are not on it
    this.costs = { time: data.time, flops: data.flops, bytes: data.bytes };
    this.rewrites = new Map(data.changed); // by node: those that the other graph does not have
    this.edges = data.back.map(() => null);
    let at = 0;
    for (const [node, degree] of data.degrees.entries()) {
      for (let end = at + degree; at < end; at++) this.edges[at] = [node - data.back[at], node, data.types[at]];
    }
    this.details = data.operands && {
      attributes: data.attributes,
      operands: data.operands.map((names) => names.map((name) => strings[name])),
      results: data.results.map((names) => names.map((name) => strings[name])),
      types: new Map(data.value_types.map(([name, type]) => [strings[name], type])),
      weights: new Map(data.weights.map(([name, type, low, high, histogram, odd]) => [strings[name], { type, low, high, histogram, odd }])),
    };
    this.inputs = data.inputs.map(([name, type, nodes]) => ({ name: strings[name], type, nodes }));
    this.outputs = data.outputs.map(([name, type, node]) => ({ name: strings[name], type, nodes: node < 0 ? [] : [node] }));
    this.modules = new Map(); // by path
    this.groups = new Map(); // by key
    this.boxes = []; // of the nodes
    this.build(data.modules.map((path) => strings[path]), data.owners);
    this.known = new Map(); // contents of boxes
  }

  build(paths, owners) {
    this.root = this.module("", null);
    const homes = paths.map((path) => this.home(path));
    for (const [node, owner] of owners.entries()) {
      const [top, ...below] = homes[owner];
      let home = top;
      for (const path of below) home = this.modules.get(path) ?? this.module(path, home);
      const box = { kind: "op", key: `node ${node}`, node, label: this.ops[node], parent: home };
      home.children.push(box);
      this.boxes.push(box);
    }
    this.join(this.root);
    this.top();
    this.stack(this.root);
    this.split(this.root);
    this.count(this.root, 0, 0);
  }

  module(path, parent) {
    const box = { kind: "module", key: `module ${path}`, path, label: path || "(model)", parent, children: [] };
    this.modules.set(path, box);
    parent?.children.push(box);
    return box;
  }

  /** Returns the model and the paths of the modules down to one. */
  home(path) {
    const names = path ? path.split(".").slice(0, DEEPEST_PATH) : [];
    return [this.root, ...names.map((_, at) => names.slice(0, at + 1).join("."))];
  }

  /** Shows a container of one module as that module. */
  join(box) {
    box.children = box.children.map((child) => {
      const paths = [];
      let inner = child;
      while (inner.kind === "module" && inner.children.length === 1 && inner.children[0].kind === "module") {
        paths.push(inner.path);
        [inner] = inner.children;
      }
      for (const path of paths) this.modules.set(path, inner);
      inner.parent = box;
      if (inner.kind === "module") {
        inner.label = box.path ? inner.path.slice(box.path.length + 1) : inner.path;
        this.join(inner);
      }
      return inner;
    });
  }

  /** Shows the contents of the model, or of the only module in it. */
  top() {
    while (this.root.children.length === 1 && this.root.children[0].children) [this.root] = this.root.children;
    this.root.parent = null;
    this.modules.set("", this.root);
  }

  /** Puts equal layers that follow each other into one group. */
  stack(box) {
    const runs = [];
    for (const child of box.children) {
      const form = child.kind === "module" ? this.forms.get(child.path) : undefined;
      if (form !== undefined && runs.at(-1)?.form === form) runs.at(-1).layers.push(child);
      else runs.push({ form, layers: [child] });
    }
    for (const child of box.children) if (child.children) this.stack(child);
    if (runs.length === 1 && box.parent === null) return;
    box.children = runs.flatMap(({ layers }) => (layers.length < SHORTEST_STACK ? layers : [this.stacked(box, layers)]));
  }

  stacked(box, layers) {
    const group = this.group(box, layers);
    group.label = `${layers[0].label} … ${layers.at(-1).label} ×${layers.length}`;
    return group;
  }

  /** Puts the boxes of a module with very many into groups: consecutive operators, or else all boxes, in execution order. */
  split(box) {
    if (box.children.length > MOST_BOXES && box.children.some(({ kind }) => kind === "module")) this.splitRuns(box);
    const all = box.children;
    if (all.length > MOST_BOXES) {
      let size = MOST_BOXES;
      while (all.length > size * MOST_BOXES) size *= MOST_BOXES;
      box.children = [];
      for (let from = 0; from < all.length; from += size) box.children.push(this.group(box, all.slice(from, from + size)));
    }
    for (const child of box.children) if (child.children) this.split(child);
  }

  splitRuns(box) {
    const runs = [];
    for (const child of box.children) {
      if (child.kind === "op" && runs.at(-1)?.[0].kind === "op") runs.at(-1).push(child);
      else runs.push([child]);
    }
    box.children = runs.flatMap((run) => (run.length < SHORTEST_RUN ? run : [this.group(box, run)]));
  }

  group(parent, children) {
    const [first, last] = [children[0], children.at(-1)];
    const named = first.kind === "module" && last.kind === "module";
    const label = named ? `${first.label} … ${last.label}` : `${[...new Set(children.map((child) => child.label))].slice(0, 3).join(", ")} …`;
    const group = { kind: "group", key: `group ${first.key}, ${children.length}`, path: parent.path, label, parent, children };
    for (const child of children) child.parent = group;
    this.groups.set(group.key, group);
    return group;
  }

  /** Numbers the boxes, so that a box contains those with numbers between its own and its last one. */
  count(box, number, depth) {
    box.number = number;
    box.depth = depth;
    box.nodes = box.kind === "op" ? 1 : 0;
    box.changed = box.kind === "op" && this.rewrites.has(box.node) ? 1 : 0;
    let last = number;
    for (const child of box.children ?? []) {
      last = this.count(child, last + 1, depth + 1);
      box.nodes += child.nodes;
      box.changed += child.changed;
    }
    box.last = last;
    return last;
  }

  contains(box, node) {
    const { number } = this.boxes[node];
    return box.number <= number && number <= box.last;
  }

  /** Returns the box directly in another one that contains a node. */
  childOf(box, node) {
    let found = this.boxes[node];
    while (found.parent !== box) found = found.parent;
    return found;
  }

  /** Returns the largest box that contains one node and not the other. */
  apart(node, other) {
    let found = this.boxes[node];
    while (!this.contains(found.parent, other)) found = found.parent;
    return found;
  }

  /** Returns the nodes in a box. */
  nodesIn(box) {
    if (box.kind === "op") return [box.node];
    return box.children.flatMap((child) => this.nodesIn(child));
  }

  /** Returns the boxes directly in a box, its neighbours as ports, and the edges between them. */
  contents(box) {
    if (!this.known.has(box)) this.known.set(box, new Contents(this, box).done());
    return this.known.get(box);
  }

  /** Returns the sum of a cost over the nodes of a box, undefined if it was not recorded. */
  cost(box, kind) {
    const column = this.costs[kind];
    if (!column) return undefined;
    if (box.kind === "op") return column[box.node];
    if (kind === "time" && box.kind === "module" && this.times?.has(box.path)) return this.times.get(box.path);
    box.sums ??= {};
    return (box.sums[kind] ??= box.children.reduce((sum, child) => sum + this.cost(child, kind), 0));
  }

  typeOf(type) {
    return type < 0 ? "" : this.types[type];
  }
}

/** The contents of one box while they are collected. */
class Contents {
  constructor(graph, box) {
    this.graph = graph;
    this.box = box;
    this.ports = new Map();
    this.edges = new Map();
  }

  collect() {
    const { graph, box } = this;
    for (const [producer, consumer, type] of graph.edges) {
      const [made, read] = [graph.contains(box, producer), graph.contains(box, consumer)];
      if (made && read) this.connect(graph.childOf(box, producer), graph.childOf(box, consumer), type);
      else if (read) this.connect(this.port("from", graph.apart(producer, consumer)), graph.childOf(box, consumer), type);
      else if (made) this.connect(graph.childOf(box, producer), this.port("to", graph.apart(consumer, producer)), type);
    }
    for (const [way, ends] of [["input", graph.inputs], ["output", graph.outputs]]) {
      for (const { name, type, nodes } of ends) {
        for (const node of nodes) if (graph.contains(box, node)) this.end(way, name, graph.childOf(box, node), type);
      }
    }
  }

  port(way, to) {
    return this.newPort(`${way} ${to.key}`, way, `${way} ${to.label}`, to);
  }

  end(way, name, child, type) {
    const port = this.newPort(`${way} ${name}`, way, `${way} ${name}`, null);
    if (way === "input") this.connect(port, child, type);
    else this.connect(child, port, type);
  }

  newPort(name, way, label, to) {
    const key = `${this.box.key} ${name}`;
    if (!this.ports.has(key)) this.ports.set(key, { kind: "port", key, way, label, to, parent: this.box });
    return this.ports.get(key);
  }

  connect(from, to, type) {
    if (from === to) return;
    const key = `${from.key}\n${to.key}`;
    if (!this.edges.has(key)) this.edges.set(key, { from, to, types: new Set() });
    if (type >= 0) this.edges.get(key).types.add(this.graph.typeOf(type));
  }

  /** Adds the edges again, with other ends. */
  reconnect(change) {
    const edges = [...this.edges.values()];
    this.edges.clear();
    for (const edge of edges) {
      const [from, to] = change(edge);
      this.connect(from, to, -1);
      for (const type of edge.types) this.edges.get(`${from.key}\n${to.key}`).types.add(type);
    }
  }

  /** Shows very many neighbours in one direction as one. */
  merge() {
    const one = new Map();
    for (const way of ["from", "to", "input", "output"]) {
      const ports = [...this.ports.values()].filter((port) => port.way === way);
      if (ports.length <= MOST_PORTS) continue;
      const label = way === "from" || way === "to" ? `${way} ${fmt.count(ports.length)} places` : fmt.plural(ports.length, way);
      const port = this.newPort(`${way}s`, way, label, null);
      for (const each of ports) one.set(each, port);
    }
    if (one.size) this.reconnect(({ from, to }) => [one.get(from) ?? from, one.get(to) ?? to]);
  }

  /** Replaces the edges of a box with very many consumers, or of a port with very many ends, by ports beside the ends. */
  scatter() {
    const counts = new Map();
    const count = (box) => counts.set(box, (counts.get(box) ?? 0) + 1);
    for (const { from, to } of this.edges.values()) count(to.kind === "port" ? to : from);
    const seen = new Set();
    const copy = (box, end, way) => this.newPort(`${box.key} at ${end.key}`, way, box.kind === "port" ? box.label : `${way} ${box.label}`, box.kind === "port" ? box.to : box);
    this.reconnect(({ from, to }) => {
      if (to.kind === "port") return [from, counts.get(to) > MOST_ENDS ? copy(to, from, to.way) : to];
      if (counts.get(from) <= MOST_ENDS) return [from, to];
      const first = from.kind !== "port" && !seen.has(from);
      seen.add(from);
      return first ? [from, to] : [copy(from, to, from.kind === "port" ? from.way : "from"), to];
    });
  }

  done() {
    this.collect();
    this.merge();
    this.scatter();
    const edges = [...this.edges.values()];
    const received = new Map(); // types that a box reads, by box
    for (const { to, types } of edges) received.set(to, new Set([...(received.get(to) ?? []), ...types]));
    for (const edge of edges) {
      const read = received.get(edge.from);
      edge.reshapes = !read || [...edge.types].some((type) => !read.has(type));
    }
    const ports = new Set(edges.flatMap(({ from, to }) => [from, to]).filter(({ kind }) => kind === "port"));
    return { boxes: [...this.box.children, ...ports], edges };
  }
}

/** Returns by path of a module what is in it on both sides: operators with their places below it, in execution order. */
function graphForms(sides, strings) {
  const forms = new Map();
  for (const [side, { ops, owners, modules }] of sides.entries()) {
    const paths = modules.map((at) => strings[at]);
    const parts = new Map();
    for (const [node, owner] of owners.entries()) {
      const names = paths[owner] ? paths[owner].split(".").slice(0, DEEPEST_PATH) : [];
      for (let depth = 1; depth <= names.length; depth++) {
        if (!/^\d+$/.test(names[depth - 1])) continue; // only members of a list repeat
        const path = names.slice(0, depth).join(".");
        if (!parts.has(path)) parts.set(path, []);
        parts.get(path).push(`${ops[node]}:${names.slice(depth).join(".")}`);
      }
    }
    for (const [path, list] of parts) forms.set(path, `${forms.get(path) ?? ""}|${side} ${list.join(",")}`);
  }
  return forms;
}

/** Returns a type as it is written on an edge: the shape, with the element type if it is not float. */
function shortType(type) {
  const at = type.indexOf("[");
  const [element, dims] = [type.slice(0, at), type.slice(at + 1, -1)];
  const shape = dims ? dims.replaceAll(/,(?! )/g, " × ") : "scalar";
  return element === "float" ? shape : `${element} ${shape}`;
}
