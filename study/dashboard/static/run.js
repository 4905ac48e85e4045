// One run: where it stands, its configuration beside another's, curves, scores, lineage, environment and log.
import { curvesView } from "/static/curves-view.js";
import { bytes, el, exact, menu, problems, section, short, table, tick, ticked } from "/static/dom.js";
import { address, ask, value } from "/static/state.js";

export async function runPage() {
  const [sweep, run, other] = ["sweep", "run", "other"].map(name => value(name));
  const [data, whole] = await Promise.all([ask("run", { sweep, run, other }), ask("sweep", { sweep })]);
  const row = data.row;
  const beside = whole.runs.find(one => one.run === other);
  const only = other && ticked("different", true);
  const config = data.config.filter(one => !only || one.differs).map(one => ({ ...one, value: words(one.value), other: words(one.other) }));
  return { title: `${run.slice(0, 8)} of ${sweep}`, version: data.version, content: [
    el("p", { class: "quiet" }, el("a", { href: address({ page: "sweep", sweep, tab: "runs" }) }, `← ${sweep}`)),
    el("h1", {}, row.words),
    el("p", { class: "quiet" }, `Run ${row.run}`),
    problems(data.problems),
    el("div", { class: "facts" },
      fact(el("span", { class: `state ${row.state.toLowerCase()}` }, row.state.toLowerCase()), "state"),
      fact(row.loss_nats === null ? "–" : row.loss_nats.toFixed(4), "validation loss (nats)"),
      fact(short(row.tokens), row.done === null ? "tokens" : `tokens, ${Math.round(100 * row.done)}% of its budget`),
      row.non_embedding ? fact(short(row.non_embedding), "non-embedding parameters") : null,
      row.train_flops ? fact(short(row.train_flops), "FLOPs (train_flops)") : null,
      row.tokens_per_second ? fact(short(row.tokens_per_second), "tokens/s") : null),
    row.note ? el("p", {}, `Note: ${row.note}.`) : null,
    section("curves", "Curves", ...curvesView(sweep, [row, ...(beside ? [beside] : [])])),
    section("config", "Configuration",
      el("div", { class: "controls" },
        menu("other", "Beside", [["", "no other run"], ...whole.runs.filter(one => one.run !== run).map(one => [one.run, `${one.run.slice(0, 6)} ${one.words}`])], ""),
        other ? tick("different", "only what differs", true) : null),
      el("div", { class: "halves" }, table("config", "Configuration", [
        { key: "key", label: "key", always: true, class: "nowrap" },
        { key: "value", label: other ? `${run.slice(0, 6)}` : "value", always: true },
        ...(other ? [{ key: "other", label: other.slice(0, 6), always: true }] : []),
      ], config))),
    data.scores.length ? section("scores", "Downstream scores", table("scores", "Scores", [
      { key: "task", label: "task", always: true }, { key: "metric", label: "metric" }, { key: "protocol", label: "protocol" },
      { key: "update", label: "update" }, { key: "seed", label: "seed", kind: "whole" }, { key: "state", label: "state", kind: "state" },
      { key: "test", label: "test", kind: "loss" }, { key: "low", label: "from", kind: "loss" }, { key: "high", label: "to", kind: "loss" },
      { key: "dev", label: "dev", kind: "loss" }, { key: "examples", label: "examples", kind: "whole" },
    ], data.scores, "task~up")) : null,
    data.lineage.length ? section("lineage", "Lineage", el("ul", {}, data.lineage.map(one => el("li", {}, `It ${one.relation} `,
      one.sweep ? el("a", { href: address({ page: "run", sweep: one.sweep, run: one.run }) },
        one.relation.startsWith("is also") ? one.sweep : `${one.run.slice(0, 8)} ${one.words}`)
        : `${one.run}, which is not in this folder`)))) : null,
    section("record", "Record and environment", el("div", { class: "halves" },
      facts("facts", "Record", data.facts), facts("environment", "Environment", data.environment))),
    data.log ? section("log", "End of the log", el("pre", { tabindex: "0", "aria-label": "end of the log" }, data.log)) : null,
  ] };
}

const words = one => one === null || one === undefined ? "–" : Number.isInteger(one) ? exact(one) : String(one);
const fact = (content, label) => el("div", { class: "fact" }, el("b", {}, content), el("span", {}, label));

function facts(id, caption, values) {
  const rows = Object.entries(values).map(([key, one]) => ({ key, value: key.endsWith("_bytes") ? bytes(one) : words(one) }));
  return rows.length ? table(id, caption, [{ key: "key", label: "key", always: true, class: "nowrap" },
    { key: "value", label: "value", always: true }], rows) : null;
}
