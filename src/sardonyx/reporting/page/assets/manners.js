// General behaviour of the page: the theme button, keys, notes that close.

const THEMES = ["system", "light", "dark"];

function listenToTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const say = () => {
    const chosen = document.documentElement.dataset.theme ?? "system";
    const [sign, name] = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] }[chosen];
    button.replaceChildren(sign, h("span", { class: "theme-name" }, ` ${name}`));
    button.setAttribute("aria-label", `Colours: ${chosen === "system" ? "as the system" : chosen}. Change`);
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("sardonyx-theme", next);
    } catch {
      // No storage: the choice is lost when the page is closed.
    }
    say();
  });
  say();
}

function isWriting(element) {
  return element instanceof Element && element.matches("input, select, textarea, [contenteditable]");
}

function listenToKeys() {
  const dialog = document.getElementById("keys");
  document.getElementById("show-keys")?.addEventListener("click", () => dialog.showModal());
  dialog?.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("button")) dialog.close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return closeNotes(null);
    if (isWriting(event.target)) return;
    if (event.key === "?") {
      event.preventDefault();
      dialog?.showModal();
    } else if (event.key === "/") {
      event.preventDefault();
      shown()?.start("modules");
      const field = shown()?.root.querySelector('[data-section="modules"] input[type="search"]');
      field?.focus();
      field?.scrollIntoView({ block: "nearest" });
    }
  });
}

/** Closes every open note but one. */
function closeNotes(but) {
  for (const note of document.querySelectorAll("details.help[open]")) if (note !== but) note.open = false;
}

function listenToHelp() {
  document.addEventListener("click", (event) => {
    closeNotes(event.target instanceof Element ? event.target.closest("details.help") : null);
  });
  // `toggle` does not bubble, so it is handled in the capture phase.
  document.addEventListener("toggle", (event) => event.target instanceof Element && event.target.matches("details.help") && place(event.target), true);
  addEventListener("scroll", () => document.querySelectorAll("details.help[open]").forEach(place), { capture: true, passive: true });
}

/** Positions an open note near its "?", completely within the window. */
function place(help) {
  const note = help.querySelector(".help-text");
  if (!help.open || !note.showPopover) return;
  note.popover = "manual";
  if (!note.matches(":popover-open")) note.showPopover();
  const [mark, box] = [help.getBoundingClientRect(), note.getBoundingClientRect()];
  const { clientWidth, clientHeight } = document.documentElement;
  const above = mark.bottom + box.height + 18 > clientHeight && mark.top > box.height + 18;
  note.style.setProperty("left", `${Math.max(12, Math.min(mark.left, clientWidth - box.width - 12))}px`);
  note.style.setProperty("top", `${above ? mark.top - box.height - 6 : mark.bottom + 6}px`);
}

const WIDE = ".scroll, nav.sections"; // boxes that scroll sideways

/** Keeps on every box that scrolls sideways the sides on which it has more, which its style shows. */
function markOverflow() {
  const mark = (box) => {
    const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
    const more = `${box.scrollLeft > 1 ? "left" : ""} ${rest > 1 ? "right" : ""}`.trim();
    if (box.dataset.more !== more) box.dataset.more = more;
  };
  const resized = new ResizeObserver((entries) => {
    for (const box of new Set(entries.map(({ target }) => target.closest(WIDE)))) if (box) mark(box); // null: removed
  });
  const add = (root) => {
    for (const box of root.querySelectorAll(WIDE)) for (const each of [box, ...box.children]) resized.observe(each);
  };
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const box = target.closest?.(WIDE);
      if (box) for (const each of box.children) resized.observe(each);
      else if (target instanceof Element) add(target);
    }
  }).observe(document.getElementById("main"), { childList: true, subtree: true });
  addEventListener("scroll", ({ target }) => target instanceof Element && target.matches(WIDE) && mark(target), { capture: true, passive: true });
  add(document);
}
