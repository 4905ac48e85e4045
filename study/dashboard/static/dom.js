// Elements, controls and tables. Text only ever becomes text: no string of a results folder is parsed as HTML here.
import { ask, change, value } from "/static/state.js";

// An element. Attributes that begin with "on" are listeners; null, undefined and false are left out.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, one] of Object.entries(attributes ?? {})) {
    if (one === null || one === undefined || one === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), one);
    else node.setAttribute(name, one === true ? "" : one);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

let redraw = () => {};
// What draws the page anew after a control has changed the address.
export const redrawBy = draw => { redraw = draw; };

export function set(parameters) {
  change(parameters);
  redraw();
}

export const problems = messages => messages?.length
  ? el("div", { class: "problems", role: "alert" }, el("ul", {}, messages.map(one => el("li", {}, one)))) : null;

// What is to be said of a sweep whose text has changed since its runs, filled in once the server knows.
export function changedText(sweep, parameters = {}) {
  const node = el("div", { class: "changed-text" });
  ask("texts", parameters).then(data => { node.textContent = data[sweep] ?? ""; }, () => {});
  return node;
}

export const section = (id, title, ...children) =>
  el("section", { "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);

// A menu whose choice is in the address under `name`. Options are pairs of a value and its words.
export function menu(name, label, options, usual, more = {}) {
  const chosen = value(name, usual);
  const known = options.some(([one]) => one === chosen) ? chosen : usual;
  const select = el("select", { id: name, onchange: event => set({ [name]: event.target.value, ...more }) },
    options.map(([one, words]) => el("option", { value: one, selected: one === known }, words)));
  return el("label", { class: "control" }, el("span", {}, label), select);
}

// A box that is ticked if the address says so, else if `usual`.
export function tick(name, label, usual) {
  const box = el("input", { id: name, type: "checkbox", checked: ticked(name, usual),
    onchange: event => set({ [name]: event.target.checked ? "1" : "0" }) });
  return el("label", { class: "control tick" }, box, el("span", {}, label));
}
export const ticked = (name, usual) => value(name, usual ? "1" : "0") === "1";

// A slider that redraws `region` alone while it moves, so that it is not replaced under the pointer.
export function slider(name, label, from, to, step, usual, region) {
  const shown = el("output", { for: name }, value(name, usual));
  const input = el("input", { id: name, type: "range", min: from, max: to, step, value: value(name, usual), oninput: event => {
    shown.textContent = event.target.value;
    change({ [name]: event.target.value });
    region();
  } });
  return el("label", { class: "control", for: name }, el("span", {}, label, " ", shown), input);
}

// A field of text in the address, applied while it is typed.
export function field(name, label, hint = "") {
  const input = el("input", { id: name, type: "search", value: value(name), placeholder: hint, spellcheck: "false",
    autocomplete: "off", oninput: event => set({ [name]: event.target.value || null }) });
  return el("label", { class: "control wide" }, el("span", {}, label), input);
}

const SUFFIXES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
export function short(number) {
  if (number === null || number === undefined) return "";
  const size = Math.abs(number);
  if (size >= 1e15) return number.toExponential(2);
  const [unit, letter] = SUFFIXES.find(([least]) => size >= least) ?? [1, ""];
  return `${+(number / unit).toPrecision(3)}${letter}`;
}
export const exact = number => Number(number).toLocaleString("en-GB", { maximumFractionDigits: 6 });
export const plain = number => number === null || number === undefined ? "" : String(+Number(number).toPrecision(4));

export function bytes(number) {
  const [unit, name] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([least]) => number >= least) ?? [1, "B"];
  return `${+(number / unit).toPrecision(3)} ${name}`;
}

export function when(text) {
  if (!text) return "";
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  for (const [size, words] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return seconds > 30 * 86400 ? text.slice(0, 10) : `${Math.floor(seconds / size)} ${words} ago`;
  }
  return "now";
}

// How a value of each kind is shown; a number keeps its exact value in the tooltip.
const KINDS = {
  text: one => one ?? "",
  count: one => one === null || one === undefined ? "" : el("span", { title: exact(one) }, short(one)),
  whole: one => one === null || one === undefined ? "" : exact(one),
  loss: one => one === null || one === undefined ? "" : Number(one).toFixed(4),
  number: plain,
  share: one => one === null || one === undefined ? "" : `${Math.round(100 * one)}%`,
  when: one => one ? el("time", { datetime: one, title: one }, when(one)) : "",
  state: one => el("span", { class: `state ${one.toLowerCase()}` }, one.toLowerCase()),
};
const isNumber = kind => ["count", "whole", "loss", "number", "share"].includes(kind);

// Whether a row passes a filter: words that any column holds, and conditions such as depth>2 or state=failed.
export function passes(row, words, columns) {
  return words.toLowerCase().split(/\s+/).filter(Boolean).every(word => {
    const condition = /^([^<>=!]+)(<=|>=|!=|<|>|=)(.+)$/.exec(word);
    const column = condition && columns.find(one => [one.key, one.label].some(name => normal(name) === normal(condition[1])))
      || condition && columns.find(one => normal(one.label).startsWith(normal(condition[1])));
    if (!column) return columns.some(one => String(row[one.key] ?? "").toLowerCase().includes(word));
    const own = row[column.key], other = condition[3], numbers = [Number(own), Number(other)];
    const both = own !== null && own !== "" && numbers.every(Number.isFinite);
    switch (condition[2]) {
      case "=": return both ? numbers[0] === numbers[1] : String(own ?? "").toLowerCase().includes(other);
      case "!=": return both ? numbers[0] !== numbers[1] : !String(own ?? "").toLowerCase().includes(other);
      case "<": return both && numbers[0] < numbers[1];
      case ">": return both && numbers[0] > numbers[1];
      case "<=": return both && numbers[0] <= numbers[1];
      default: return both && numbers[0] >= numbers[1];
    }
  });
}
const normal = name => name.toLowerCase().replace(/[\s_]+|\(.*\)/g, "");

const PAGE = 100;

// A table that sorts by its headings. `id` begins its parameters in the address. Columns without any value are left out.
export function table(id, caption, columns, rows, usual = "", filter = "") {
  const shown = columns.filter(one => one.always || rows.some(row => ![null, undefined, ""].includes(row[one.key])));
  const kept = filter ? rows.filter(row => passes(row, filter, columns)) : [...rows];
  const head = el("tr"), body = el("tbody"), after = el("div");
  const again = (parameters, focus) => {  // the rest of the page stays as it is
    change(parameters);
    fill();
    document.getElementById(focus)?.focus({ preventScroll: true });
  };
  function fill() {
    const [by, order] = value(`${id}-sort`, usual).split("~");
    if (shown.some(one => one.key === by)) kept.sort((a, b) => compared(a[by], b[by]) * (order === "down" ? -1 : 1) || 0);
    const most = Number(value(`${id}-rows`, PAGE));
    head.replaceChildren(...shown.map(one => {
      const sorted = one.key === by ? (order === "down" ? "descending" : "ascending") : null;
      const next = one.key === by && order !== "down" ? `${one.key}~down` : `${one.key}~up`, button = `${id}-by-${one.key}`;
      return el("th", { scope: "col", "aria-sort": sorted, class: isNumber(one.kind) ? "number" : null },
        one.sorts === false ? one.label
          : el("button", { id: button, type: "button", onclick: () => again({ [`${id}-sort`]: next }, button) }, one.label));
    }));
    body.replaceChildren(...kept.slice(0, most).map(row => el("tr", {}, shown.map((one, place) => {
      const content = one.cell ? one.cell(row) : KINDS[one.kind ?? "text"](row[one.key]);
      return el(place === 0 && !one.cell?.box ? "th" : "td",
        { scope: place === 0 ? "row" : null, "data-label": one.label, class: [isNumber(one.kind) ? "number" : "", one.class ?? ""].join(" ").trim() || null }, content);
    }))));
    after.replaceChildren(kept.length > most
      ? el("button", { id: `${id}-more`, type: "button", onclick: () => again({ [`${id}-rows`]: most + 5 * PAGE }, `${id}-more`) },
        `Show more: ${kept.length - most} of ${kept.length} are left`)
      : kept.length ? "" : el("p", { class: "quiet" }, rows.length ? "None passes the filter." : "There are none."));
  }
  fill();
  return el("div", {},
    el("div", { class: "scroll", role: "group", "aria-label": caption, tabindex: "0" },
      el("table", {}, el("caption", {}, filter ? `${caption}: ${kept.length} of ${rows.length}` : caption), el("thead", {}, head), body)),
    after);
}

function compared(one, other) {
  const [a, b] = [one, other].map(each => each === null || each === undefined || each === "");
  if (a || b) return a - b;
  return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}

// A region that is filled later and can be filled again; a figure that fails says why in its place.
export function region(label, fill) {
  const node = el("div", { class: "region", role: "group", "aria-label": label });
  let last = 0;
  node.refresh = async () => {
    const own = ++last;
    node.setAttribute("aria-busy", "true");
    let content;
    try {
      content = await fill(node);
    } catch (error) {
      content = problems(error.message.split("\n"));
    }
    if (own !== last) return;
    node.replaceChildren(...[content].flat().filter(Boolean));
    node.removeAttribute("aria-busy");
  };
  return node;
}
