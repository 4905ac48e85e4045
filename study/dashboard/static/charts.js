// Figures by Observable Plot, in the colours of the page. A drag zooms; the address holds what is shown.
import { el, plain, set, short } from "/static/dom.js";
import { value } from "/static/state.js";

const { Plot, d3 } = window;

export const dark = () => {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

// Colours of 0 to 1 without the end that vanishes in the page, which is asked for its mode once.
function ramp() {
  const [from, span] = dark() ? [0.22, 0.78] : [0, 0.86];
  return t => d3.interpolateViridis(from + span * t);
}

const width = node => Math.max(280, Math.min(1200, (node?.clientWidth || document.getElementById("main").clientWidth - 32)));

// A scale for an axis: logarithmic if wanted, with ticks that a reader can name.
function axis(label, log, domain, extent, room) {
  const scale = { label, type: log ? "log" : "linear", grid: true, labelArrow: "none", ...(domain ? { domain } : {}) };
  const [low, high] = domain ?? extent;
  if (log && high / low < 8) return { ...scale, ticks: d3.ticks(low, high, Math.max(3, Math.round(room / 110))), tickFormat: brief };
  if (log) {
    const ticks = decades(low, high, room / Math.log10(high / low) > 190 ? [1, 2, 5] : [1]);
    if (ticks.length > 1) scale.ticks = ticks;
  } else scale.ticks = Math.max(3, Math.round(room / 90));
  scale.tickFormat = brief;
  return scale;
}

// These digits times the powers of ten between two numbers.
const decades = (low, high, digits) => d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1)
  .flatMap(power => digits.map(digit => +(digit * 10 ** power).toPrecision(1))).filter(one => one >= low * 0.999 && one <= high * 1.001);

export const brief = one => Math.abs(one) >= 1e4 ? short(one) : plain(one);

// The colours of values: a ramp for numbers, which is logarithmic if they span a factor of ten; else one colour a name, also of numbers among names.
export function colours(values, label) {
  const there = values.filter(one => one !== null && one !== undefined);
  const distinct = [...new Set(there)];
  if (distinct.length && distinct.every(one => typeof one === "number")) {
    const [low, high] = d3.extent(distinct), shade = ramp();
    if (distinct.length === 1) return { type: "ordinal", domain: distinct, range: [shade(0.5)], label, legend: true };
    if (distinct.length <= 8) {
      const sorted = d3.sort(distinct);
      return { type: "ordinal", domain: sorted, range: sorted.map((_, place) => shade(place / (sorted.length - 1))), label,
        legend: true, tickFormat: brief };
    }
    const log = low > 0 && high / low >= 10;
    return { type: log ? "log" : "linear", domain: [low, high], interpolate: shade, range: [0, 1], label,
      legend: true, tickFormat: brief, ...(log ? { ticks: decades(low, high, high / low < 300 ? [1, 2, 5] : [1]) } : {}) };
  }
  const numbers = new Map(distinct.filter(one => typeof one === "number").map(one => [String(one), one]));
  const names = [...new Set(distinct.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return { type: "ordinal", domain: names, transform: String, scheme: names.length <= 10 ? "observable10" : "tableau10", label,
    legend: names.length <= 24, tickFormat: name => numbers.has(name) ? brief(numbers.get(name)) : name };
}

const LOOK = { background: "transparent", fontSize: "12px", fontFamily: "inherit", overflow: "visible" };

// Draw marks as a figure with its caption. `click` is called with the datum that the pointer is at.
function figure(node, caption, options, marks, click, zoom) {
  const svg = Plot.plot({ style: LOOK, marginLeft: 62, marginBottom: 44, marginTop: 24, width: width(node), ...options, marks,
    figure: true, caption: null });
  const scrolls = (options.width ?? 0) > width(node);
  const frame = el("figure", { class: scrolls ? "chart wide" : "chart", tabindex: scrolls ? "0" : null }, svg, el("figcaption", {}, caption));
  const drawing = svg.tagName === "svg" ? svg : svg.querySelector(":scope > svg:last-of-type");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", caption);
  for (const mark of drawing.querySelectorAll("[aria-label]")) {  // the whole is one image to a screen reader
    mark.dataset.mark = mark.getAttribute("aria-label");
    mark.removeAttribute("aria-label");
  }
  if (click) {
    drawing.style.cursor = "pointer";
    drawing.addEventListener("click", () => { if (svg.value && !frame.zoomed) click(svg.value); });
  }
  if (zoom) zoomable(frame, drawing, svg, zoom);
  return frame;
}

// A drag over the figure becomes the range of both axes in the address, under the parameter `name`.
function zoomable(frame, drawing, plot, name) {
  const [x, y] = [plot.scale("x"), plot.scale("y")];
  let from = null, box = null;
  const at = event => {
    const bounds = drawing.getBoundingClientRect(), view = drawing.viewBox.baseVal;
    return [(event.clientX - bounds.left) * view.width / bounds.width, (event.clientY - bounds.top) * view.height / bounds.height];
  };
  drawing.addEventListener("pointerdown", event => {
    if (event.pointerType === "touch") return;
    from = at(event);
    frame.zoomed = false;
  });
  drawing.addEventListener("pointermove", event => {
    if (!from) return;
    const to = at(event);
    if (!box && Math.hypot(to[0] - from[0], to[1] - from[1]) > 8) {
      frame.zoomed = true;
      box = drawing.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "rect"));
      box.setAttribute("class", "zoom");
    }
    if (box) {
      for (const [key, one] of Object.entries({ x: Math.min(from[0], to[0]), y: Math.min(from[1], to[1]),
        width: Math.abs(to[0] - from[0]), height: Math.abs(to[1] - from[1]) })) box.setAttribute(key, one);
    }
  });
  drawing.addEventListener("pointerup", event => {
    const to = at(event), start = from;
    from = null;
    if (!box) return;
    box.remove();
    box = null;
    const range = (scale, a, b) => d3.sort([scale.invert(a), scale.invert(b)]).map(one => +one.toPrecision(4));
    set({ [name]: [...range(x, start[0], to[0]), ...range(y, start[1], to[1])].join("~") });
  });
}

export function zoomed(name) {
  const numbers = value(name).split("~").map(Number);
  return numbers.length === 4 && numbers.every(Number.isFinite) && numbers[0] < numbers[1] && numbers[2] < numbers[3] ? numbers : null;
}
export const unzoom = name => zoomed(name)
  ? el("button", { id: `${name}-reset`, type: "button", onclick: () => set({ [name]: null }) }, "Show the whole range") : null;

// Lines: `series` are {name, group, points: [{x, y, low, high}], click}; `group` decides the colour.
export function lines(node, series, { x, y, logX, logY, colour, caption, zoom }) {
  const shown = series.map(one => ({ ...one, points: one.points.filter(p => (!logX || p.x > 0) && (!logY || p.y > 0)) }))
    .filter(one => one.points.length);
  const points = shown.flatMap(one => one.points.map(p => ({ ...p, series: one, group: one.group })));
  if (!points.length) return el("p", { class: "quiet" }, "Nothing to draw: no value here, or none above zero for a logarithmic axis.");
  const box = zoomed(zoom);
  const inside = box ? points.filter(p => p.x >= box[0] && p.x <= box[1] && p.y >= box[2] && p.y <= box[3]) : points;
  const extents = ["x", "y"].map(key => d3.extent(points, p => p[key]));
  const tall = Math.min(460, 0.62 * width(node) + 60);
  const faint = shown.length > 60 ? 0.45 : shown.length > 20 ? 0.7 : 1;
  const channels = { x: "x", y: "y" };
  const words = p => `${p.series.name}\n${y.replace(/ \(.*/, "")}: ${plain(p.y)}` +
    `${p.low === undefined ? "" : `, ${plain(p.low)} to ${plain(p.high)}`}\n${x.replace(/ \(.*/, "")}: ${brief(p.x)}`;
  return figure(node, caption, {
    height: tall,
    x: axis(x, logX, box?.slice(0, 2), extents[0], width(node)),
    y: axis(y, logY, box?.slice(2), extents[1], tall),
    color: colours(shown.map(one => one.group), colour),
  }, [
    Plot.areaY(points.filter(p => p.low !== undefined), { x: "x", y1: "low", y2: "high", z: p => p.series.name, fill: "group",
      fillOpacity: 0.15, clip: true }),
    Plot.line(points.filter(p => p.raw !== undefined), { x: "x", y: "raw", z: p => p.series.name, stroke: "group",
      strokeOpacity: 0.2, strokeWidth: 1, clip: true }),
    Plot.line(points, { ...channels, z: p => p.series.name, stroke: "group", strokeWidth: 1.5, strokeOpacity: faint, clip: true }),
    Plot.dot(points.filter(p => p.series.points.length === 1), { ...channels, fill: "group", r: 2.5, clip: Boolean(box) }),
    Plot.dot(inside, Plot.pointer({ ...channels, stroke: "currentColor", r: 4 })),
    Plot.tip(inside, Plot.pointer({ ...channels, title: p => p, format: { title: words } })),  // written where the pointer is
  ], datum => datum.series.click?.(), zoom);
}

// A range with some room at both ends.
function padded([low, high], log) {
  if (log) {
    const room = (high / low) ** 0.04 * 1.02;
    return [low / room, high * room];
  }
  const room = (high - low) * 0.05 || Math.abs(high) * 0.02 || 1;
  return [low - room, high + room];
}

// Points with the curves of a law: `rows` are {x, y, low, high, colour, used, held, runs, words}, and `runs` swells a point. Without `colour` a line joins them in their
// order. Each of `aims` is a level {y, words}, or a place {x, y, low, high, words}.
export function scatter(node, rows, law, { x, y, logX, logY, colour, caption, zoom, click, aims = [] }) {
  const shown = rows.filter(row => (!logX || row.x > 0) && (!logY || row.y > 0));
  if (!shown.length) return el("p", { class: "quiet" }, "Nothing to draw: no run has both quantities, or none is above zero for a logarithmic axis.");
  const curves = law.flatMap(curve => curve.size.map((size, place) => ({ x: size, y: curve.law[place], low: curve.low[place],
    high: curve.high[place], beyond: curve.beyond[place], toTarget: curve.to_target,
    level: `${curve.by ? `${curve.by} ` : ""}${curve.level ?? ""}${curve.to_target ? " ★" : ""}` })));
  const box = zoomed(zoom);
  const ends = d3.rollups(curves, group => d3.greatest(group, p => p.x), p => p.level).map(([, p]) => p);
  const tall = Math.min(520, 0.62 * width(node) + 80);
  const starred = aims.filter(one => one.x !== undefined), paint = colour ? "colour" : "var(--accent)";
  const upright = padded(d3.extent([...shown, ...aims].flatMap(row => [row.y, ...(starred.includes(row) ? [row.low ?? row.y, row.high ?? row.y] : [])])), logY);
  const aside = padded(d3.extent([...shown, ...curves, ...starred], row => row.x), logX);
  return figure(node, caption, {
    height: tall,
    marginRight: ends.some(p => p.level) ? 92 : 24,
    x: axis(x, logX, box?.slice(0, 2) ?? aside, aside, width(node)),
    y: axis(y, logY, box?.slice(2) ?? upright, upright, tall),
    ...(colour ? { color: colours(shown.map(row => row.colour), colour) } : {}),
    r: { type: "identity" },
  }, [
    Plot.ruleY(aims.filter(one => one.x === undefined), { y: "y", stroke: "var(--mark)", strokeWidth: 1.5, strokeDasharray: "5 4" }),
    Plot.text(aims.filter(one => one.x === undefined), { y: "y", text: "words", frameAnchor: "right", textAnchor: "end", dy: -8, fill: "var(--mark)" }),
    Plot.line(colour ? [] : shown, { x: "x", y: "y", stroke: paint, strokeWidth: 1.5 }),
    Plot.areaY(curves.filter(p => p.low !== null), { x: "x", y1: "low", y2: "high", z: "level", fill: "currentColor",
      fillOpacity: 0.05, clip: true }),
    ...[[false, "1 3"], [true, "6 4"]].map(([toTarget, strokeDasharray]) => Plot.line(curves.filter(p => p.toTarget === toTarget), { x: "x", y: "y", z: "level",
      stroke: "currentColor", strokeOpacity: 0.65, strokeWidth: 1.2, strokeDasharray, clip: true })),
    Plot.line(curves.filter(p => !p.beyond), { x: "x", y: "y", z: "level", stroke: "currentColor", strokeOpacity: 0.65, strokeWidth: 1.2, clip: true }),
    Plot.text(ends.filter(p => p.level && (!box || (p.x <= box[1] && p.y >= box[2] && p.y <= box[3]))),
      { x: "x", y: "y", text: "level", textAnchor: "start", dx: 6, fontSize: 11 }),
    Plot.ruleX(shown.filter(row => row.low !== undefined && row.low < row.high), { x: "x", y1: "low", y2: "high", stroke: paint, clip: true }),
    Plot.dot(shown.filter(row => row.held), { x: "x", y: "y", r: 8, stroke: "currentColor", clip: true }),
    Plot.dot(shown.filter(row => !row.used), { x: "x", y: "y", r: 4, stroke: paint, strokeWidth: 1.4,
      opacity: row => row.faint ? 0.22 : 1, clip: true }),
    Plot.dot(shown.filter(row => row.used), { x: "x", y: "y", r: row => 4.5 * Math.sqrt(row.runs ?? 1), fill: paint, opacity: row => row.faint ? 0.22 : 0.9, clip: true }),
    Plot.ruleX(starred.filter(one => typeof one.low === "number"), { x: "x", y1: "low", y2: "high", stroke: "var(--mark)", strokeWidth: 1.5, clip: true }),
    Plot.dot(starred, { x: "x", y: "y", r: 8, symbol: "star", fill: "var(--mark)" }),
    Plot.tip([...shown, ...starred], Plot.pointer({ x: "x", y: "y", title: "words" })),
  ], click, zoom);
}

// A map of depth against width: `rows` are {x, y, value, of}, where `of` says what the value is of the runs there.
export function map(node, rows, { x, y, value: name, caption, better }) {
  const upwards = ramp(), shade = better === "lower" ? t => upwards(1 - t) : upwards;
  return figure(node, caption, {
    height: 90 + 40 * new Set(rows.map(row => row.y)).size,
    marginLeft: 62,
    x: { label: x, type: "band", domain: d3.sort(new Set(rows.map(row => row.x))), labelArrow: "none" },
    y: { label: y, type: "band", domain: d3.sort(new Set(rows.map(row => row.y)), d3.descending), labelArrow: "none" },
    color: { type: "linear", interpolate: shade, range: [0, 1], label: name, legend: true },
  }, [
    Plot.cell(rows, { x: "x", y: "y", fill: "value", inset: 1 }),
    Plot.text(rows, { x: "x", y: "y", text: row => plain(row.value), fill: row => readable(rows, row.value, shade), fontSize: 11 }),
    Plot.tip(rows, Plot.pointer({ x: "x", y: "y", title: row => `depth ${row.y}, width ${row.x}\n${name}: ${plain(row.value)}\n${row.of}` })),
  ]);
}

// Black or white, whichever can be read on the colour of a value.
function readable(rows, one, shade) {
  const [low, high] = d3.extent(rows, row => row.value);
  const t = high > low ? (one - low) / (high - low) : 0.5;
  return d3.lab(shade(t)).l > 58 ? "#000" : "#fff";
}

// One line a run over several axes, each from its least to its greatest value.
export function parallel(node, rows, dimensions, { colour, caption, click }) {
  const scales = new Map(dimensions.map(({ key, label }) => {
    const values = rows.map(row => row[key]).filter(one => one !== null && one !== undefined);
    const numeric = values.every(one => typeof one === "number");
    const [low, high] = d3.extent(values);
    const scale = !numeric ? d3.scalePoint([...new Set(values.map(String))].sort(d3.ascending), [0, 1]).padding(0.3)
      : low > 0 && high / low >= 4 ? d3.scaleLog([low, high], [0, 1]) : d3.scaleLinear(low === high ? [low - 1, high + 1] : [low, high], [0, 1]);
    const distinct = d3.sort(new Set(values));
    const ticks = !numeric ? scale.domain() : distinct.length <= 8 ? distinct : scale.ticks(5).filter(one => one >= low && one <= high);
    return [key, { label, numeric, place: one => scale(numeric ? one : String(one)), ticks: thin(ticks, scale) }];
  }));
  const long = rows.flatMap(row => dimensions.filter(({ key }) => row[key] !== null && row[key] !== undefined)
    .map(({ key }) => ({ row, dimension: key, at: scales.get(key).place(row[key]) })));
  const ticks = dimensions.flatMap(({ key }) => scales.get(key).ticks.map(one => ({ dimension: key, at: scales.get(key).place(one),
    text: typeof one === "number" ? brief(one) : shortened(String(one), 18) })));
  return figure(node, caption, {
    height: 380, marginLeft: 40, marginRight: 60, marginBottom: 56,
    x: { type: "point", domain: dimensions.map(({ key }) => key), label: null,
      tickFormat: key => shortened(scales.get(key).label, Math.max(11, Math.floor(width(node) / dimensions.length / 6.5))) },
    y: { axis: null, domain: [0, 1] },
    color: colours(rows.map(row => row.colour), colour),
    width: Math.max(width(node), 80 * dimensions.length),
  }, [
    Plot.ruleX(dimensions.map(({ key }) => key), { strokeOpacity: 0.4 }),
    Plot.line(long, { x: "dimension", y: "at", z: one => one.row.run_id + one.row.sweep, stroke: one => one.row.colour,
      strokeOpacity: rows.length > 100 ? 0.35 : 0.7 }),
    Plot.text(ticks, { x: "dimension", y: "at", text: "text", textAnchor: "start", dx: 5, fontSize: 11, stroke: "var(--ground)",
      strokeWidth: 3, fill: "currentColor" }),
    Plot.tip(long, Plot.pointer({ x: "dimension", y: "at", title: one => one.row.words })),
  ], click && (datum => click(datum.row)));
}
const shortened = (words, most) => words.length > most ? `${words.slice(0, most - 1)}…` : words;

function thin(ticks, scale) {
  const kept = [];
  for (const tick of ticks) {
    const at = scale(typeof tick === "number" ? tick : String(tick));
    if (kept.every(([, other]) => Math.abs(at - other) > 0.05)) kept.push([tick, at]);
  }
  return kept.map(([tick]) => tick);
}

// Bars from the largest down: `rows` are {name, share}.
export function bars(node, rows, { x, caption, text }) {
  const longest = Math.max(...rows.map(row => row.name.length));
  return figure(node, caption, {
    height: 40 + 26 * rows.length, marginLeft: Math.min(230, 20 + 6.6 * longest), marginRight: 70,
    x: { label: x, labelArrow: "none", grid: true, tickFormat: brief, ticks: 4 }, y: { label: null },
  }, [
    Plot.barX(rows, { x: "share", y: "name", fill: "var(--accent)", sort: { y: "-x" } }),
    Plot.text(rows, { x: "share", y: "name", text, textAnchor: "start", dx: 4, fontSize: 11 }),
    Plot.ruleX([0]),
  ]);
}

// The named models by two counts, with an encoder among them.
export function models(node, rows, own, nearest, { x, y, caption }) {
  const near = new Set(nearest);
  const around = key => {
    const [low, high] = d3.extent([...rows.filter(row => near.has(row.name)), own], row => row[key]);
    return [low / 4, high * 4];
  };
  return figure(node, caption, {
    height: Math.min(440, 0.62 * width(node) + 60), marginRight: 30,
    x: axis(x, true, around("x"), null, width(node)),
    y: axis(y, true, around("y"), null, 400),
  }, [
    Plot.dot(rows, { x: "x", y: "y", r: 3.5, fill: "currentColor", fillOpacity: row => near.has(row.name) ? 0.9 : 0.3, clip: true }),
    Plot.text(apart(rows.filter(row => near.has(row.name))), { x: "x", y: "y", text: "name", textAnchor: "start", dx: 14, fontSize: 11, stroke: "var(--ground)", strokeWidth: 3, fill: "currentColor", clip: true }),
    Plot.dot([own], { x: "x", y: "y", r: 8, symbol: "star", fill: "var(--mark)" }),
    Plot.tip([...rows.filter(row => row.x >= around("x")[0] && row.x <= around("x")[1] && row.y >= around("y")[0] && row.y <= around("y")[1]), own], Plot.pointer({ x: "x", y: "y", title: row => `${row.name}\n${short(row.x)} parameters\n${short(row.y)} FLOPs a token` })),
  ]);
}

// Rows whose names would stand on each other share the name of the first.
function apart(rows) {
  const kept = [];
  for (const row of d3.sort(rows, one => one.y)) {
    const beside = kept.find(one => Math.abs(Math.log(one.y / row.y)) < 0.12 && Math.abs(Math.log(one.x / row.x)) < 0.5);
    if (beside) beside.more += 1;
    else kept.push({ ...row, more: 0 });
  }
  return kept.map(row => ({ ...row, name: row.more ? `${row.name} and ${row.more} more` : row.name }));
}
