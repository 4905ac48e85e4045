// Which page the address names, drawn again whenever the address or the folder changes.
import { el, problems, redrawBy } from "/static/dom.js";
import { address, change, forget, joined, parted, value } from "/static/state.js";
import { overview } from "/static/overview.js";
import { sweepPage } from "/static/sweep.js";
import { runPage } from "/static/run.js";
import { scalingPage } from "/static/scaling.js";
import { knobsPage } from "/static/knobs.js";
import { whatIfPage } from "/static/what-if.js";

const PAGES = { sweeps: overview, sweep: sweepPage, run: runPage, scaling: scalingPage, knobs: knobsPage, "what-if": whatIfPage };
const NAV = { sweeps: "Sweeps", scaling: "Scaling", knobs: "Knobs", "what-if": "What if" };
const OFTEN = 3000, SELDOM = 10000;  // milliseconds between looks at a sweep, and at the whole folder

const main = document.getElementById("main");
let drawn = 0;
let version = "";

// Draw the page of the address. What has the focus keeps it, with its cursor.
async function draw() {
  const own = ++drawn;
  const page = value("page", "sweeps");
  document.getElementById("nav").replaceChildren(...Object.entries(NAV).map(([name, words]) => el("a", {
    href: address({ page: name, ...carried(name) }), "aria-current": name === page || (name === "sweeps" && ["sweep", "run"].includes(page)) ? "page" : null,
  }, words)));
  main.setAttribute("aria-busy", "true");
  let shown;
  try {
    shown = await (PAGES[page] ?? overview)();
  } catch (error) {
    shown = { title: "Scaling study", content: [el("h1", {}, "This page cannot be shown"), problems(error.message.split("\n"))] };
  }
  if (own !== drawn) return;
  version = shown.version ?? "";
  const focused = document.activeElement, id = main.contains(focused) ? focused.id : "";
  const cursor = id && "selectionStart" in focused && focused.type !== "range" && focused.type !== "checkbox" && focused.type !== "number"
    ? [focused.selectionStart, focused.selectionEnd] : null;
  const scrolled = [...main.querySelectorAll(".scroll")].map(one => [one.getAttribute("aria-label").split(":")[0], one.scrollLeft]);
  main.replaceChildren(...[shown.content].flat().filter(Boolean));
  for (const region of main.querySelectorAll(".region")) region.refresh?.();
  main.removeAttribute("aria-busy");
  document.title = `${shown.title} – Scaling study`;
  if (id) {
    const again = document.getElementById(id);
    again?.focus({ preventScroll: true });
    if (cursor) again?.setSelectionRange?.(...cursor);
  }
  for (const [label, left] of scrolled) {
    const again = [...main.querySelectorAll(".scroll")].find(one => one.getAttribute("aria-label").split(":")[0] === label);
    if (again) again.scrollLeft = left;
  }
}

// Pages about one sweep keep it.
function carried(page) {
  const sweeps = value("sweep") ? [value("sweep")] : parted(value("sweeps"));
  if (page === "scaling") return { sweeps: joined(sweeps) };
  return page === "knobs" || page === "what-if" ? { sweep: sweeps[0] } : {};
}

// A link inside the dashboard changes the address without a new document.
document.addEventListener("click", event => {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  history.pushState(null, "", link.getAttribute("href"));
  forget();
  draw().then(() => { scrollTo(0, 0); main.focus({ preventScroll: true }); });
});
addEventListener("popstate", () => { forget(); draw(); });
let resized = 0;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(draw, 200); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

const theme = document.getElementById("theme");
theme.value = value("theme");
theme.addEventListener("change", () => {
  document.documentElement.dataset.theme = theme.value;
  change({ theme: theme.value || null });
  draw();
});

// Ask whether what is shown has changed, and draw it again if so.
async function follow() {
  try {
    const page = value("page", "sweeps");
    if (!document.hidden && ["sweeps", "sweep", "run"].includes(page)) {
      const response = await fetch(`/api/pulse?${new URLSearchParams({ sweep: page === "sweeps" ? "" : value("sweep") })}`);
      const now = response.ok ? (await response.json()).version : version;
      if (version && now !== version) {
        forget();
        await draw();
        document.getElementById("notice").textContent = `Updated at ${new Date().toLocaleTimeString("en-GB")}.`;
      }
    }
  } catch {
    document.getElementById("notice").textContent = "The server does not answer.";
  }
  setTimeout(follow, value("sweep") ? OFTEN : SELDOM);
}

redrawBy(draw);
draw().then(follow);
