// What an encoder of any shape would cost and reach, by exact counts, tables of latency, and the laws of a sweep for loss and score.
import { bars, models } from "/static/charts.js";
import { bytes, el, exact, menu, plain, problems, region, section, short, table } from "/static/dom.js";
import { ask, change, value } from "/static/state.js";

const SIZES = { depth: [1, 48], width: [32, 2048], heads: [1, 32], ffn: [32, 8192] };
const LABELS = { ffn: "FFN" };
const SELDOM = ["trigram_embedding", "bottleneck_width", "ffn_stack", "convolution_kernel", "attention_window", "global_attention_every",
  "contact_head", "second_output_bias", "relative_positions", "distance_bias_reach", "segments", "pooler", "mlm_transform", "embedding_norm", "norm_bias"];
const label = name => LABELS[name] ?? name.replaceAll("_", " ");

export async function whatIfPage() {
  const [form, whole] = await Promise.all([ask("form", { sweep: value("sweep") }), ask("overview")]);
  const model = value("model", form.base) in form.models ? value("model", form.base) : form.base;
  const base = form.models[model];
  const now = name => value(name, base[name] === null ? "none" : String(base[name]));
  const shown = region("what it costs", node => counted(node, form));
  const changed = name => event => { apply({ [name]: event.target.value }); };
  const apply = values => {
    change(values);
    shown.refresh();
  };

  // A slider and a number for one size; the width takes its heads and FFN along.
  const size = name => {
    const [least, most] = SIZES[name];
    const range = el("input", { id: `${name}-slider`, type: "range", min: least, max: Math.max(most, Number(now(name))), step: 1,
      value: now(name), "aria-label": `${label(name)}, slider` });
    const number = el("input", { id: name, type: "number", min: 1, max: 10000000, step: 1, value: now(name) });
    const both = [range, number];
    const moved = from => {
      const wanted = Number(from.value);
      if (!Number.isInteger(wanted) || wanted < 1) return;
      for (const one of both) if (one !== from) one.value = wanted;
      const values = { [name]: wanted };
      if (name === "width") {
        const [width, heads, ffn] = ["width", "heads", "ffn"].map(one => Number(now(one)));
        values.heads = nearestDivisor(wanted, heads);
        values.ffn = Math.max(1, Math.round(ffn / width * wanted));
        for (const one of ["heads", "ffn"]) write(one, values[one]);
      }
      if (name === "heads") {
        values.heads = nearestDivisor(Number(now("width")), wanted);
        if (from === range) write("heads", values.heads);
        else values.heads = wanted;
      }
      apply(values);
    };
    for (const one of both) one.addEventListener("input", () => moved(one));
    return el("div", { class: "size" }, el("label", { for: name }, label(name)), range, number);
  };
  const write = (name, one) => { for (const id of [name, `${name}-slider`]) document.getElementById(id).value = one; };

  const control = one => {
    const words = one.kind === "choice" ? one.words : one.kind === "flag" ? [...(one.optional ? ["none"] : []), "true", "false"] : null;
    const usual = { true: "yes", false: "no", none: one.kind === "flag" ? "as usual" : "none" };
    const input = words
      ? el("select", { id: one.name, onchange: changed(one.name) }, words.map(word => el("option", { value: word, selected: word === now(one.name) },
        usual[word] ?? word.replaceAll("_", " "))))
      : el("input", { id: one.name, type: "text", inputmode: "numeric", value: now(one.name), oninput: changed(one.name) });
    return el("label", { class: "control" }, el("span", {}, label(one.name)), input);
  };
  const rest = form.fields.filter(one => !(one.name in SIZES));
  const given = (name, words, usual) => el("label", { class: "control" }, el("span", {}, words),
    el("input", { id: name, type: "text", inputmode: "numeric", value: value(name, usual), oninput: changed(name) }));
  const reset = Object.fromEntries(form.fields.map(one => [one.name, null]));
  return { title: "What if", content: [
    el("h1", {}, "What if"),
    el("p", { class: "lead" }, "Counts are exact, those of ", el("code", {}, "study params"), "; nothing is built or trained."),
    el("div", { class: "two" },
      el("form", { onsubmit: event => event.preventDefault() },
        el("fieldset", {}, el("legend", {}, "Shape"),
          menu("model", "Begin with", Object.keys(form.models).map(name => [name, name]), model, reset),
          ...Object.keys(SIZES).map(size)),
        el("fieldset", {}, el("legend", {}, "Input"), el("div", { class: "halves" },
          control(rest.find(one => one.name === "vocabulary")), control(rest.find(one => one.name === "positions")),
          given("sequence_length", "sequence length", String(Math.min(form.sequence_length, base.positions))), given("batch", "batch, for memory and latency", "32"),
          el("label", { class: "control" }, el("span", {}, "precision"), el("select", { id: "precision", onchange: changed("precision") },
            ["fp32", "bf16", "int8"].map(one => el("option", { value: one, selected: value("precision", "fp32") === one }, one)))))),
        el("fieldset", {}, el("legend", {}, "Family"), el("div", { class: "halves" },
          rest.filter(one => !["vocabulary", "positions"].includes(one.name) && !SELDOM.includes(one.name)).map(control)),
        el("details", {}, el("summary", {}, "More"), el("div", { class: "halves" }, rest.filter(one => SELDOM.includes(one.name)).map(control)))),
        el("fieldset", {}, el("legend", {}, "Predicted loss and score"),
          menu("sweep", "By the laws of", [["", "no sweep"], ...whole.sweeps.filter(one => one.done).map(one => [one.sweep, one.sweep])], "", { law: null, task: null }),
          value("sweep") ? given("tokens", "training tokens", "1M") : null)),
      shown),
  ] };
}

function nearestDivisor(width, heads) {
  let best = 1;
  for (let one = 1; one <= width; one++) if (width % one === 0 && Math.abs(one - heads) < Math.abs(best - heads)) best = one;
  return best;
}

const fact = (content, words) => el("div", { class: "fact" }, el("b", {}, content), el("span", {}, words));

async function counted(node, form) {
  const names = ["model", "sequence_length", "batch", "precision", "sweep", "law", "task", "tokens", ...form.fields.map(one => one.name)];
  const data = await ask("what-if", Object.fromEntries(names.map(name => [name, value(name, null)])));
  if (data.problems.length) return problems(data.problems);
  const { account, totals } = data;
  const total = totals.parameters;
  const own = { name: account.shape, x: totals.parameters_encoder, y: account.flops_per_token.train_flops };
  const prediction = data.prediction;
  return [
    el("div", { class: "facts" },
      fact(exact(totals.parameters), "parameters (MLM model)"),
      fact(exact(totals.parameters_encoder), "of the encoder"),
      fact(exact(totals.parameters_non_embedding), "of it non-embedding"),
      fact(short(account.flops_per_token.train_flops), "training FLOPs a token (train_flops)")),
    data.unbuildable ? el("p", { class: "quiet" }, `It cannot be trained here: ${data.unbuildable}.`) : null,
    prediction ? predicted(prediction) : null,
    section("parts", "Parameters by part", bars(node, data.parts.map(one => ({ name: one.name, share: one.count })), { x: "parameters",
      text: row => `${(100 * row.share / total).toFixed(1)}%`, caption: `${account.shape}: where its ${short(total)} parameters are.` }),
    table("parts", "Parts", [
      { key: "name", label: "part", always: true }, { key: "formula", label: "formula", class: "nowrap" },
      { key: "count", label: "parameters", kind: "whole" }, { key: "share", label: "share", kind: "share", cell: row => `${(100 * row.share).toFixed(1)}%` },
    ], data.parts.map(one => ({ ...one, formula: account.formulas[one.name], share: one.count / total })))),
    section("costs", "FLOPs, memory and latency", el("div", { class: "halves" },
      table("flops", `Training FLOPs a token, ${account.sequence_length} tokens a sequence`, [
        { key: "name", label: "convention", always: true }, { key: "count", label: "FLOPs a token", kind: "whole" },
      ], Object.entries(account.flops_per_token).map(([name, count]) => ({ name, count: Math.round(count) }))),
      account.memory ? table("memory", `Memory, ${account.memory.setting}`, [
        { key: "name", label: "part", always: true }, { key: "training", label: "training", kind: "count", cell: row => bytes(row.training) },
        { key: "inference", label: "inference", kind: "count", cell: row => bytes(row.inference) },
      ], memoryRows(account.memory)) : el("p", { class: "quiet" }, "Memory is counted for encoders that can be built here.")),
    data.latency.length ? table("latency", "Latency of a forward pass, by measured tables", [
      { key: "machine", label: "machine", always: true, class: "nowrap" }, { key: "threads", label: "threads", kind: "whole" },
      { key: "seconds", label: "milliseconds", always: true, kind: "number", cell: row => row.problem ?? plain(1000 * row.seconds) },
      { key: "error", label: "usual error", kind: "share" }, { key: "beyond", label: "extrapolates in", cell: row => (row.beyond ?? []).join(", ") },
    ], data.latency) : el("p", { class: "quiet" }, "No table of latencies is in this folder.")),
    section("models", "Named models beside it",
      models(node, data.models.map(one => ({ name: one.name, x: one.parameters_encoder, y: one.flops_per_token })), own, data.nearest, {
        x: "parameters of the encoder", y: "training FLOPs a token (train_flops)", caption: "The star is this encoder; the nearest named models have their names." }),
      table("nearest", "Nearest named models", [
        { key: "name", label: "model", always: true, class: "nowrap" }, { key: "shape", label: "shape", class: "nowrap" }, { key: "vocabulary", label: "vocabulary", kind: "whole" },
        { key: "parameters_encoder", label: "encoder parameters", kind: "whole" }, { key: "parameters_non_embedding", label: "non-embedding", kind: "whole" },
        { key: "flops_per_token", label: "FLOPs a token", kind: "count" },
      ], data.nearest.map(name => data.models.find(one => one.name === name)))),
  ].flat();
}

function memoryRows({ training, inference }) {
  return Object.keys(training).filter(name => name.endsWith("_bytes"))
    .map(name => ({ name: name.replace("_bytes", "").replaceAll("_", " "), training: training[name], inference: inference[name] }));
}

function predicted(data) {
  const laws = Object.entries(data.laws);
  const tasks = data.tasks.map(one => [one, one]);
  return section("predicted", tasks.length ? "Predicted loss and score" : "Predicted loss",
    laws.length ? el("div", { class: "controls" }, menu("law", "Law of the loss", laws, data.law),
      tasks.length ? menu("task", "Score on", tasks, data.task) : null) : null,
    data.why_not ? el("p", {}, data.why_not) : [
      el("div", { class: "facts" }, fact(`${data.loss_nats.toFixed(3)} nats`, `loss${interval(data, "the law")}, from ${data.n} runs`), score(data.score)),
      data.beyond.length ? el("ul", {}, data.beyond.map(one => el("li", {}, one))) : el("p", {}, "It lies within what the law was fitted to."),
      data.score?.beyond ? el("p", {}, `For the score, ${data.score.beyond}.`) : null,
      data.score?.why_not ? el("p", {}, `No score is predicted on ${data.score.task}: ${data.score.why_not}.`) : null,
      el("p", { class: "quiet" }, `Status of the law of the loss: ${data.status}${data.score?.status ? `; of the score: ${data.score.status}` : ""}.`),
    ]);
}

const interval = (data, whose) => data.low === null ? ", without an interval"
  : ` (95% interval of ${whose} ${data.low.toFixed(3)} to ${data.high.toFixed(3)})`;

const score = data => !data || data.why_not ? null
  : fact(data.value.toFixed(3), `${data.metric} on ${data.task}${interval(data, "both laws")}, from ${data.n} scored encoders`);
