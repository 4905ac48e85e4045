// What each knob of a sweep matters: all runs over parallel axes, and importances.
import { bars, parallel } from "/static/charts.js";
import { el, field, menu, passes, plain, problems, region, section, tick, ticked } from "/static/dom.js";
import { comparable, knob, points, quantity } from "/static/points.js";
import { address, ask, value } from "/static/state.js";

const MOST_AXES = 9;

export async function knobsPage() {
  const all = (await ask("overview")).sweeps;
  const most = all.reduce((a, b) => (b.done > (a?.done ?? -1) ? b : a), null);
  const sweep = all.some(one => one.sweep === value("sweep")) ? value("sweep") : most?.sweep;
  if (!sweep) return { title: "Knobs", content: [el("h1", {}, "Knobs"), el("p", { class: "quiet" }, "No sweep is here yet.")] };
  const head = [el("h1", {}, "Knobs"), el("div", { class: "controls" },
    menu("sweep", "Sweep", all.map(one => [one.sweep, one.sweep]), sweep))];
  const data = await points([sweep]);
  const names = Object.keys(data.axes);
  if (!data.rows.length || !names.length) return { title: "Knobs", content: [...head, problems(data.problems), el("p", { class: "lead" }, "No run of this sweep has ended yet.")] };
  const target = names.includes(value("target")) ? value("target") : names.includes("loss_nats") ? "loss_nats" : names[0];
  const { rows: same } = comparable(data, target);
  const usedOnly = ticked("used", false);
  const kinds = data.kinds.filter(name => !["sweep", "shape", "setting", "state"].includes(name) && !name.startsWith("environment."));
  const columns = [...names, ...data.kinds, "left_out"].map(name => ({ key: name, label: knob(name) }));
  const rows = same.filter(row => row[target] !== null && (!usedOnly || !row.left_out) && passes(row, value("filter"), columns))
    .map(row => ({ ...row, colour: row[target], words: `${row.words}\n${quantity(data, target)}: ${plain(row[target])}` }));
  const differing = kinds.filter(name => name !== target && new Set(rows.map(row => row[name])).size > 1);
  const dimensions = [...differing.slice(0, MOST_AXES), target].map(key => ({ key, label: key === target ? quantity(data, key) : knob(key) }));
  return { title: `Knobs of ${sweep}`, content: [
    ...head,
    problems(data.problems),
    el("div", { class: "controls" },
      menu("target", "Quantity", names.map(name => [name, data.axes[name]]), target),
      tick("used", "only runs that laws use", false),
      field("filter", "Filter", "words, or learning rate<0.003")),
    section("parallel", "All runs", rows.length && differing.length
      ? region("parallel axes", node => parallel(node, rows, dimensions, { colour: data.axes[target],
        caption: `${rows.length} runs, each a line; colour shows the ${quantity(data, target)}. Click a line for its run.`,
        click: row => { history.pushState(null, "", address({ page: "run", sweep: row.sweep, run: row.run_id })); dispatchEvent(new PopStateEvent("popstate")); } }))
      : el("p", { class: "quiet" }, "No two of these runs differ in a knob.")),
    section("importances", "Importances", el("div", { class: "controls" }, menu("evaluator", "By", [
      ["ped-anova", "PED-ANOVA: what reaches the best tenth of the runs"], ["fanova", "fANOVA: what explains the variance of all runs"]], "ped-anova")),
    region("importances", async node => {
      const { importances, runs, why_not: reason } = await ask("importances", { sweep, target, evaluator: value("evaluator", "ped-anova") });
      const shares = Object.entries(importances).map(([name, share]) => ({ name: knob(name), share }));
      return shares.length ? bars(node, shares, { x: "share of the importance", text: row => `${Math.round(100 * row.share)}%`,
        caption: `Of ${runs} completed runs, by Optuna. Knobs that change together, as width and FFN often do, share what is due to either.` })
        : el("p", { class: "quiet" }, reason);
    })),
  ] };
}
