// Missed fusions; only those of the selected module if one is selected.
section("missed", (root, data, model) => {
  const status = root.querySelector(".missed-status");

  function show({ module }) {
    let shown = 0;
    root.querySelectorAll(".missed-pass").forEach((part) => {
      const groups = data.passes[Number(part.dataset.pass)];
      const here = groups.map(([count, places]) => (module ? inModule(places, module) : count));
      part.querySelectorAll("tr[data-group]").forEach((row) => {
        const at = Number(row.dataset.group);
        row.hidden = !here[at];
        row.querySelector(".missed-times").textContent = said(here[at], groups[at][0]);
      });
      const sum = here.reduce((left, right) => left + right, 0);
      const all = groups.reduce((left, [count]) => left + count, 0);
      part.querySelector(".missed-count").textContent = `${said(sum, all)}×`;
      part.hidden = !sum;
      shown += sum;
    });
    status.hidden = !module;
    status.replaceChildren(...(module ? scope(shown, module) : []));
  }

  function inModule(places, module) {
    return places.reduce((sum, [at, count]) => (matchModule(data.modules[at], module) ? sum + count : sum), 0);
  }

  function scope(count, module) {
    const everywhere = h("button", { type: "button", class: "quiet", on: { click: () => model.select({ module: null }) } }, "show all");
    const where = h("code", {}, module);
    return [count ? `${fmt.plural(count, "skipped match", "skipped matches")} in ` : "No missed fusions in ", where, " and below. ", everywhere];
  }

  const said = (count, all) => (count === all ? fmt.count(all) : `${fmt.count(count)} of ${fmt.count(all)}`);

  model.listen(show);
  show(model.selection);
});
