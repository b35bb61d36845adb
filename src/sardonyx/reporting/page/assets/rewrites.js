// All rewrites: filtered, by pass, then by shape; a shape opens to one of its rewrites with a selection of the others.

const REWRITE_PIECE = 200; // rows rendered at once
const REWRITE_ACCURACY = {
  exact: "Exact: the result is the same, bit for bit.",
  reassociates: "Reassociates: the same function of real numbers; rounding may differ.",
  approximates: "Approximates: a similar function.",
};

section("rewrites", (root, data, model) => {
  const book = readRewrites(data);
  const wanted = { kind: null, text: "", pinned: null }; // pinned: the target of a link, shown regardless of filters
  const openPasses = new Set();
  const openShapes = new Set();
  const status = h("p", { class: "rewrites-status", role: "status" });
  const list = h("div", { class: "rewrites-list" });
  const picker = passPicker();
  const field = h("input", { type: "search", placeholder: "module, node or operator", "aria-label": "Rewrites that name", on: { input: typed } });
  const kinds = kindButtons();
  const tools = h("div", { class: "toolbar" }, h("label", null, "pass", picker), field, h("div", { class: "rewrites-kind-buttons", role: "group", "aria-label": "Kind of rewrite" }, kinds));
  root.append(h("div", { class: "answers rewrites-answers" }, tools, status, list));

  function passPicker() {
    const option = (value, text) => h("option", { value }, text);
    const counted = book.byPass.map(({ name, shapes }) => option(name, `${name} (${fmt.count(rewritesIn(shapes))})`));
    const choose = () => model.select({ pass: picker.value || null, rewrite: null });
    return h("select", { on: { change: choose } }, option("", `all (${fmt.count(book.count)})`), counted);
  }

  function kindButtons() {
    const counts = new Map();
    for (const { kind, events } of book.shapes) counts.set(kind, (counts.get(kind) ?? 0) + events.length);
    const toggle = (kind) => {
      wanted.kind = wanted.kind === kind ? null : kind;
      filtersChanged();
    };
    return [...counts].sort((left, right) => right[1] - left[1]).map(([kind, count]) =>
      h("button", { type: "button", class: "quiet", "aria-pressed": "false", dataset: { kind }, on: { click: () => toggle(kind) } }, `${kind} ${fmt.count(count)}`));
  }

  function typed() {
    wanted.text = field.value.trim();
    filtersChanged();
  }

  function filtersChanged() {
    wanted.pinned = null;
    show();
  }

  /** Returns the rewrites that pass all filters. */
  function chooser() {
    const { module, pass } = model.selection;
    const tests = [];
    if (module) tests.push(book.inModule(module));
    if (wanted.text) tests.push(book.naming(wanted.text));
    const whole = (shape) => (!pass || shape.pass === pass) && (!wanted.kind || shape.kind === wanted.kind);
    return (shape) => shape.events.filter((n) => n === wanted.pinned || (whole(shape) && tests.every((test) => test(n))));
  }

  function show() {
    const choose = chooser();
    const passes = book.byPass
      .map((pass) => ({ ...pass, groups: pass.shapes.map((shape) => ({ shape, events: choose(shape) })).filter(({ events }) => events.length) }))
      .filter(({ groups }) => groups.length);
    picker.value = model.selection.pass ?? "";
    for (const button of kinds) button.setAttribute("aria-pressed", String(button.dataset.kind === wanted.kind));
    status.replaceChildren(...summary(passes));
    list.replaceChildren(...passes.map((pass) => passPart(pass, passes.length === 1)));
  }

  function summary(passes) {
    const groups = passes.flatMap((pass) => pass.groups);
    const count = rewritesIn(groups);
    const { module, pass } = model.selection;
    const filtered = module || pass || wanted.kind || wanted.text;
    const many = count === book.count ? `${count > 1 ? "All " : ""}${fmt.plural(count, "rewrite")}` : `${fmt.count(count)} of ${fmt.plural(book.count, "rewrite")}`;
    const shown = [`${many} shown, in ${fmt.plural(groups.length, "shape")}`];
    if (pass) shown.push(", by ", h("code", null, pass));
    if (module) shown.push(", of ", h("code", null, module), " and all below it");
    shown.push(". ");
    if (filtered) shown.push(h("button", { type: "button", class: "quiet", on: { click: clear } }, "show all"));
    return shown;
  }

  function clear() {
    wanted.kind = null;
    wanted.text = field.value = "";
    wanted.pinned = null;
    const { module, pass, rewrite } = model.selection;
    if (module || pass || rewrite !== null) model.select({ module: null, pass: null, rewrite: null });
    else show();
  }

  function passPart(pass, alone) {
    const [count, all] = [rewritesIn(pass.groups), rewritesIn(pass.shapes)];
    const open = alone || openPasses.has(pass.name);
    const head = [h("strong", null, pass.name), h("span", { class: "rewrites-times" }, rewriteTimes(count, all)), h("span", { class: "rewrites-accuracy soft" }, pass.accuracy ?? ""), h("span", { class: "soft" }, `${count < all ? "all of them: " : ""}${rewriteSaved(pass)}`)];
    const body = () => [about(pass), h("div", { class: "rewrites-groups" }, rewritePieces(pass.groups, (group) => groupPart(group, alone && pass.groups.length === 1), "div"))];
    return rewriteFold("rewrites-pass", head, open, (now) => rewriteKeep(openPasses, pass.name, now), body);
  }

  function about(pass) {
    const source = pass.shapes[0].source;
    return h(
      "div",
      { class: "rewrites-about" },
      pass.algebra ? h("p", null, h("code", null, pass.algebra)) : null,
      pass.about ? h("p", null, pass.about) : null,
      h("p", { class: "soft" }, REWRITE_ACCURACY[pass.accuracy] ?? "", pass.claims ? ` Equal for: ${pass.claims}.` : "", " Written in ", h("code", null, source), "."),
    );
  }

  function groupPart({ shape, events }, alone) {
    const times = rewriteTimes(events.length, shape.events.length);
    const head = [h("span", { class: "rewrites-times" }, times), h("span", null, rewriteTitle(shape)), h("span", { class: "soft path" }, `in ${shape.where}`)];
    const open = alone || openShapes.has(shape) || events.includes(model.selection.rewrite);
    return rewriteFold("rewrites-group", head, open, (now) => rewriteKeep(openShapes, shape, now), () => groupBody(events));
  }

  /** Returns one rewrite of the shape, the selected one if possible, and a list of all others. */
  function groupBody(events) {
    const chosen = events.includes(model.selection.rewrite) ? model.selection.rewrite : events[0];
    const detail = h("div", null, rewriteDetail(book.event(chosen)));
    if (events.length === 1) return [detail];
    const pick = (index, button) => {
      for (const other of button.closest("ol").querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
      button.setAttribute("aria-current", "true");
      detail.replaceChildren(rewriteDetail(book.event(index)));
      mine(() => model.select({ rewrite: index }));
    };
    const row = (index) => {
      const { owner, root: value } = book.event(index);
      const button = h("button", { type: "button", class: "link path", "aria-current": index === chosen ? "true" : null, on: { click: () => pick(index, button) } }, owner || "(model)", h("span", { class: "soft" }, ` ${value}`));
      return h("li", null, button);
    };
    return [detail, h("p", { class: "rewrites-same" }, `The same at ${fmt.plural(events.length, "place")}:`), h("ol", { class: "rewrites-places" }, rewritePieces(events, row, "li"))];
  }

  // A change by this section itself is already visible.
  let quiet = false;
  function mine(act) {
    quiet = true;
    act();
    quiet = false;
  }

  function selected(selection, previous) {
    if (quiet) return;
    wanted.pinned = null;
    const { rewrite } = selection;
    const linked = rewrite !== null && rewrite !== previous?.rewrite && rewrite < book.count;
    if (linked) {
      wanted.kind = null;
      wanted.text = field.value = "";
      wanted.pinned = rewrite;
      openPasses.add(book.passOf(rewrite));
    }
    show();
    if (linked) requestAnimationFrame(() => list.querySelector(`.rewrites-detail[data-rewrite="${rewrite}"]`)?.scrollIntoView({ block: "center" }));
  }

  model.listen(selected);
  selected(model.selection, null);
});

function rewritesIn(groups) {
  return groups.reduce((sum, { events }) => sum + events.length, 0);
}

function rewriteTimes(shown, all) {
  return shown === all ? `×${fmt.count(all)}` : `${fmt.count(shown)} of ${fmt.count(all)}`;
}

function rewriteKeep(set, item, wanted) {
  if (wanted) set.add(item);
  else set.delete(item);
}

/** Returns what a pass saved in the whole run. */
function rewriteSaved({ nodes, constants, initializers, bytes }) {
  const counted = (number, noun) => number && `${fmt.change(number)} ${noun}${Math.abs(number) === 1 ? "" : "s"}`;
  const size = bytes && `${bytes > 0 ? "+" : ""}${fmt.size(bytes)}`;
  const parts = [counted(nodes, "node"), counted(constants, "Constant node"), counted(initializers, "stored constant"), size];
  return parts.filter(Boolean).join(", ");
}

function rewriteTitle({ counted: [before, after], kind, parts }) {
  if (!before.length && !after.length) return { share: "equal constants, stored once", drop: "a constant that nothing reads" }[kind] ?? "the model as a whole";
  const instead = { fold: "a constant", share: "the equal one", bypass: "what goes in" }[kind] ?? "nothing";
  const kept = parts.filter(([, state]) => state === "op").length;
  return `${rewriteOperators(before)} → ${after.length ? rewriteOperators(after) : instead}${kept ? ` (${fmt.count(kept)} kept)` : ""}`;
}

/** Returns a foldable part whose body is built when it is first opened. */
function rewriteFold(name, head, open, onToggle, body) {
  const inside = h("div", { class: `${name}-body` });
  const part = h("details", { class: name }, h("summary", null, head), inside);
  const fill = () => {
    if (part.open && !inside.hasChildNodes()) inside.append(...body());
    onToggle(part.open);
  };
  part.open = open;
  if (open) inside.append(...body());
  part.addEventListener("toggle", fill);
  return part;
}

/** Returns the first rows and a button for more. */
function rewritePieces(items, row, tag) {
  const more = (from) => {
    const rows = items.slice(from, from + REWRITE_PIECE).map(row);
    const left = items.length - from - rows.length;
    if (left <= 0) return rows;
    const button = h("button", { type: "button", class: "quiet", on: { click: () => next() } }, `show ${fmt.count(Math.min(left, REWRITE_PIECE))} more of ${fmt.count(left)}`);
    const holder = h(tag, { class: "rewrites-more" }, button);
    const next = () => {
      const made = more(from + REWRITE_PIECE);
      holder.replaceWith(...made);
      made[0].querySelector("button, summary")?.focus();
    };
    return [...rows, holder];
  };
  return more(0);
}
