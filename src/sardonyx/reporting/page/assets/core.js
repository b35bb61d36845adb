// Shared helpers: elements whose text is never markup, and numbers formatted as in all other views.

const SVG = "http://www.w3.org/2000/svg";
const AS_PROPERTIES = new Set(["value", "checked", "disabled", "open", "selected", "hidden"]);

/** Returns a text with unprintable and direction-changing characters as escape sequences: names may contain anything. */
function visible(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu, escapeSequence);
}

function escapeSequence(char) {
  const named = { "\t": "\\t", "\n": "\\n", "\r": "\\r" }[char];
  if (named) return named;
  const code = char.codePointAt(0).toString(16);
  return code.length < 3 ? `\\x${code.padStart(2, "0")}` : code.length < 5 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined) continue;
    if (name === "on") for (const [event, answer] of Object.entries(value)) element.addEventListener(event, answer);
    else if (name === "dataset") for (const [key, each] of Object.entries(value)) element.dataset[key] = each;
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (AS_PROPERTIES.has(name) && name in element) element[name] = value;
    else if (value === false || /^on/i.test(name) || (name === "href" && !String(value).startsWith("#"))) continue;
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  put(element, children);
  return element;
}

function put(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
}

/** Returns an HTML element; children are elements or literal text. */
function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** Returns an SVG element. */
function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** Returns the "?" beside a number, which explains how it was measured. */
function helpNote(text) {
  const note = h("div", { class: "help-text", role: "note" }, text);
  return h("details", { class: "help" }, h("summary", { "aria-label": "How this was measured" }, "?"), note);
}

/** Returns whether a module is the given one or lies below it; the model itself is "". */
function matchModule(path, wanted) {
  return wanted === null || wanted === undefined || wanted === "" || path === wanted || path.startsWith(`${wanted}.`);
}

// Decimals rounded as in Python: a tie goes to the even digit.
function fixed(number, digits) {
  const halves = number * 2 ** (digits + 1);
  const tie = Number.isInteger(halves) && Math.abs(halves % 2) === 1;
  if (!tie) return number.toFixed(digits);
  const scale = 10 ** digits;
  const below = Math.floor(number * scale);
  return ((below % 2 === 0 ? below : below + 1) / scale).toFixed(digits);
}

function grouped(text) {
  const [whole, rest] = text.split(".");
  const parted = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? parted : `${parted}.${rest}`;
}

function threeDigits(number, units) {
  const sign = number < 0 ? "−" : "";
  let value = Math.abs(number);
  for (const unit of units.slice(0, -1)) {
    if (value < 999.5) return `${sign}${fixed(value, unit === units[0] || value >= 99.95 ? 0 : 1)} ${unit}`;
    value /= 1000;
  }
  return `${sign}${fixed(value, 1)} ${units.at(-1)}`;
}

const fmt = {
  /** Returns 12345 as 12,345. */
  count: (number) => (number < 0 ? "−" : "") + grouped(String(Math.abs(number))),
  /** Returns bytes in the unit that gives three digits. */
  size: (bytes) => threeDigits(bytes, ["B", "kB", "MB", "GB", "TB"]),
  /** Returns a large count in the unit that gives three digits: 35.2 G. */
  amount: (number) => threeDigits(number, ["", "k", "M", "G", "T", "P"]).trimEnd(),
  /** Returns milliseconds with three digits, down to a microsecond, without the unit. */
  ms(time) {
    if (time > 0 && time < 0.0005) return "<0.001";
    if (time >= 99.95) return grouped(fixed(time, 0));
    return time ? fixed(time, time >= 9.995 ? 1 : time >= 0.9995 ? 2 : 3) : "·";
  },
  /** Returns a difference with its sign, or a dot for zero. */
  change: (number) => (number > 0 ? `+${grouped(String(number))}` : number ? fmt.count(number) : "·"),
  /** Returns the change in percent, with one decimal below one percent. */
  percent(before, after) {
    if (!before || before === after) return "±0 %";
    const share = (100 * (after - before)) / before;
    return `${share > 0 ? "+" : "−"}${fixed(Math.abs(share), Math.abs(share) >= 1 ? 0 : 1)} %`;
  },
  /** Returns a count with its noun: 1 node, 2 nodes. */
  plural: (number, noun, several) => `${fmt.count(number)} ${number === 1 ? noun : (several ?? `${noun}s`)}`,
};
