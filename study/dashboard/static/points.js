// The ended runs of some sweeps as rows, one object a run, and menus to choose sweeps and quantities.
import { el, set } from "/static/dom.js";
import { ask, joined, parted, value } from "/static/state.js";

export async function points(sweeps) {
  const data = await ask("points", { sweeps: joined(sweeps) });
  const columns = Object.entries(data.columns);
  const length = columns[0]?.[1].length ?? 0;
  const rows = Array.from({ length }, (_, place) => Object.fromEntries(columns.map(([name, values]) => [name, values[place]])));
  for (const row of rows) row.words = wordsOf(row);
  return { ...data, rows };
}

const wordsOf = row => [`${row.run_id.slice(0, 6)} ${row.shape}`, row.setting, `${row.sweep}`, row.left_out ? `left out: ${row.left_out}` : ""]
  .filter(Boolean).join("\n");

// A column's name without the part of the configuration it stands in.
export const knob = name => name.replace(/^(architecture|recipe|data|masking|environment)\./, "").replaceAll("_", " ");

// A quantity in a word or two: its axis without convention and unit.
export const quantity = (data, name) => (data.axes[name] ?? knob(name)).replace(/ \(.*/, "");

// Which sweeps are chosen: those of the address, else the one with most runs.
export async function chosenSweeps() {
  const all = (await ask("overview")).sweeps;
  const names = new Set(all.map(one => one.sweep));
  const given = parted(value("sweeps")).filter(name => names.has(name));
  const most = all.reduce((a, b) => (b.done > (a?.done ?? -1) ? b : a), null);
  return { all, sweeps: given.length ? given : most ? [most.sweep] : [] };
}

export function sweepChoice(all, sweeps) {
  const chosen = new Set(sweeps);
  const box = name => el("label", { class: "control tick" }, el("input", { id: `sweep-${name}`, type: "checkbox", checked: chosen.has(name),
    onchange: event => {
      event.target.checked ? chosen.add(name) : chosen.delete(name);
      set({ sweeps: chosen.size ? joined(chosen) : null, zoom: null });
    } }), el("span", {}, name));
  return el("details", { open: value("choosing") === "1", ontoggle: event => {
    const url = new URL(location);
    event.target.open ? url.searchParams.set("choosing", "1") : url.searchParams.delete("choosing");
    history.replaceState(null, "", url);
  } }, el("summary", {}, `Sweeps: ${sweeps.join(", ") || "none"}`), el("div", { class: "choices" }, all.map(one => box(one.sweep))));
}

// Losses compare only on one validation set: the chosen one, else that of most runs.
export function comparable(data, quantity) {
  if (!data.on_one_validation.includes(quantity) || data.validations.length < 2) return { rows: data.rows, validation: null };
  const chosen = value("validation", data.validations[0]);
  const validation = data.validations.includes(chosen) ? chosen : data.validations[0];
  return { rows: data.rows.filter(row => row.validation === validation), validation };
}
