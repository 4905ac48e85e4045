// Any quantity of all ended runs against any other, with the curve of a law; and depth against width.
import { map, scatter, unzoom } from "/static/charts.js";
import { el, field, menu, passes, plain, problems, region, section, short, tick, ticked } from "/static/dom.js";
import { chosenSweeps, comparable, knob, points, quantity as named, sweepChoice } from "/static/points.js";
import { address, ask, value } from "/static/state.js";

export async function scalingPage() {
  const { all, sweeps } = await chosenSweeps();
  const head = [el("h1", {}, "Scaling"), sweepChoice(all, sweeps)];
  if (!sweeps.length) return { title: "Scaling", content: [...head, el("p", { class: "quiet" }, "No sweep is here yet.")] };
  const data = await points(sweeps);
  const names = Object.keys(data.axes);
  if (!data.rows.length || !names.length) {
    return { title: "Scaling", content: [...head, problems(data.problems), el("p", { class: "lead" }, "No run of these sweeps has ended yet.")] };
  }
  const pick = (name, ...usual) => names.includes(value(name)) ? value(name) : usual.find(one => names.includes(one)) ?? names[0];
  const x = pick("x", varies(data, "parameters_non_embedding") ? "parameters_non_embedding" : "train_flops"), y = pick("y", "loss_nats");
  const quantity = data.on_one_validation.includes(y) ? y : x;
  const { rows: same, validation } = comparable(data, quantity);
  const usedOnly = ticked("used", same.some(row => !row.left_out));
  const columns = [...names.map(name => ({ key: name, label: knob(name) })), ...data.kinds.map(name => ({ key: name, label: knob(name) })),
    { key: "left_out", label: "left out" }, { key: "run_id", label: "run" }];
  const kept = same.filter(row => (!usedOnly || !row.left_out) && passes(row, value("filter"), columns));
  const kinds = data.kinds.filter(name => new Set(kept.map(row => row[name])).size > 1);
  const colour = kinds.includes(value("colour")) ? value("colour") : kinds.find(one => one === "setting") ?? kinds[0] ?? "sweep";
  const [logX, logY] = [ticked("log-x", same.every(row => row[x] === null || row[x] > 0)), ticked("log-y", false)];
  const offers = sweeps.length === 1 && y === "loss_nats" ? await ask("offers", { sweep: sweeps[0], count: x }) : [];
  const law = offers.some(one => one.key === value("law")) ? value("law") : "";
  const means = ticked("means", false);

  const figure = region("scaling plot", async node => {
    const lines = law ? await ask("law", { sweep: sweeps[0], law, count: x, at: value("at") }) : null;
    const held = new Set(lines?.held_out ?? []), within = new Set(lines?.runs ?? []);
    const along = lines ? lines.curves.filter(curve => lines.columns[curve.variable] === x) : [];
    const aims = lines ? lines.targets.filter(one => lines.columns[one.variable] === x) : [];
    const rows = kept.filter(row => row[x] !== null && row[y] !== null)
      .map(row => ({ ...row, x: row[x], y: row[y], colour: shown(row[colour]), used: !row.left_out, held: held.has(row.run_id), faint: lines && !within.has(row.run_id) }));
    const drawn = (means ? averaged(rows) : rows).map(row => ({ ...row, words: [row.words, `${named(data, x)}: ${short(row.x)}`,
      `${named(data, y)}: ${plain(row.y)}${row.of > 1 ? `, mean of ${row.of} seeds` : ""}`, row.held ? "held out of the law's forecast" : ""].filter(Boolean).join("\n") }));
    const hollow = drawn.filter(row => !row.used).length;
    const caption = [`${rows.length} runs of ${new Set(rows.map(row => row.sweep)).size === 1 ? rows[0]?.sweep : `${sweeps.length} sweeps`}`,
      means ? "one point for runs that differ in the seed alone, with a bar from the least to the greatest seed" : "",
      hollow ? `${hollow} hollow: excluded, or not at the best knobs of a cell` : "",
      along.length ? "curves with 95% bands of the law, dotted beyond the budgets fitted" : "", within.size && rows.some(row => row.faint) ? "faint: not of the law's runs" : "", along.length && held.size ? "rings: held out, forecast from the smaller runs" : "",
      ...aims.map(one => `star: ${one.words}`)]
      .filter(Boolean).join("; ");
    return [
      scatter(node, drawn, along, { x: data.axes[x], y: data.axes[y], logX, logY, colour: knob(colour), caption: `${caption}. Drag to zoom; click a point for its run.`, zoom: "zoom", aims,
        click: row => { history.pushState(null, "", address({ page: "run", sweep: row.sweep, run: row.run_id })); dispatchEvent(new PopStateEvent("popstate")); } }),
      unzoom("zoom"),
      lines ? fitted(lines, along.length, x) : null,
    ];
  });
  const deep = kept.filter(row => row["architecture.depth"] && row["architecture.width"] && row[y] !== null);
  const budgets = [...new Set(deep.map(row => row.tokens))].sort((a, b) => b - a);
  const budget = budgets.map(String).includes(value("budget")) ? value("budget") : "";
  return { title: "Scaling", content: [
    ...head,
    problems(data.problems),
    el("div", { class: "controls" },
      menu("x", "Across", names.map(name => [name, data.axes[name]]), x, { zoom: null }),
      menu("y", "Up", names.map(name => [name, data.axes[name]]), y, { zoom: null }),
      menu("colour", "Colour", kinds.map(name => [name, knob(name)]), colour),
      offers.length ? menu("law", "Law", [["", "none"], ...offers.map(one => [one.key, one.words])], "") : null,
      validation === null ? null : menu("validation", "Validated on", data.validations.map(one => [one, one || "the one that all share"]), validation)),
    el("div", { class: "controls" },
      tick("log-x", "log x", logX), tick("log-y", "log y", false), tick("means", "mean over seeds", false),
      tick("used", "only runs that laws use", usedOnly), field("filter", "Filter", "words, or depth>2 seed=0"),
      law ? field("at", "Target", "such as N=1e9, D=2e10") : null),
    y === "loss_nats" && !offers.length ? el("p", { class: "quiet" }, sweeps.length > 1
      ? "A law is of one sweep; choose one to see its laws."
      : "No law is offered: the runs are too few, of too few sizes and budgets, or have no ledger yet.") : null,
    figure,
    deep.length && new Set(deep.map(row => `${row["architecture.depth"]} ${row["architecture.width"]}`)).size > 1 ? section("map", "Depth and width",
      el("div", { class: "controls" }, menu("budget", "Budget", [["", "all, the best value"], ...budgets.map(one => [String(one), `${short(one)} tokens`])], "")),
      region("depth and width", node => mapped(node, deep, data.axes[y], y, budget, !data.higher_is_better.includes(y)))) : null,
  ] };
}

const varies = (data, name) => name in data.axes && new Set(data.rows.map(row => row[name])).size > 1;
const shown = one => one === "" || one === null || one === undefined ? "(none)" : one;

// One point for runs that differ in the seed alone: the means, and the least and greatest of the `of` runs.
function averaged(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = `${row.sweep} ${row.replicates}`;
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  const mean = values => values.reduce((a, b) => a + b) / values.length;
  return [...groups.values()].map(members => ({ ...members[0], x: mean(members.map(row => row.x)), y: mean(members.map(row => row.y)),
    low: Math.min(...members.map(row => row.y)), high: Math.max(...members.map(row => row.y)), held: members.some(row => row.held), of: members.length }));
}

function fitted(lines, drawn, x) {
  const constants = Object.entries(lines.estimates).map(([name, [estimate, low, high]]) =>
    `${name} ${plain(estimate)}${low === null ? "" : ` (95% ${plain(low)} to ${plain(high)})`}`).join(", ");
  return el("div", { class: "law" },
    el("p", {}, el("b", {}, lines.formula), `, ${lines.n} runs: ${constants}.`),
    el("p", { class: "quiet" }, `Status: ${lines.status}. Forecast of the largest runs: ${lines.forecast}.`,
      drawn ? "" : ` The law reads ${Object.values(lines.columns).map(knob).join(" and ")}, not ${knob(x)}; choose one of them across to see its curve.`));
}

function mapped(node, rows, label, y, budget, lower) {
  const places = new Map();
  for (const row of rows.filter(one => !budget || String(one.tokens) === budget)) {
    const key = `${row["architecture.depth"]} ${row["architecture.width"]}`;
    places.set(key, [...(places.get(key) ?? []), row]);
  }
  const best = members => lower ? Math.min(...members) : Math.max(...members), superlative = lower ? "lowest" : "highest";
  const cells = [...places.values()].map(members => {
    const values = members.map(row => row[y]);
    return { x: members[0]["architecture.width"], y: members[0]["architecture.depth"], of: `${budget ? "mean" : superlative} of ${values.length}`,
      value: budget ? values.reduce((a, b) => a + b) / values.length : best(values) };
  });
  return map(node, cells, { x: "width (hidden size)", y: "depth (layers)", value: label, better: lower ? "lower" : "higher",
    caption: budget ? "Mean over the runs of each depth and width at this budget." : `The ${superlative} value of each depth and width over all budgets.` });
}
