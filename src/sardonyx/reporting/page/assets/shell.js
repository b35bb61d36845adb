// The page as a whole: its models, the selection and its link, the start of sections.

const island = JSON.parse(document.getElementById("island").textContent);
const starters = new Map(); // by section
const KEYS = ["module", "rewrite", "pass", "device", "section"];
const NOTHING = Object.freeze({ module: null, rewrite: null, pass: null, device: null, section: null });

/** Registers the script of a section: called once for each model, when it is scrolled near or a link selects it. */
function section(id, start) {
  starters.set(id, start);
}

/** One model of the page: its data and its selection. */
class Model {
  constructor(index, described) {
    this.index = index;
    this.label = described.label;
    this.root = document.querySelector(`article.model[data-model="${index}"]`);
    this.selection = NOTHING;
    this.sections = described.sections;
    this.started = new Set();
    this.listeners = [];
  }

  /** Returns the data of a section, undefined if it has none. */
  data(id) {
    return Object.hasOwn(this.sections, id) ? this.sections[id] : undefined;
  }

  /** Calls `fn(selection, previous)` on every change. */
  listen(fn) {
    this.listeners.push(fn);
  }

  /** Merges into the selection, null removes; the address reflects it, and going back undoes it. */
  select(wanted) {
    const changed = settled({ ...this.selection, section: null, ...wanted }); // a section is a scroll target, used once
    const link = written(changed, this.index);
    if (link !== location.hash) history.pushState({}, "", link || location.href.split("#")[0]);
    this.adopt(changed);
    if (wanted.section) reveal(this, wanted.section, false);
  }

  adopt(selection) {
    const previous = this.selection;
    if (KEYS.every((key) => previous[key] === selection[key])) return;
    this.selection = selection;
    for (const fn of this.listeners) fn(selection, previous);
  }

  parts() {
    return [...this.root.querySelectorAll(":scope > section")];
  }

  part(id) {
    return this.parts().find((each) => each.dataset.section === id);
  }

  start(id) {
    const part = this.part(id);
    const data = this.data(id);
    if (this.started.has(id) || !part || data === undefined || !starters.has(id)) return;
    this.started.add(id);
    try {
      starters.get(id)(part, data, this);
    } catch (error) {
      console.error(error);
      part.append(h("p", { class: "notice" }, `The script of this section failed: ${error.message}`));
    }
  }

  startAll() {
    for (const id of Object.keys(this.sections)) this.start(id);
  }
}

function settled(selection) {
  const number = selection.rewrite === null || selection.rewrite === "" ? NaN : Number(selection.rewrite);
  const kept = Object.fromEntries(KEYS.map((key) => [key, selection[key] ?? null]));
  return Object.freeze({ ...kept, rewrite: Number.isInteger(number) && number >= 0 ? number : null });
}

/** Returns the deep link of a selection, "" if nothing is selected. */
function written(selection, index) {
  const parts = KEYS.filter((key) => selection[key] !== null).map((key) => `${key}=${encodeURIComponent(selection[key])}`);
  if (index) parts.push(`model=${index}`);
  return parts.length ? `#${parts.join("&")}` : "";
}

/** Returns the selection of a link; unknown keys are ignored. */
function parsed(hash) {
  const found = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [key, ...rest] = part.split("=");
    if (!rest.length || !(KEYS.includes(key) || key === "model")) continue;
    try {
      found[key] = decodeURIComponent(rest.join("="));
    } catch {
      found[key] = rest.join("="); // a lone percent sign, typed by hand
    }
  }
  return found;
}

const models = island.models.map((described, index) => new Model(index, described));

function shown() {
  return models.find((model) => !model.root.hidden) ?? models[0];
}

function show(model) {
  for (const each of models) each.root.hidden = each !== model;
  for (const nav of document.querySelectorAll("nav.sections")) nav.hidden = Number(nav.dataset.model) !== model.index;
  const picker = document.getElementById("picker");
  if (picker) picker.value = String(model.index);
}

/** Starts a section and scrolls to it, or to its element with `data-here` if a link selects that. */
function reveal(model, id, jumpsInside) {
  const part = model.part(id);
  if (!part) return;
  show(model);
  for (const each of model.parts()) {
    model.start(each.dataset.section); // those above it too: starting later would move it
    if (each === part) break;
  }
  const here = jumpsInside ? part.querySelector("[data-here]") : null;
  (here ?? part).scrollIntoView({ block: "start" });
}

/** Returns the target of a link: its section, or the section that shows its selection. */
function target(asked) {
  if (asked.section) return asked.section;
  if (asked.rewrite !== undefined || asked.pass !== undefined) return "rewrites";
  return asked.module !== undefined ? "modules" : null;
}

/** Returns whether a link is about all models. */
function ofAll({ section: id }) {
  return id !== undefined && document.getElementById(`section=${id}`)?.closest("article.model") === null;
}

/** Applies the address: `jump` if a link was followed, not if the browser went back. */
function follow(jump) {
  const { model: index, ...asked } = parsed(location.hash);
  const model = models[Number(index ?? (ofAll(asked) ? shown()?.index : 0) ?? 0)] ?? models[0];
  if (!model) return;
  show(model);
  if (location.hash && index === undefined && !Object.keys(asked).length) return; // a plain anchor selects nothing
  const where = target(asked);
  if (where) model.start(where);
  model.adopt(settled({ ...NOTHING, ...asked }));
  if (jump && where) reveal(model, where, !asked.section);
}

function followClick(event) {
  const link = event.target instanceof Element ? event.target.closest('a[href^="#"]') : null;
  if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const { model: index, ...asked } = parsed(link.getAttribute("href"));
  const where = target(asked);
  if ((index === undefined && !where) || ofAll(asked)) return; // a plain anchor
  event.preventDefault();
  const around = link.closest("article.model");
  const model = models[Number(index ?? around?.dataset.model ?? shown()?.index)] ?? models[0];
  show(model);
  if (where) model.start(where);
  model.select(asked);
  if (where) reveal(model, where, !asked.section);
  else model.root.scrollIntoView({ block: "start" });
}

function watch() {
  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target: part } of entries) {
        if (!isIntersecting) continue;
        near.unobserve(part);
        models[Number(part.closest("article.model").dataset.model)].start(part.dataset.section);
      }
    },
    { rootMargin: "600px 0px" },
  );
  for (const part of document.querySelectorAll("article.model > section")) near.observe(part);
}

/** Starts the sections that were not scrolled near one by one while the page is idle, for a picture of the whole page. */
function startWhenIdle() {
  const later = window.requestIdleCallback ?? ((fn) => setTimeout(fn, 50));
  const next = () => {
    const model = shown();
    const waiting = model && Object.keys(model.sections).find((id) => !model.started.has(id) && starters.has(id) && model.part(id));
    if (!waiting) return;
    model.start(waiting);
    later(next);
  };
  later(next);
}

/** Marks the section that is being read in the navigation. */
function tellWhere() {
  const reading = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target: part } of entries) {
        const link = document.querySelector(`nav.sections a[href="#${CSS.escape(part.id)}"]`);
        if (isIntersecting) link?.setAttribute("aria-current", "true");
        else link?.removeAttribute("aria-current");
      }
    },
    { rootMargin: "-25% 0px -74% 0px" },
  );
  for (const part of document.querySelectorAll("article.model > section")) reading.observe(part);
}

function boot() {
  history.scrollRestoration = "auto";
  document.addEventListener("click", followClick);
  addEventListener("popstate", (event) => {
    follow(event.state === null); // an address typed by hand has no state yet
    if (event.state === null) history.replaceState({}, "");
  });
  addEventListener("beforeprint", () => shown()?.startAll());
  const picker = document.getElementById("picker");
  picker?.addEventListener("change", () => {
    const model = models[Number(picker.value)];
    show(model);
    model.select({});
    model.root.scrollIntoView({ block: "start" });
  });
  listenToKeys();
  listenToTheme();
  listenToHelp();
  listenToTables();
  markOverflow();
  watch();
  startWhenIdle();
  tellWhere();
  history.replaceState({}, "");
  follow(true);
  document.documentElement.dataset.ready = "yes";
}

queueMicrotask(boot); // after every script of the page has been read
