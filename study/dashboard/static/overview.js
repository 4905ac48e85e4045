// All sweeps of the folder: what each asks and answers, and where it stands.
import { changedText, el, field, problems, table } from "/static/dom.js";
import { address, ask, value } from "/static/state.js";

const COLUMNS = [
  { key: "sweep", label: "sweep", always: true, class: "nowrap",
    cell: row => el("a", { href: address({ page: "sweep", sweep: row.sweep }) }, row.sweep) },
  { key: "verdict", label: "question and verdict", always: true, class: "words wide-words", cell: row => [
    el("div", { class: "quiet" }, row.question),
    el("div", {}, row.verdict || (row.live ? "Running; no answer yet." : "No answer written yet.")),
    changedText(row.sweep),
  ] },
  { key: "running", label: "running", kind: "count", cell: row => row.running
    ? el("span", { class: "state running" }, row.running) : "" },
  { key: "done", label: "done", kind: "whole", always: true },
  { key: "failed", label: "failed", kind: "whole", cell: row => row.failed ? el("span", { class: "state failed" }, row.failed) : "" },
  { key: "pruned", label: "pruned", kind: "whole" },
  { key: "waiting", label: "left", kind: "whole" },
  { key: "tokens", label: "tokens", kind: "count" },
  { key: "changed", label: "last change", kind: "when", class: "nowrap" },
];

export async function overview() {
  const data = await ask("overview");
  const columns = COLUMNS.filter(one => one.always || data.sweeps.some(row => row[one.key]));
  return { title: "Sweeps", version: data.version, content: [
    el("h1", {}, "Sweeps"),
    el("p", { class: "quiet" }, data.root),
    data.sweeps.length ? null : el("p", { class: "lead" }, "There is no sweep here yet. ", el("code", {}, "study launch"),
      " writes one into a results folder; this page shows it as soon as it begins."),
    problems(data.problems),
    data.sweeps.length ? el("div", { class: "controls" },
      field("filter", "Filter", "words, or done>20 running>0")) : null,
    data.sweeps.length ? table("sweeps", "Sweeps", columns, data.sweeps, "changed~down", value("filter")) : null,
  ] };
}
