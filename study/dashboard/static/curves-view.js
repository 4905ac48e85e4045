// The curves of runs: smoothing, grouping over seeds, colours and axes, all in the address.
import { lines, unzoom } from "/static/charts.js";
import { el, menu, problems, region, slider, tick, ticked } from "/static/dom.js";
import { address, ask, joined, value } from "/static/state.js";

const MOST_RAW = 12;

// The controls and the figure for some rows of a table of runs.
export function curvesView(sweep, rows, first) {
  const knobs = ["setting", "depth", "width", "shape", "learning_rate", "seed", "tokens", "state"]
    .filter(key => new Set(rows.map(row => row[key])).size > 1);
  const grouped = new Set(rows.map(row => row.cell)).size < rows.length;
  const few = rows.length <= 10;
  const figure = region("curves", async node => {
    const metric = value("metric");
    const data = await ask("curves", { sweep, metric, x: value("x"), ...(rows.length <= 60 ? { runs: joined(rows.map(row => row.run)) } : {}) });
    const smooth = Math.min(0.99, Number(value("smooth", "0")) || 0);
    const [logX, logY] = [ticked("log-x", false), ticked("log-y", false)];
    const by = value("colour", few || !knobs.length ? "run" : knobs[0]);
    const series = rows.filter(row => data.curves[row.run]).map(row => {
      const { x, y } = data.curves[row.run];
      const smoothed = smooth ? averaged(y, smooth) : y;
      return { row, x, y: smoothed, raw: y };
    });
    const cells = value("group", grouped && !few ? "cells" : "runs") === "cells";
    const drawn = cells ? bands(series, by) : series.map(one => ({
      name: `${one.row.run.slice(0, 6)} ${one.row.words}`,
      group: by === "run" ? `${one.row.run.slice(0, 6)} ${one.row.words}` : named(one.row[by]),
      points: one.x.map((x, place) => ({ x, y: one.y[place], ...(smooth && series.length <= MOST_RAW ? { raw: one.raw[place] } : {}) })),
      click: () => history.pushState(null, "", address({ page: "run", sweep, run: one.row.run })) ?? dispatchEvent(new PopStateEvent("popstate")),
    }));
    const missing = rows.length - series.length;
    const caption = `${cells ? `Mean over seeds of ${drawn.length} cells, with a band from the least to the greatest seed` : `${series.length} ${series.length === 1 ? "run" : "runs"}`}` +
      `${smooth ? `, smoothed by ${smooth}` : ""}${missing ? `; ${missing} logged no such value` : ""}. Drag to zoom; click a curve for its run.`;
    return [
      el("div", { class: "controls" },
        menu("metric", "Metric", Object.entries(data.metrics), data.metric, { zoom: null }),
        menu("x", "Over", Object.entries(data.axes), data.x, { zoom: null })),
      problems(data.problems),
      lines(node, drawn, { x: data.axes[data.x], y: data.metrics[data.metric] ?? "", logX, logY, caption, zoom: "zoom",
        colour: by === "run" ? (cells ? "cell" : "run") : by.replace("_", " ") }),
      unzoom("zoom"),
    ];
  });
  return [
    el("div", { class: "controls" },
      grouped ? menu("group", "Lines", [["cells", "a cell, with a band over seeds"], ["runs", "each run"]], few ? "runs" : "cells") : null,
      menu("colour", "Colour", [["run", "each line"], ...knobs.map(key => [key, key.replace("_", " ")])], few || !knobs.length ? "run" : knobs[0]),
      slider("smooth", "Smoothing", 0, 0.98, 0.02, "0", () => figure.refresh()),
      tick("log-x", "log x", false), tick("log-y", "log y", false)),
    first ?? null,
    figure,
  ];
}

const named = one => one === "" || one === null ? "(none)" : one;

// An exponential average, without its bias towards the first value.
function averaged(values, share) {
  let last = 0, weight = 0;
  return values.map(one => {
    last = share * last + (1 - share) * one;
    weight = share * weight + (1 - share);
    return last / weight;
  });
}

// The mean of each cell over its seeds, where all of them have values, and the least and greatest.
function bands(series, by) {
  const cells = Map.groupBy ? Map.groupBy(series, one => one.row.cell) : grouping(series);
  return [...cells].map(([cell, members]) => {
    const from = Math.max(...members.map(one => one.x[0])), to = Math.min(...members.map(one => one.x.at(-1)));
    const finest = members.reduce((a, b) => b.x.length > a.x.length ? b : a);
    const at = finest.x.filter(x => x >= from && x <= to);
    const points = at.map(x => {
      const values = members.map(one => between(one, x));
      const y = values.reduce((a, b) => a + b) / values.length;
      return members.length > 1 ? { x, y, low: Math.min(...values), high: Math.max(...values) } : { x, y };
    });
    return { name: `${cell} (${members.length} ${members.length > 1 ? "seeds" : "seed"})`, group: by === "run" ? cell : named(members[0].row[by]), points,
      click: () => history.pushState(null, "", address({ page: "run", sweep: value("sweep"), run: members[0].row.run })) ?? dispatchEvent(new PopStateEvent("popstate")) };
  });
}

function grouping(series) {
  const cells = new Map();
  for (const one of series) cells.set(one.row.cell, [...(cells.get(one.row.cell) ?? []), one]);
  return cells;
}

function between({ x, y }, at) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= at) low = middle; else high = middle;
  }
  if (x[high] === at) return y[high];
  const share = x[high] > x[low] ? (at - x[low]) / (x[high] - x[low]) : 0;
  return y[low] + share * (y[high] - y[low]);
}
