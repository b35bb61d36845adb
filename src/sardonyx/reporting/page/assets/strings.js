// A table of names that begin alike (strings.py), written out.
function readStrings(table) {
  let last = "";
  return table.rest.map((rest, at) => (last = last.slice(0, table.shared[at]) + rest));
}
