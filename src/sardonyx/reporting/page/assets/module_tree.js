// The module tree as data: own and total amounts of each module, and which lines are visible. Nothing here draws.

/** Every module of a model (modules.py), and the lines in which equal modules are merged. */
class ModuleTree {
  constructor(data) {
    this.parents = data.parents;
    this.names = data.names;
    this.paths = [];
    for (const [at, name] of data.names.entries()) {
      const above = data.parents[at] > 0 ? `${this.paths[data.parents[at]]}.` : "";
      this.paths.push(at ? above + name : "");
    }
    this.at = new Map(this.paths.map((path, at) => [path, at]));
    this.kinds = data.kinds[1].map((kind) => data.kinds[0][kind]);
    const tags = readStrings(data.tags[0]);
    this.tags = data.tags[1].map((tag) => tags[tag] ?? "");
    this.precisions = data.precisions ? data.precisions[1].map((places) => places.map((place) => data.precisions[0][place])) : [];
    this.columns = Object.keys(data.own);
    this.own = data.own;
    this.totals = Object.fromEntries(this.columns.map((column) => [column, this.summed(data.own[column])]));
    this.rows = data.rows.map(([depth, label, copies, members]) => ({ depth, label, copies, members, children: [], above: -1 }));
    this.rowOf = new Array(this.paths.length).fill(-1);
    this.join();
  }

  /** Returns the totals of modules with everything below them. */
  summed(own) {
    const totals = own.slice();
    for (let at = totals.length - 1; at > 0; at--) totals[this.parents[at]] += totals[at];
    return totals;
  }

  join() {
    const above = [];
    for (const [at, row] of this.rows.entries()) {
      for (const member of row.members) this.rowOf[member] = at;
      row.above = row.depth ? above[row.depth - 1] : -1;
      above[row.depth] = at;
      if (row.depth) this.rows[row.above].children.push(at);
    }
  }

  /** Returns a module's own or total amounts as one record. */
  amounts(at, from) {
    return Object.fromEntries(this.columns.map((column) => [column, from[column][at]]));
  }

  /** Returns the module whose line shows one without a line: a container of one module is shown together with it. */
  lined(at) {
    let found = at;
    while (this.rowOf[found] < 0) found = this.parents.indexOf(found, found);
    return found;
  }
}

/** The visible lines, as opened, separated, sorted and searched by the reader. A line is a group of members of a row. */
class ModuleView {
  constructor(tree, depth) {
    this.tree = tree;
    this.depth = depth;
    this.opened = new Set();
    this.closed = new Set();
    this.parted = new Set();
    this.partAll = false;
    this.sorting = null; // {column, down}
    this.query = "";
    this.matches = null; // by module: whether it matches; null: no search
    this.below = null; // and how many match, at or below it
  }

  /** Opens the given number of levels, and resets what was opened by hand. */
  openTo(depth) {
    this.depth = depth;
    this.opened.clear();
    this.closed.clear();
  }

  search(query) {
    const before = this.query;
    this.query = query.trim().toLowerCase();
    if (!before) this.kept = [this.opened, this.closed]; // restored after the search
    [this.opened, this.closed] = this.query ? [new Set(), new Set()] : this.kept;
    if (!this.query) {
      this.matches = this.below = null;
      return 0;
    }
    const { paths, kinds, parents } = this.tree;
    const found = paths.map((path) => path.toLowerCase().includes(this.query));
    // A path that matches only because the one above it matches is left out.
    const news = found.map((is, at) => (is && !(at && found[parents[at]])) || kinds[at].toLowerCase().includes(this.query));
    this.matches = news.map(() => false);
    for (const [at, is] of news.entries()) if (is) this.matches[this.tree.lined(at)] = true;
    this.below = this.tree.summed(this.matches.map(Number));
    return this.matches.filter(Boolean).length;
  }

  line(row, first, count, above) {
    const { copies, depth } = this.tree.rows[row];
    const one = !above || above.count === 1; // only then are its copies distinct
    return { key: `${row}:${first}:${count}`, row, first, count, above, depth, copies: Math.min(copies, count), one };
  }

  members(line) {
    return this.tree.rows[line.row].members.slice(line.first, line.first + line.count);
  }

  hasChildren(line) {
    return this.tree.rows[line.row].children.length > 0;
  }

  value(line, column) {
    let sum = 0;
    for (const member of this.members(line)) sum += this.tree.totals[column][member];
    return sum;
  }

  /** Returns the label of a line below its parent. */
  label(line) {
    if (line.count > 1 || !line.above || this.tree.rows[line.row].copies === 1) return this.tree.rows[line.row].label || "(model)";
    const path = this.tree.paths[this.members(line)[0]];
    const over = this.tree.paths[this.members(line.above)[0]];
    return over ? path.slice(over.length + 1) : path;
  }

  isOpen(line) {
    if (!this.hasChildren(line) || this.closed.has(line.key)) return false;
    if (this.opened.has(line.key)) return true;
    if (!this.matches) return line.depth < this.depth;
    return this.members(line).some((member) => this.below[member] > Number(this.matches[member]));
  }

  toggle(line, open = !this.isOpen(line)) {
    (open ? this.opened : this.closed).add(line.key);
    (open ? this.closed : this.opened).delete(line.key);
  }

  canPart(line) {
    return line.copies > 1 && line.one;
  }

  part(line) {
    this.parted.add(line.key);
  }

  /** Merges a separated line again, and returns it. */
  rejoin(line) {
    const { copies } = this.tree.rows[line.row];
    const whole = this.line(line.row, Math.floor(line.first / copies) * copies, copies, line.above);
    this.parted.delete(whole.key);
    return whole;
  }

  /** Returns whether a line was separated by hand. */
  isPart(line) {
    return line.count === 1 && line.one && this.tree.rows[line.row].copies > 1 && !this.partAll;
  }

  children(line) {
    const row = this.tree.rows[line.row];
    const found = [];
    for (const child of row.children) {
      const each = this.tree.rows[child].members.length / row.members.length; // equal branches have equal children
      found.push(...this.parts(this.line(child, line.first * each, line.count * each, line)));
    }
    return this.sorted(this.opened.has(line.key) && this.isFound(line) ? found : found.filter((kid) => this.isKept(kid)));
  }

  /** Returns the line itself, or its copies if they are separated or only some of them match. */
  parts(line) {
    const some = this.matches && this.isKept(line) && this.members(line).some((member) => !this.below[member]);
    if (!this.canPart(line) || !(this.partAll || some || this.parted.has(line.key))) return [line];
    return Array.from({ length: line.count }, (_, at) => this.line(line.row, line.first + at, 1, line.above));
  }

  isFound(line) {
    return this.matches !== null && this.members(line).some((member) => this.matches[member]);
  }

  isKept(line) {
    return !this.matches || this.members(line).some((member) => this.below[member]);
  }

  sorted(lines) {
    if (!this.sorting) return lines;
    const { column, down } = this.sorting;
    const worth = new Map(lines.map((line) => [line, column === "name" ? this.label(line) : this.value(line, column)]));
    const order = (a, b) => (column === "name" ? worth.get(a).localeCompare(worth.get(b), "en", { numeric: true }) : worth.get(a) - worth.get(b));
    return lines.sort((a, b) => (down ? -order(a, b) : order(a, b)));
  }

  /** Returns the visible lines from the top. */
  lines() {
    const seen = [];
    const waiting = [this.line(0, 0, 1, null)];
    while (waiting.length) {
      const line = waiting.pop();
      seen.push(line);
      if (this.isOpen(line)) waiting.push(...this.children(line).reverse());
    }
    return seen;
  }

  /** Opens everything above a module, and returns the line that shows it. */
  reveal(module) {
    const member = this.tree.lined(module);
    const chain = [];
    for (let row = this.tree.rowOf[member]; row >= 0; row = this.tree.rows[row].above) chain.unshift(row);
    if (this.matches && !this.below[member]) this.search("");
    const last = this.tree.rows[chain.at(-1)];
    const share = last.members.indexOf(member) / last.members.length;
    let line = this.line(0, 0, 1, null);
    for (const row of chain.slice(1)) {
      const place = Math.floor(share * this.tree.rows[row].members.length + 1e-9);
      if (!this.isOpen(line)) this.toggle(line, true);
      line = this.children(line).find((kid) => kid.row === row && kid.first <= place && place < kid.first + kid.count) ?? line;
    }
    return line;
  }
}
