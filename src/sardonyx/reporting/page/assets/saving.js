// Saving: a drawing as an SVG or PNG file, and any table as CSV. Nothing leaves the page but the file.

const SAVED_STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order", "font-size", "font-weight", "font-style", "text-anchor"];

function saveFile(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Returns a drawing as the text of a file: every colour is written out, and there is a background. */
function pictureText(svg) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  for (const [at, each] of from.entries()) {
    const style = getComputedStyle(each);
    for (const name of SAVED_STYLES) to[at].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["tabindex", "role", "aria-expanded", "data-key", "class", "style"]) to[at].removeAttribute(name);
  }
  const { width, height } = svg.getBoundingClientRect();
  for (const [name, value] of Object.entries({ xmlns: SVG, width, height, "font-family": "system-ui, sans-serif" })) copy.setAttribute(name, value);
  copy.prepend(s("rect", { width: "100%", height: "100%", fill: getComputedStyle(svg.parentElement).backgroundColor }));
  return new XMLSerializer().serializeToString(copy);
}

/** Saves a drawing as it is shown: "svg", or "png" at twice the size. */
function savePicture(svg, format, name) {
  const text = pictureText(svg);
  if (format === "svg") return saveFile(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
  const { width, height } = svg.getBoundingClientRect();
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => saveFile(`${name}.png`, blob));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

/** Returns the rows of a table that are shown as CSV (RFC 4180). */
function tableText(table) {
  const cell = (each) => {
    const copy = each.cloneNode(true);
    for (const note of copy.querySelectorAll(".help, .visually-hidden, button.csv")) note.remove();
    const text = copy.textContent.trim().replace(/\s+/g, " ");
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const grid = []; // a cell over several rows or columns is written in each of them
  for (const [at, row] of [...table.rows].filter((each) => each.offsetParent !== null).entries()) {
    grid[at] ??= [];
    for (const each of row.cells) {
      const text = cell(each);
      const from = grid[at].findIndex((taken) => taken === undefined);
      const left = from < 0 ? grid[at].length : from;
      for (let down = 0; down < each.rowSpan; down++) {
        const line = (grid[at + down] ??= []);
        for (let along = 0; along < each.colSpan; along++) line[left + along] = text;
      }
    }
  }
  return `${grid.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

/** Adds a button that saves it to every table of the page, also those that are made later. */
function listenToTables() {
  const done = new WeakSet();
  const add = (root) => {
    for (const table of root.querySelectorAll("table")) {
      if (done.has(table) || table.closest("dialog")) continue;
      done.add(table);
      const name = table.caption?.textContent || table.closest("[data-section]")?.dataset.section || "table";
      const save = () => saveFile(`${name}.csv`, new Blob([tableText(table)], { type: "text/csv" }));
      const button = h("button", { type: "button", class: "link csv", "aria-label": `Save the table as CSV: ${name}`, on: { click: save } }, "CSV");
      (table.closest(".scroll") ?? table).after(h("div", { class: "csv-line" }, button));
    }
  };
  new MutationObserver((changes) => {
    for (const { target } of changes) if (target instanceof Element) add(target);
  }).observe(document.getElementById("main"), { childList: true, subtree: true });
  add(document);
}
