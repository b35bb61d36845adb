// The rewrites of a model in the data island (rewrites.py), decoded on demand: a page may have thousands.

/** names, modules: tables; event(n): the n-th rewrite; byPass: shapes with the numbers of their rewrites, pass by pass. */
function readRewrites(data) {
  const names = readStrings(data.names);
  const modules = readStrings(data.modules);
  const shapes = data.shapes.map((shape) => ({ ...shape, events: [] }));
  data.events.forEach(([shape], index) => shapes[shape].events.push(index));
  const byPass = data.passes.map((pass) => ({ ...pass, shapes: shapes.filter((shape) => shape.pass === pass.name) }));
  for (const pass of byPass) pass.shapes.sort((left, right) => right.events.length - left.events.length);

  function event(index) {
    const [place, owner, origins, owners, body, root, ...rest] = data.events[index];
    const shape = shapes[place];
    const nodes = shape.parts.map(([op, state], at) => {
      return { name: names[rest[at]], op, state, owner: modules[data.lists[owners][at]] };
    });
    return {
      index,
      shape,
      nodes,
      owner: modules[owner],
      origins: data.lists[origins].map((at) => modules[at]),
      body: names[body],
      root: names[root],
      values: rest.slice(nodes.length).map((at) => names[at]),
    };
  }

  /** Returns the rewrites that belong to a module or one below it, or removed nodes from it. */
  function inModule(wanted) {
    const inside = modules.map((path) => matchModule(path, wanted));
    const lists = data.lists.map((list) => list.some((at) => inside[at]));
    return (index) => inside[data.events[index][1]] || lists[data.events[index][2]] || lists[data.events[index][3]];
  }

  /** Returns the rewrites that mention a text: a module, a node, a value or an operator. */
  function naming(text) {
    const has = (each) => each.toLowerCase().includes(text.toLowerCase());
    const named = names.map(has);
    const path = modules.map(has);
    const lists = data.lists.map((list) => list.some((at) => path[at]));
    const shaped = shapes.map(({ counted }) => counted.some((side) => side.some(([op]) => has(op))));
    return (index) => {
      const [shape, owner, origins, owners, ...rest] = data.events[index];
      return shaped[shape] || path[owner] || lists[origins] || lists[owners] || rest.some((at) => named[at]);
    };
  }

  return { shapes, byPass, event, inModule, naming, count: data.events.length, passOf: (n) => shapes[data.events[n][0]].pass };
}
