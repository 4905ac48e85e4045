// One sweep: its answer and figures, its curves and runs, and its file.
import { scatter } from "/static/charts.js";
import { curvesView } from "/static/curves-view.js";
import { changedText, el, field, passes, plain, problems, region, section, set, short, table } from "/static/dom.js";
import { address, ask, joined, parted, value } from "/static/state.js";

const TABS = { answer: "Answer", goal: "Goal", runs: "Runs and curves", figures: "Figures", file: "Sweep file" };

const COLUMNS = [
  { key: "run", label: "run", always: true, class: "nowrap",
    cell: row => el("a", { href: address({ page: "run", sweep: value("sweep"), run: row.run }) }, row.run.slice(0, 8)) },
  { key: "state", label: "state", kind: "state", always: true },
  { key: "shape", label: "shape", class: "nowrap" },
  { key: "setting", label: "setting" },
  { key: "learning_rate", label: "learning rate", kind: "number" },
  { key: "seed", label: "seed", kind: "whole" },
  { key: "tokens", label: "tokens", kind: "count" },
  { key: "done", label: "done", kind: "share" },
  { key: "loss_nats", label: "loss (nats)", kind: "loss" },
  { key: "order_gain_nats", label: "order gain (nats)", kind: "loss" },
  { key: "non_embedding", label: "non-embedding parameters", kind: "count" },
  { key: "train_flops", label: "FLOPs", kind: "count" },
  { key: "tokens_per_second", label: "tokens/s", kind: "count" },
  { key: "note", label: "note", class: "words" },
];
// Columns that only a filter reads.
const HIDDEN = [{ key: "depth", label: "depth" }, { key: "width", label: "width" }];

const answers = new Map();  // the rendered answer of a version, whose folds stay as they were opened

export async function sweepPage() {
  const sweep = value("sweep");
  const data = await ask("sweep", { sweep });
  const tab = value("tab", data.live || !data.answer ? "runs" : "answer");
  const tabs = el("nav", { class: "tabs", "aria-label": "Parts of the sweep" },
    Object.entries(TABS).filter(([name]) => (name !== "answer" || data.answer) && (name !== "goal" || data.goal) && (name !== "figures" || data.figures.length))
      .map(([name, words]) => el("a", { href: address({ page: "sweep", sweep, tab: name }), "aria-current": name === tab ? "page" : null }, words)),
    el("a", { href: address({ page: "scaling", sweeps: joined([sweep]) }) }, "Scaling plot"),
    el("a", { href: address({ page: "knobs", sweep }) }, "Knobs"));
  const counts = [[data.running, "running"], [data.done, "done"], [data.failed, "failed"], [data.pruned, "pruned"], [data.waiting, "left"]]
    .filter(([count]) => count).map(([count, words]) => `${count} ${words}`).join(", ");
  return { title: sweep, version: data.version, content: [
    el("h1", {}, sweep),
    tab === "answer" ? null : el("p", { class: "lead" }, data.question),
    data.verdict && !["answer", "goal"].includes(tab) ? el("p", { class: "lead verdict" }, data.verdict) : null,
    el("p", { class: "quiet" }, counts ? `Runs: ${counts}.` : "No run has begun yet.",
      data.live ? " It is running; this page follows it." : ""),
    problems(data.problems),
    changedText(data.sweep, { sweep }),
    tabs,
    ...({ answer: answerTab, goal: goalTab, runs: runsTab, figures: figuresTab, file: fileTab }[tab] ?? runsTab)(sweep, data),
  ] };
}

function answerTab(sweep, data) {
  const key = `${sweep} ${data.version}`;
  if (!answers.has(key)) {
    const node = el("div", { class: "answer" });
    node.innerHTML = data.answer;  // rendered by the server without any HTML of the folder's
    for (const one of node.querySelectorAll("table")) {
      one.tabIndex = 0;
    }
    answers.clear();
    answers.set(key, node);
  }
  return [answers.get(key)];
}

function runsTab(sweep, data) {
  if (!data.runs.length) return [el("p", { class: "quiet" }, "No run has begun yet.")];
  const filter = value("filter");
  const rows = data.runs.filter(row => passes(row, filter, [...COLUMNS, ...HIDDEN]));
  const ticked = new Set(parted(value("runs")));
  const chosen = rows.filter(row => ticked.has(row.run));
  const boxes = { key: "chosen", label: "draw", sorts: false, always: true, cell: Object.assign(row => el("input", {
    id: `draw-${row.run}`, type: "checkbox", checked: ticked.has(row.run), "aria-label": `draw ${row.run}`,
    onchange: event => {
      event.target.checked ? ticked.add(row.run) : ticked.delete(row.run);
      set({ runs: ticked.size ? joined(ticked) : null });
    },
  }), { box: true }) };
  return [
    section("curves", "Curves", ...curvesView(sweep, chosen.length ? chosen : rows,
      chosen.length ? el("p", {}, `${chosen.length} chosen in the table. `,
        el("button", { id: "draw-all", type: "button", onclick: () => set({ runs: null }) }, "Draw all")) : null)),
    section("runs", "Runs",
      el("div", { class: "controls" }, field("filter", "Filter, for the curves too", "words, or depth>2 state=failed")),
      table("table", "Runs", [...COLUMNS.slice(0, 1), boxes, ...COLUMNS.slice(1)], rows.map(row => ({ ...row, chosen: "1" })),
        data.live ? "state~down" : "loss_nats~up")),
  ];
}

// Where a goal stands: half the interval against what was spent, and the chosen runs on the plane of size and tokens.
function goalTab(sweep, data) {
  if (!data.goal) return [el("p", { class: "quiet" }, "This sweep has no goal.")];
  const { of, wanted, sentence, looks, runs, spend_flops: most, target_parameters: size, target_tokens: tokens } = data.goal;
  const relative = of.endsWith(", relative"), shown = half => relative ? 100 * half : half;
  const halfText = half => relative ? `${plain(100 * half)}%` : plain(half);
  const narrowed = looks.filter(look => look.half_width !== null).map(look => ({ x: look.spent_flops, y: shown(look.half_width), used: true,
    words: `after ${look.runs} runs for ${short(look.spent_flops)} FLOPs: ± ${halfText(look.half_width)}` }));
  const places = new Map();  // runs that differ in the seed alone share a point
  for (const [order, run] of runs.entries()) {
    const key = `${run.parameters_non_embedding} ${run.tokens} ${run.used}`;
    places.set(key, [...(places.get(key) ?? []), { ...run, order: order + 1 }]);
  }
  const chosen = [...places.values()].map(members => ({ x: members[0].parameters_non_embedding, y: members[0].tokens, used: members[0].used,
    colour: members[0].order, run: members[0].run_id, runs: members.length,
    words: members.map(run => `run ${run.order}: ${run.shape}, seed ${run.seed}, ${short(run.tokens)} tokens, ${short(run.spent_flops)} FLOPs`).join("\n") }));
  return [
    el("p", { class: "lead verdict" }, sentence),
    narrowed.length ? section("path", "Interval against what was spent", region("interval against what was spent", async node => [scatter(node, narrowed, [], {
      x: "spent (train_flops)", y: `half the 95% interval of ${relative ? of.replace(", relative", " (%)") : of}`, logY: true,
      aims: [{ y: shown(wanted), words: `goal: ± ${halfText(wanted)}` }], caption: `One point a look at the runs that had ended. At most ${short(most)} FLOPs may be spent.` })])) : null,
    chosen.length ? section("chosen", "Chosen runs", region("chosen runs", async node => [scatter(node, chosen, [], { x: "non-embedding parameters", y: "tokens",
      logX: true, logY: true, colour: "order in which runs ended", aims: size === null ? [] : [{ x: size, y: tokens, words: "where the loss is wanted" }],
      caption: `One point a size and budget, larger for several runs, in the colour of the first; hollow: not used${size === null ? "" : "; star: where the loss is wanted"}. Click a point for its first run.`,
      click: row => { if (row.run) { history.pushState(null, "", address({ page: "run", sweep, run: row.run })); dispatchEvent(new PopStateEvent("popstate")); } } })])) : null,
  ];
}

function figuresTab(sweep, data) {
  return [el("div", { class: "gallery" }, data.figures.map(name => {
    const words = name.replace(".svg", "").replaceAll("_", " ");
    const source = `/figure/${encodeURIComponent(sweep)}/${name}`;
    return el("figure", {}, el("a", { href: source, target: "_blank", rel: "noopener" },
      el("span", { class: "paper", style: "display: block" }, el("img", { src: source, alt: words, loading: "lazy" }))),
    el("figcaption", {}, words));
  }))];
}

const fileTab = (sweep, data) => [el("pre", { tabindex: "0", "aria-label": "sweep.yaml" }, data.file)];
