// Decodes a table of names with shared prefixes (section.py).
function readStrings(table) {
  let last = "";
  return table.rest.map((rest, at) => (last = last.slice(0, table.shared[at]) + rest));
}
