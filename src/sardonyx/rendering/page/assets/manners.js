// How the page behaves under a reader's hands, whatever it shows: the theme button, keys, notes that close.

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
      // Storage is refused: the choice holds until the page is closed.
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
      shown().start("modules");
      const field = shown().root.querySelector('input[type="search"]');
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
  // A note near the edge is moved so that it can be read whole; `toggle` does not bubble, so it is caught on its way.
  document.addEventListener(
    "toggle",
    (event) => {
      if (!(event.target instanceof Element) || !event.target.matches("details.help[open]")) return;
      const note = event.target.querySelector(".help-text");
      note.style.setProperty("--shift", "0px");
      const box = note.getBoundingClientRect();
      const over = box.right - (document.documentElement.clientWidth - 12);
      if (over > 0) note.style.setProperty("--shift", `${-over}px`);
      else if (box.left < 12) note.style.setProperty("--shift", `${12 - box.left}px`);
    },
    true,
  );
}
